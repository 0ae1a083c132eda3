"""`penstock psql`: finds the database, and tells nobody the password."""

from pathlib import Path

import pytest

from core.ports.log import StoreUnavailable
from storage.connection.url import without_password
from storage.server.embedded import EmbeddedPostgres
from tests.cli.test_main import penstock, refused


def test_the_embedded_database_is_found(postgres: EmbeddedPostgres) -> None:
    done = penstock("psql", "--data", postgres.data_dir, "-At", "-c", "SELECT current_database()")
    assert (done.returncode, done.stdout) == (0, "penstock\n"), done.stderr


def test_psql_says_how_it_ended(database_url: str) -> None:
    done = penstock("psql", "--database-url", database_url, "-v", "ON_ERROR_STOP=1", "-c", "SELEKT")
    assert done.returncode == 1
    assert 'syntax error at or near "SELEKT"' in done.stderr


def test_no_other_user_sees_the_password(database_url: str) -> None:
    url = database_url.replace("postgres@", "postgres:marked%20secret@")
    assert url != database_url
    shell = r"\! cat /proc/$PPID/cmdline; echo; echo $PGPASSWORD"
    done = penstock("psql", "--database-url", url, "-c", shell)
    arguments, password = done.stdout.splitlines()
    assert password == "marked secret"
    assert "psql\0--dbname\0" in arguments
    assert "marked" not in arguments


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    said = refused("psql", "--data", tmp_path)
    assert said.startswith(f"No embedded PostgreSQL runs in {tmp_path}: it runs while 'penstock")


def test_a_secret_that_cannot_be_hidden_is_refused() -> None:
    place, password = without_password("postgresql://me:x@here/db?connect_timeout=3")
    assert set(place.split()) == {"user=me", "dbname=db", "host=here", "connect_timeout=3"}
    assert password == "x"
    with pytest.raises(StoreUnavailable, match="sslpassword in its URL cannot be hidden"):
        without_password("postgresql://me@here/db?sslpassword=y")

"""A PostgreSQL whose data is thrown away: where it is, what it is copied from, what removes it."""

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from storage.migrate import upgrade
from storage.server import ephemeral
from storage.server.ephemeral import EphemeralPostgres
from tests.conftest import open_directory

LONG_AGO = 1_000_000_000


@pytest.fixture(scope="module")
def cache() -> Iterator[Path]:
    with open_directory() as path:
        yield path / "cache"


def cluster_id(server: EphemeralPostgres) -> str:
    with psycopg.connect(server.url) as connection:
        (found,) = connection.execute("SELECT cluster_id FROM cluster").fetchone() or ("",)
    return str(found)


def test_each_is_a_cluster_of_its_own_with_the_schema(cache: Path) -> None:
    ids = set()
    for _ in range(3):
        server = EphemeralPostgres(cache)
        try:
            assert not upgrade(server.start()), "the schema is there already"
            ids.add(cluster_id(server))
        finally:
            server.discard()
        assert not server.data_dir.exists()
    assert len(ids) == 3
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


def test_without_a_cache_it_starts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = EphemeralPostgres(tmp_path / "file" / "cache")
    try:
        assert not upgrade(server.start())
    finally:
        server.discard()
    assert not server.data_dir.exists()


def test_what_a_killed_process_left_is_removed_and_nothing_else() -> None:
    with open_directory() as path:
        left, used, young = (path / f"{ephemeral.PREFIX}{name}" for name in ("left", "used", "new"))
        for each in (left, used, young, path / "another"):
            each.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ephemeral, "_places", lambda: iter([path]))
            server = EphemeralPostgres()
            for each in (left, server.data_dir, path / "another"):
                os.utime(each, (LONG_AGO, LONG_AGO))
            second = EphemeralPostgres()
        assert not left.exists()
        assert server.data_dir.exists(), "its process lives"
        assert young.exists(), "it may not have its lock yet"
        assert (path / "another").exists()
        for each in (server, second):
            each.discard()

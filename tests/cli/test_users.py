"""`penstock users`, without a broker, and the broker that they log in to."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import psycopg
import pytest

from core.security.verifier import read_verifier
from tests.conftest import StartGateway, free_port
from tests.loaded import run

PASSWORD = "Marked4711 häß"
BOTH = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def users(url: str, *arguments: str, password: str = "") -> subprocess.CompletedProcess[str]:
    """As a person types it, the password by a pipe."""
    return subprocess.run(
        [sys.executable, "-m", "penstock", "users", *arguments, "--database-url", url],
        input=password,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "200"},
    )


def listed(url: str) -> dict[str, list[str]]:
    rows = json.loads(users(url, "list", "--json").stdout)
    return {row["user"]: [each["mechanism"] for each in row["mechanisms"]] for row in rows}


def test_users_are_added_listed_and_deleted(database_url: str) -> None:
    assert users(database_url, "list").stdout == "There are no users.\n"
    done = users(database_url, "add", "alice", password=f"{PASSWORD}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "alice may log in with SCRAM-SHA-256 and SCRAM-SHA-512.\n"
    more = ("--mechanism", "SCRAM-SHA-512", "--iterations", "8192")
    assert users(database_url, "add", "bö=b, x", *more, password=PASSWORD).returncode == 0
    assert listed(database_url) == {"alice": BOTH, "bö=b, x": ["SCRAM-SHA-512"]}
    shown = users(database_url, "list").stdout.splitlines()
    assert [line.split() for line in shown] == [
        ["User", "Mechanisms", "(iterations)"],
        ["alice", "SCRAM-SHA-256", "(4096),", "SCRAM-SHA-512", "(4096)"],
        ["bö=b,", "x", "SCRAM-SHA-512", "(8192)"],
    ]
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT verifier FROM scram_credential").fetchall()
    verifiers = [read_verifier(text) for (text,) in rows]
    assert all(each is not None and each.is_of(PASSWORD) for each in verifiers)
    assert len({each.salt for each in verifiers if each}) == 3
    assert users(database_url, "delete", "alice").stdout == "Deleted alice.\n"
    assert list(listed(database_url)) == ["bö=b, x"]


def test_a_new_password_takes_the_place_of_all_old_ones(database_url: str) -> None:
    users(database_url, "add", "alice", password="old")
    users(database_url, "add", "alice", "--mechanism", "SCRAM-SHA-256", password="new")
    assert listed(database_url) == {"alice": ["SCRAM-SHA-256"]}


@pytest.mark.parametrize(
    ("arguments", "password", "code", "sentence"),
    [
        (("delete", "alise"), "", 1, "There is no user alise. Did you mean alice?"),
        (("add", ""), "x", 2, "Username must not be empty."),
        (("add", "x" * 1001), "x", 2, "Username must not be longer than 1000 bytes."),
        (("add", "x", "--iterations", "4095"), "x", 2, "Too few iterations."),
        (("add", "x", "--iterations", "16385"), "x", 2, "Too many iterations."),
        (
            ("add", "x", "--mechanism", "PLAIN"),
            "x",
            2,
            "There is no mechanism PLAIN: name SCRAM-SHA-256 or SCRAM-SHA-512.",
        ),
        (("add", "x"), "", 2, "The password must not be empty, or contain NUL."),
        (("add", "x"), "\n", 2, "The password must not be empty, or contain NUL."),
    ],
)
def test_what_is_wrong_is_one_sentence(
    database_url: str, arguments: tuple[str, ...], password: str, code: int, sentence: str
) -> None:
    if code == 1:
        users(database_url, "add", "alice", password="x")
    done = users(database_url, *arguments, password=password)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", f"{sentence}\n")


def test_no_database() -> None:
    url = "postgresql://x:Marked471@127.0.0.1:1/x"
    done = run("users", "list", "--database-url", url, environment=dict(os.environ))
    assert done.returncode == 2
    assert done.stderr.startswith("The database cannot be used (")
    assert "Marked471" not in done.stderr


def test_a_running_broker_lets_a_new_user_in(
    database_url: str, start_gateway: StartGateway
) -> None:
    """And shows what to type first; nothing that it writes has the password."""
    from confluent_kafka.admin import AdminClient

    opened, asks = free_port(), free_port()
    made = start_gateway(
        f"--override=listeners=PLAINTEXT://127.0.0.1:{opened},SASL_PLAINTEXT://127.0.0.1:{asks}",
        "--override=sasl.enabled.mechanisms=PLAIN",
        *("--log-level", "debug"),
        database_url=database_url,
        port=opened,
    )
    users(database_url, "add", "alice", password=PASSWORD)
    settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    settings |= {"sasl.username": "alice", "sasl.password": PASSWORD, "log_level": 0}
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{asks}", **settings})
    assert admin.list_topics(timeout=30).brokers
    assert made.stop() == 0
    assert "Marked4711" not in made.log()
    assert "open_to_others" not in made.log()

"""Users as rows: read, changed by brokers and by psql, and what nobody can log in with."""

from __future__ import annotations

import traceback

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.ports.users import StoredUsers
from core.security.credentials import Credential, CredentialChanges
from core.security.verifier import ScramMechanism, Verifier
from storage import users as users_module
from storage.connection.pool import Database
from storage.users import UserRefused, UserStore, delete_user, put_user, read_users
from tests.storage.conftest import Log

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ALICE = Verifier.of_password(SHA_256, b"salt", 4096, "wonderland")
ALICE_512 = Verifier.of_password(SHA_512, b"salt", 4096, "wonderland")
BOB = Verifier.of_password(SHA_256, b"pepper", 8192, "builder")


@pytest.fixture
def store(log: Log) -> UserStore:
    return UserStore(log.database)


async def alter(store: UserStore, changes: CredentialChanges) -> set[Credential]:
    """Stores them, whoever was there before; tells who."""
    before: set[Credential] = set()

    def decide(existing: object) -> CredentialChanges:
        before.update(existing)  # type: ignore[call-overload]
        return changes

    names = [name for name, _ in (*changes.deletions, *changes.upserts)]
    await store.alter(names, decide)
    return before


async def read(store: UserStore, known: str | None = None) -> StoredUsers:
    found = await store.read(known)
    assert found is not None
    return found


async def test_there_are_none_from_the_start(store: UserStore) -> None:
    found = await read(store)
    assert (dict(found.users), found.unusable, len(found.secret)) == ({}, (), 16)
    assert await store.read(found.version) is None
    assert (await read(store)).secret == found.secret


async def test_what_is_put_is_read(store: UserStore) -> None:
    upserts = (("bob", BOB), ("alice", ALICE), ("bö=b,\t𝄞", ALICE_512))
    assert await alter(store, CredentialChanges(upserts=upserts)) == set()
    await alter(store, CredentialChanges(upserts=(("alice", ALICE_512),)))
    found = await read(store)
    assert found.users == {"alice": [ALICE, ALICE_512], "bob": [BOB], "bö=b,\t𝄞": [ALICE_512]}
    changed = CredentialChanges((("alice", SHA_256),), (("bob", ALICE),))
    assert await alter(store, changed) == {
        ("alice", SHA_256),
        ("alice", SHA_512),
        ("bob", SHA_256),
    }
    assert (await read(store)).users == {
        "alice": [ALICE_512],
        "bob": [ALICE],
        "bö=b,\t𝄞": [ALICE_512],
    }


async def test_every_change_is_another_version(store: UserStore, log: Log) -> None:
    """Also psql's, of which nobody tells."""
    versions = [(await read(store)).version]
    for statement in (
        f"INSERT INTO scram_credential (user_name, verifier) VALUES ('alice', '{ALICE.text}')",
        f"INSERT INTO scram_credential (user_name, verifier) VALUES ('bob', '{BOB.text}')",
        "UPDATE scram_credential SET user_name = 'carol' WHERE user_name = 'bob'",
        f"UPDATE scram_credential SET verifier = '{ALICE_512.text}' WHERE user_name = 'carol'",
        "DELETE FROM scram_credential WHERE user_name = 'alice'",
        "TRUNCATE scram_credential",
    ):
        with psycopg.connect(log.database.url) as connection:
            connection.execute(statement.encode())
        versions.append((await read(store, versions[-1])).version)
    assert len(set(versions)) == len(versions) - 1
    assert versions[0] == versions[-1]


async def test_many_users_are_read_by_pages(
    store: UserStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users_module, "_PAGE", 3)
    names = [f"user-{number}" for number in range(10)]
    await alter(store, CredentialChanges(upserts=tuple((each, ALICE) for each in names)))
    await alter(store, CredentialChanges(upserts=tuple((each, ALICE_512) for each in names[::2])))
    found = (await read(store)).users
    assert found == {
        each: [ALICE, ALICE_512] if number % 2 == 0 else [ALICE]
        for number, each in enumerate(names)
    }


async def test_a_roles_password_is_copied_with_one_insert(store: UserStore, log: Log) -> None:
    with psycopg.connect(log.database.url) as connection:
        connection.execute("CREATE ROLE penstock_alice PASSWORD 'wonderland'")
        connection.execute(
            "INSERT INTO scram_credential (user_name, verifier)"
            " SELECT rolname, rolpassword FROM pg_authid WHERE rolname = 'penstock_alice'"
        )
        connection.execute("DROP ROLE penstock_alice")
    [verifier] = (await read(store)).users["penstock_alice"]
    assert (verifier.mechanism, verifier.iterations) == (SHA_256, 4096)
    assert verifier.is_of("wonderland")


@pytest.mark.parametrize("text", ["", "wonderland", "md5" + "0" * 32, "SCRAM-SHA-1$4096:a$b:c"])
def test_what_is_no_verifier_is_not_stored(log: Log, text: str) -> None:
    with psycopg.connect(log.database.url) as connection, pytest.raises(psycopg.IntegrityError):
        connection.execute(
            "INSERT INTO scram_credential (user_name, verifier) VALUES ('x', %s)", [text]
        )


async def test_what_nobody_can_log_in_with_is_named(store: UserStore, log: Log) -> None:
    weak = ALICE.text.replace("4096", "4095")
    with psycopg.connect(log.database.url) as connection:
        connection.execute(
            "INSERT INTO scram_credential (user_name, verifier) VALUES ('weak', %s)", [weak]
        )
    found = await read(store)
    assert (dict(found.users), found.unusable) == ({}, ("weak",))


async def test_people_are_shown_no_secret(store: UserStore, log: Log) -> None:
    await alter(store, CredentialChanges(upserts=(("alice", ALICE_512), ("bob", BOB))))
    rows = log.rows("SELECT user_name, mechanism, iterations FROM v_user")
    assert rows == [("alice", "SCRAM-SHA-512", 4096), ("bob", "SCRAM-SHA-256", 8192)]
    [(shown,)] = log.rows("SELECT string_agg(v::text, '') FROM v_user v")
    for verifier in (ALICE_512, BOB):
        for secret in verifier.text.replace(":", "$").split("$")[2:]:
            assert secret not in shown


async def test_a_refused_statement_does_not_tell_the_verifier(store: UserStore, log: Log) -> None:
    with psycopg.connect(log.database.url) as connection:
        connection.execute("ALTER TABLE scram_credential RENAME TO elsewhere")
    with pytest.raises(Exception, match="scram_credential") as raised:
        await store.alter(["x"], lambda _: CredentialChanges(upserts=(("x", ALICE),)))
    with psycopg.connect(log.database.url) as connection:
        connection.execute("ALTER TABLE elsewhere RENAME TO scram_credential")
        connection.execute("ALTER TABLE scram_credential ADD CHECK (user_name <> 'x')")
    with pytest.raises(UserRefused, match="violates check") as refused:
        await store.alter(["x"], lambda _: CredentialChanges(upserts=(("x", ALICE),)))
    shown = "".join(
        line for each in (raised, refused) for line in traceback.format_exception(each.value)
    )
    for secret in ALICE.text.replace(":", "$").split("$")[2:]:
        assert secret not in shown


# --- the command line's ---


async def test_the_command_line_gives_a_user_these_verifiers_alone(
    store: UserStore, log: Log
) -> None:
    url = log.database.url
    put_user(url, "alice", [ALICE, ALICE_512])
    put_user(url, "bob", [BOB])
    assert [(each.user, each.mechanism, each.iterations) for each in read_users(url)] == [
        ("alice", "SCRAM-SHA-256", 4096),
        ("alice", "SCRAM-SHA-512", 4096),
        ("bob", "SCRAM-SHA-256", 8192),
    ]
    put_user(url, "alice", [ALICE_512])
    assert (await read(store)).users == {"alice": [ALICE_512], "bob": [BOB]}
    assert (delete_user(url, "alice"), delete_user(url, "alice")) == (True, False)
    assert list((await read(store)).users) == ["bob"]


async def test_no_database() -> None:
    url = "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"
    database = Database(url)
    with pytest.raises(StoreUnavailable):
        await UserStore(database).read(None)
    await database.close()
    with pytest.raises(StoreUnavailable):
        read_users(url)

"""Users as a broker knows them: fresh, or nobody new is let in; slow work beside the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from core.ports.log import StoreUnavailable
from core.security.credentials import CredentialChanges
from core.security.verifier import ScramMechanism, Shape, Verifier
from gateway.runtime import users as module
from gateway.runtime.users import Users, shown
from storage.connection.pool import Database
from storage.users import UserStore

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
ALICE = Verifier.of_password(SHA_256, b"salt", 4096, "wonderland")
NOWHERE = "postgresql://penstock@127.0.0.1:1/penstock?connect_timeout=1"


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[UserStore]:
    database = Database(database_url)
    yield UserStore(database)
    await database.close()


async def put(store: UserStore, *upserts: tuple[str, Verifier]) -> None:
    await store.alter([], lambda _: CredentialChanges(upserts=upserts))


async def test_whoever_watches_is_told_of_changes_that_nobody_tells_of(store: UserStore) -> None:
    users = Users(store, 30)
    changed = asyncio.Event()
    running = asyncio.create_task(users.run())
    await asyncio.sleep(0.05)
    assert not users.is_current, "nobody has asked for it"
    users.watch(changed.set)
    async with asyncio.timeout(30):
        await changed.wait()
        changed.clear()
        await put(store, ("alice", ALICE))
        await changed.wait()
    assert users.find("alice", SHA_256) == ALICE
    assert users.find("alice", SHA_512) is users.find_any("bob") is None
    assert users.is_current
    running.cancel()


async def test_what_is_read_holds_as_long_as_a_session(store: UserStore) -> None:
    users = Users(store, 3.0)  # it counts from before the read, which a busy machine makes long
    await users.ensure_current()
    assert users.is_current
    await asyncio.sleep(3.1)
    assert not users.is_current
    await users.ensure_current()
    assert users.is_current


async def test_without_a_database_nobody_is_known_for_certain() -> None:
    database = Database(NOWHERE)
    users = Users(UserStore(database), 30)
    with pytest.raises(StoreUnavailable):
        await users.ensure_current()
    users.watch(lambda: None)
    with capture_logs() as logs:
        running = asyncio.create_task(users.run())
        async with asyncio.timeout(30):
            while not any(each["log_level"] == "warning" for each in logs):
                await asyncio.sleep(0.01)
        await asyncio.sleep(1.5)
        running.cancel()
    warned = [each for each in logs if each["log_level"] == "warning"]
    assert [each["event"] for each in warned] == ["users_not_read"], "once, however long it lasts"
    await database.close()


async def test_a_check_leaves_the_loop_alone_and_few_run_at_once(
    store: UserStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most = 0, 0

    def counted(self: Verifier, password: str) -> bool:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return password == "right"

    monkeypatch.setattr(Verifier, "is_of", counted)
    users = Users(store, 30)
    checks = [
        asyncio.create_task(users.is_password(ALICE, "right" if number % 2 else "wrong"))
        for number in range(20)
    ]
    turns = 0
    while not all(each.done() for each in checks):
        turns += 1
        await asyncio.sleep(0.001)
    assert [each.result() for each in checks] == [False, True] * 10
    assert most == module.CHECKS_AT_ONCE
    assert turns > 20
    await users.close()


async def test_whoever_has_gone_is_not_checked(
    store: UserStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr(
        Verifier, "is_of", lambda self, password: checked.append(password) or time.sleep(0.1)
    )
    users = Users(store, 30)
    checks = [asyncio.create_task(users.is_password(ALICE, str(n))) for n in range(6)]
    await asyncio.sleep(0.02)
    for each in checks[2:]:
        each.cancel()
    await asyncio.wait(checks)
    assert checked == ["0", "1"]
    await users.close()


async def test_a_mock_has_the_usual_shape(store: UserStore) -> None:
    kafkas = Verifier.of_password(SHA_256, b"1hjgsk5fzy2m0b9qa7rcx3vedw", 8192, "x")
    await put(store, ("alice", kafkas), ("bob", kafkas), ("carol", ALICE))
    users = Users(store, 30)
    await users.refresh()
    assert Shape.of(users.mock("nobody", SHA_256)) == Shape(26, 8192, is_base_36=True)
    assert Shape.of(users.mock("nobody", SHA_512)) == Shape()
    assert users.mock("nobody", SHA_256) == users.mock("nobody", SHA_256)


async def test_a_mock_costs_as_much_as_most_checks(store: UserStore) -> None:
    users = Users(store, 30)
    await users.refresh()
    assert users.mock_any("nobody").mechanism is SHA_256
    slow = Verifier.of_password(SHA_512, b"salt", 8192, "x")
    await put(store, ("alice", slow), ("bob", slow), ("carol", ALICE))
    await users.refresh()
    mock = users.mock_any("nobody")
    assert (mock.mechanism, mock.iterations) == (SHA_512, 8192)
    await put(store, ("alice", ALICE), ("bob", ALICE))
    await users.refresh()
    assert users.mock_any("nobody").mechanism is SHA_256


async def test_an_unusable_verifier_is_warned_of_once(store: UserStore) -> None:
    weak = Verifier(SHA_256, 1000, ALICE.salt, ALICE.stored_key, ALICE.server_key)
    await put(store, ("alice", weak))
    users = Users(store, 30)
    with capture_logs() as logs:
        await users.refresh()
        await users.refresh()
    assert [(each["event"], each["user"]) for each in logs] == [("user_unusable", "alice")]
    assert users.find_any("alice") is None


def test_a_name_in_the_log_is_short_and_one_line() -> None:
    assert shown("bö=b, x") == "bö=b, x"
    assert shown("a\nlevel=info\t\x1b[0m\u2028") == "a\\nlevel=info\\t\\x1b[0m\\u2028"
    assert len(shown("x" * 32_000)) == 101

"""gateway.web.introductions: what brokers tell each other of who asks, and what nobody else can."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator

import pytest

from core.security.principal import Caller, Principal
from gateway.runtime.users import Users
from gateway.web.introductions import Introductions
from storage.connection.pool import Database
from storage.users import UserStore

ALICE = Caller(Principal("alice, ß"), "10.0.0.7")
BY_PROXY = Caller(Principal("alice"), "0:0:0:0:0:0:0:1", Principal("proxy"))
OF = ("GET", "/admin/v2/tenants?x=1")


@pytest.fixture
async def users(database_url: str) -> AsyncIterator[Users]:
    database = Database(database_url)
    yield Users(UserStore(database), 30)
    await database.close()


@pytest.mark.parametrize("caller", [ALICE, BY_PROXY], ids=["plain", "proxy"])
async def test_another_broker_hears_who_asks(
    users: Users, database_url: str, caller: Caller
) -> None:
    said = await Introductions(users).write(caller, *OF)
    assert said.isascii()
    database = Database(database_url)
    other = Introductions(Users(UserStore(database), 30))
    assert await other.read(said, *OF) == caller
    await database.close()


async def test_it_is_of_one_request_and_of_now(users: Users) -> None:
    said = await Introductions(users).write(ALICE, *OF)
    assert await Introductions(users).read(said, "DELETE", OF[1]) is None
    assert await Introductions(users).read(said, "GET", "/admin/v2/tenants") is None
    for ahead_s, is_good in ((50, True), (-50, True), (70, False), (-70, False)):
        late = Introductions(users, lambda ahead_s=ahead_s: time.time() + ahead_s)
        assert (await late.read(said, *OF) == ALICE) == is_good


async def test_nobody_else_can_write_one(users: Users) -> None:
    ours = Introductions(users)
    text, _, signature = (await ours.write(ALICE, *OF)).partition(".")
    admin = ["admin", "10.0.0.7", None, time.time(), *OF]
    forged = base64.urlsafe_b64encode(json.dumps(admin).encode()).decode()
    for said in (
        "",
        ".",
        text,
        f"{text}.",
        f"{forged}.{signature}",
        f"{text}.{signature[:-1]}",
        f"{text}.{signature.upper()}",
        f"ß.{signature}",
        f"{text}.ß",
    ):
        assert await ours.read(said, *OF) is None, said

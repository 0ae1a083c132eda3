"""gateway.console.door: what another broker says of who asks there, where nobody logs in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request

from core.security.principal import ANONYMOUS, Caller, java_host
from gateway.console.door import Door
from gateway.runtime.users import Users
from gateway.web.api import Endpoint, Refused
from gateway.web.call import Call
from gateway.web.introductions import HEADER, Introductions
from storage.connection.pool import Database
from storage.users import UserStore


@pytest.fixture
async def introductions(database_url: str) -> AsyncIterator[Introductions]:
    database = Database(database_url)
    yield Introductions(Users(UserStore(database), 30))
    await database.close()


def call(peer: str, **headers: str) -> Call[Any]:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/group/delete",
        "query_string": b"id=g",
        "headers": raw,
        "client": (peer, 5000),
    }
    return Call(Request(scope), None, Caller(ANONYMOUS, java_host(f"{peer}:5000")))


async def answer(introductions: Introductions, asked: Call[Any]) -> Refused | None:
    door = Door(introductions, is_guarded=False)
    return await door.refuse(asked, Endpoint("POST", "/group/delete", lambda _: answer))  # type: ignore[arg-type]


async def test_this_machine_is_let_in_by_its_own_names(introductions: Introductions) -> None:
    assert await answer(introductions, call("127.0.0.1", host="localhost:8080")) is None
    assert await answer(introductions, call("127.0.0.1", host="rebound.example:8080")) is not None
    assert await answer(introductions, call("10.0.0.7", host="localhost:8080")) is not None


async def test_a_broker_of_another_host_asks_for_whom_it_has_let_in(
    introductions: Introductions,
) -> None:
    caller = Caller(ANONYMOUS, "127.0.0.1")
    said = await introductions.write(caller, "POST", "/group/delete?id=g")
    asked = call("10.0.0.7", host="10.0.0.8:8080", **{HEADER: said})
    assert await answer(introductions, asked) is None
    assert asked.caller == caller
    other = await introductions.write(caller, "POST", "/group/delete?id=another")
    for wrong in (other, said[:-1], ""):
        refused = await answer(introductions, call("10.0.0.7", host="x", **{HEADER: wrong}))
        assert refused == Refused(403, "No broker has said so")

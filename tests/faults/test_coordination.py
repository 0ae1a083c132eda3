"""When a fault test of groups may be given up: for one client that locked itself up, and once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.faults import coordination

pytestmark = pytest.mark.fault


class Client:
    """Of a member, as far as it is looked at here."""

    def __init__(self, *, is_stuck: bool) -> None:
        self._is_stuck = is_stuck

    def is_stuck(self) -> bool:
        return self._is_stuck


@pytest.fixture(autouse=True)
def none_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordination, "_locked_up", [])


@pytest.mark.parametrize(
    ("stuck", "is_one"), [([0, 0, 0], False), ([0, 1, 0], True), ([1, 1, 0], False)]
)
def test_one_client_alone_is_locked_up(stuck: Sequence[int], is_one: bool) -> None:
    members: list[Any] = [Client(is_stuck=bool(each)) for each in stuck]
    assert coordination.is_locked_up(members) is is_one


def test_a_second_one_in_a_session_fails() -> None:
    with pytest.raises(pytest.xfail.Exception, match="locked itself up"):
        coordination.give_up(AssertionError("not within 60 s: a"))
    with pytest.raises(AssertionError, match=r"again and again.*60 s: a.*60 s: b"):
        coordination.give_up(AssertionError("not within 60 s: b"))

"""A handler whose database is away answers in its own shape; other failures stay failures."""

from typing import Any

import pytest

from core.ports.log import CommitUnknown, StoreUnavailable
from gateway.kafka.unavailable import when_unavailable


@when_unavailable(lambda request, ctx: f"try {request} again")
async def handler(request: Any, ctx: Any) -> str:
    if isinstance(request, Exception):
        raise request
    return "done"


async def test_answer_of_the_handler_passes() -> None:
    assert await handler(1, None) == "done"


@pytest.mark.parametrize("failure", [StoreUnavailable("gone"), CommitUnknown("gone")])
async def test_lost_database_is_answered(failure: StoreUnavailable) -> None:
    assert await handler(failure, None) == "try gone again"


async def test_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await handler(ZeroDivisionError(), None)

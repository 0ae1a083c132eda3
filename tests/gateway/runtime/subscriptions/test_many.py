"""Very many consumers of one subscription."""

from __future__ import annotations

from typing import Any

import pytest

from core.subscription.values import SubscriptionType
from tests.gateway.runtime.subscriptions.test_subscriptions import make, until

__all__ = ["make"]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_thousands_of_consumers_share(make: Any, kind: SubscriptionType) -> None:
    broker = await make(session_timeout_s=600.0)  # nobody renews it meanwhile
    partition = await broker.topic()
    readers = [await broker.subscribe(partition, kind) for _ in range(2_000)]
    await broker.append(partition, 3_000)
    await until(lambda: sum(len(each.given) for each in readers) == 3_000)
    for each in readers:
        assert each.member is not None
        each.member.leave()
    again = await broker.subscribe(partition, kind, permits=10_000)
    await until(lambda: len(again.given) == 3_000)
    assert again.offsets == list(range(3_000))

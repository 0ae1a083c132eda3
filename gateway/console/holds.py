"""Where open transactions hold up readers of committed data, as who looks may see it.

Knows no page.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from gateway.console.group_view import hidden

if TYPE_CHECKING:
    from core.group.progress import HeldPartition
    from gateway.console.visit import Visit


async def held_in(visit: Visit, topics: Collection[str]) -> list[HeldPartition]:
    """The partitions of these topics where one does, each with the oldest. Raises
    StoreUnavailable."""
    found = await visit.runtime.console.groups.held(topics)
    return [
        each if visit.may_see_transaction(each.transactional_id) else hidden(each) for each in found
    ]

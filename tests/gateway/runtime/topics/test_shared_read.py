"""Many who ask at once share a read, and nobody gets an answer older than the question."""

import asyncio
from collections.abc import Collection

import pytest

from gateway.runtime.topics.shared_read import SharedRead


class Library:
    """Something to read from, slowly."""

    def __init__(self) -> None:
        self.shelf = {"a": 1, "b": 2}
        self.reads: list[set[str]] = []
        self.fails = False

    async def read(self, keys: Collection[str]) -> dict[str, int]:
        self.reads.append(set(keys))
        found = {key: self.shelf[key] for key in keys if key in self.shelf}
        await asyncio.sleep(0.02)
        if self.fails:
            raise LookupError
        return found


async def test_those_who_ask_during_a_read_share_the_next() -> None:
    library = Library()
    shared = SharedRead(library.read)
    first = asyncio.create_task(shared.find(["a"]))
    await asyncio.sleep(0.01)
    library.shelf["c"] = 3
    later = await asyncio.gather(*(shared.find([key]) for key in ("a", "c", "c", "none")))
    assert await first == {"a": 1}
    assert later == [{"a": 1}, {"c": 3}, {"c": 3}, {}]
    assert library.reads == [{"a"}, {"a", "c", "none"}]


async def test_failure_is_everybodys_and_does_not_last() -> None:
    library = Library()
    shared = SharedRead(library.read)
    library.fails = True
    results = await asyncio.gather(*(shared.find(["a"]) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [LookupError] * 3
    library.fails = False
    assert await shared.find(["a"]) == {"a": 1}


async def test_one_who_gives_up_does_not_stop_the_others() -> None:
    library = Library()
    shared = SharedRead(library.read)
    hasty = asyncio.create_task(shared.find(["a"]))
    patient = asyncio.create_task(shared.find(["b"]))
    await asyncio.sleep(0)
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    assert await patient == {"b": 2}

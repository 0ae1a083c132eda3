"""Sorted single offsets in chunks: adding, removing and finding stay cheap with 200,000 of them."""

from bisect import bisect_left, bisect_right, insort

_CHUNK = 512


class SortedOffsets:
    """Each offset once. Most come at the end, in order; they may go anywhere."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._chunks: list[list[int]] = []

    def add(self, offset: int) -> None:
        """Puts in an offset that is not there."""
        chunks = self._chunks
        if not chunks:
            self._firsts.append(offset)
            chunks.append([offset])
            return
        c = len(chunks) - 1
        chunk = chunks[c]
        if offset > chunk[-1]:
            chunk.append(offset)
        else:
            c = max(bisect_right(self._firsts, offset) - 1, 0)
            chunk = chunks[c]
            insort(chunk, offset)
            self._firsts[c] = chunk[0]
        if len(chunk) > 2 * _CHUNK:
            chunks.insert(c + 1, chunk[_CHUNK:])
            self._firsts.insert(c + 1, chunk[_CHUNK])
            del chunk[_CHUNK:]

    def remove(self, offset: int) -> None:
        """Takes out an offset that is there."""
        c = bisect_right(self._firsts, offset) - 1
        chunk = self._chunks[c]
        i = bisect_left(chunk, offset)
        del chunk[i]
        if not chunk:
            del self._chunks[c], self._firsts[c]
        elif not i:
            self._firsts[c] = chunk[0]

    def within(self, start: int, end: int) -> list[int]:
        """Those from `start` on and below `end`, and the nearest one below `start`."""
        c = max(bisect_right(self._firsts, start) - 1, 0)
        found: list[int] = []
        while c < len(self._chunks) and self._firsts[c] < end:
            chunk = self._chunks[c]
            i = max(bisect_right(chunk, start) - 1, 0) if not found else 0
            found += chunk[i : bisect_left(chunk, end)]
            c += 1
        return found

    def clear(self) -> None:
        """Takes all out."""
        self._firsts.clear()
        self._chunks.clear()

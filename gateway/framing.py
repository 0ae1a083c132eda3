"""Cuts a stream of bytes into frames: four bytes of size, then that many bytes.

Kafka and Pulsar both frame so. Sans-IO: it lends the buffer to read into, and its caller says how
much arrived. Knows no sockets, loops, protocols or messages. Every frame owns its memory, so
records may be sliced from it without copying and live as long as their request does.
"""

from struct import Struct
from typing import Final

_SIZE: Final = Struct(">i")
_SIZE_BYTES: Final = _SIZE.size
# A read goes here unless a large frame is half received. All connections of a thread share it: one
# call of the event loop fills and empties it, so idle connections own no buffer.
SCRATCH_SIZE: Final = 128 * 1024
# From this many missing bytes on, a frame is read straight into its own memory.
_DIRECT_FROM: Final = 16 * 1024
# Memory grows with the bytes that have arrived, never with the announced size.
_GROWTH: Final = 4


class FrameError(Exception):
    """The stream cannot be cut any further; the connection must be closed."""


class NegativeLength(FrameError):
    """A frame announces a negative size."""


class FrameTooLarge(FrameError):
    """A frame announces more than its front-end's limit (Kafka: `socket.request.max.bytes`)."""


def make_scratch() -> memoryview:
    """The buffer that all framers of an event loop share."""
    return memoryview(bytearray(SCRATCH_SIZE))


class Framer:
    """One connection's incoming stream.

    Call `get_buffer`, fill the buffer, call `buffer_updated`, which returns the completed frames.
    After a bad size `error` is set (the frames before it are still good) and nothing more is cut.
    """

    __slots__ = ("_body", "_direct", "_filled", "_head", "_scratch", "_size", "error", "max_bytes")

    def __init__(self, max_bytes: int, scratch: memoryview) -> None:
        self.max_bytes = max_bytes  # may change; holds for frames whose size has not come
        self._scratch = scratch
        self._head = b""  # the first bytes of a size
        self._body = bytearray()  # of the frame under way: `_filled` bytes of `_size`
        self._size = 0
        self._filled = 0
        self._direct = False
        self.error: FrameError | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of a frame that is not complete yet, as allocated."""
        return len(self._body) + len(self._head)

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._size or self._head)

    def get_buffer(self) -> memoryview:
        """Where the next bytes go: never empty, valid until `buffer_updated`."""
        self._direct = self._size - self._filled >= _DIRECT_FROM
        if not self._direct:
            return self._scratch
        self._make_room(1)
        return memoryview(self._body)[self._filled :]

    def buffer_updated(self, count: int) -> list[memoryview]:
        """`count` bytes were put into the buffer handed out last: the frames now complete."""
        if self._direct:
            self._filled += count
            return [self._complete()] if self._filled == self._size else []
        return self.feed(self._scratch[:count])

    def feed(self, chunk: memoryview) -> list[memoryview]:
        """Copies `chunk`; returns the frames that it completes."""
        frames: list[memoryview] = []
        if self._head:
            chunk = memoryview(self._head + bytes(chunk))
            self._head = b""
        pos, end = 0, len(chunk)
        while self.error is None and (pos < end or (self._size and self._filled == self._size)):
            if self._size:
                take = min(self._size - self._filled, end - pos)
                self._make_room(take)
                self._body[self._filled : self._filled + take] = chunk[pos : pos + take]
                self._filled += take
                pos += take
                if self._filled == self._size:
                    frames.append(self._complete())
                continue
            if end - pos < _SIZE_BYTES:
                self._head = bytes(chunk[pos:])
                break
            (size,) = _SIZE.unpack_from(chunk, pos)
            pos += _SIZE_BYTES
            if size < 0:
                self.error = NegativeLength(f"a frame announces {size} bytes")
            elif size > self.max_bytes:
                reason = f"a frame announces {size} bytes; the limit is {self.max_bytes}"
                self.error = FrameTooLarge(reason)
            elif size <= end - pos:
                frames.append(memoryview(bytes(chunk[pos : pos + size])))
                pos += size
            else:
                self._size = size
        return frames

    def _make_room(self, count: int) -> None:
        """Let the body hold `count` bytes more, with some to spare."""
        needed = self._filled + count
        if needed > len(self._body):
            room = min(self._size, max(_GROWTH * needed, _DIRECT_FROM))
            # A new object: the old one cannot grow while an event loop holds its buffer.
            body = bytearray(room)
            body[: self._filled] = memoryview(self._body)[: self._filled]
            self._body = body

    def _complete(self) -> memoryview:
        frame = memoryview(self._body)
        self._body = bytearray()
        self._size = self._filled = 0
        return frame

"""Any chunking of a stream gives the same frames, and the same end where a size is impossible."""

import random
import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.framing import FrameError, Framer, make_scratch

MAX_BYTES = 300_000
SCRATCH = make_scratch()

# Sizes around the thresholds: within one read, read straight, grown, larger than the scratch.
sizes = st.one_of(
    st.integers(0, 40),
    st.integers(16_000, 17_000),
    st.integers(60_000, 70_000),
    st.integers(131_000, 132_000),
    st.just(MAX_BYTES),
)


def contents(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def read(stream: bytes, chunks: random.Random, most: int) -> tuple[list[bytes], FrameError | None]:
    """What a framer makes of `stream` when a socket delivers up to `most` bytes a time."""
    framer = Framer(MAX_BYTES, SCRATCH)
    frames: list[memoryview] = []
    pos = 0
    while pos < len(stream) and framer.error is None:
        buffer = framer.get_buffer()
        assert len(buffer) > 0
        count = min(len(buffer), len(stream) - pos, chunks.randint(1, most))
        buffer[:count] = stream[pos : pos + count]
        frames += framer.buffer_updated(count)
        pos += count
    return [bytes(frame) for frame in frames], framer.error


@settings(deadline=None)
@given(
    st.lists(sizes, max_size=8),
    st.sampled_from([None, -1, -(2**31), MAX_BYTES + 1, 2**31 - 1]),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 7, 1_000, 40_000, 1_000_000]),
)
def test_any_chunking_gives_the_same_frames(
    sizes: list[int], impossible: int | None, chunks: random.Random, most: int
) -> None:
    if most < 1_000:
        sizes = [size for size in sizes if size < 1_000]
    bodies = [contents(size) for size in sizes]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    if impossible is not None:
        stream += struct.pack(">i", impossible) + b"never read"
    frames, error = read(stream, chunks, most)
    assert frames == bodies
    assert (error is None) == (impossible is None)
    if error is not None:
        assert str(impossible) in str(error)


@settings(deadline=None, max_examples=50)
@given(sizes, st.integers(0, 400_000))
def test_a_cut_stream_holds_no_more_than_a_few_times_what_arrived(size: int, arrived: int) -> None:
    framer = Framer(MAX_BYTES, SCRATCH)
    stream = (struct.pack(">i", size) + contents(size))[:arrived]
    pos = 0
    while pos < len(stream):
        buffer = framer.get_buffer()
        count = min(len(buffer), len(stream) - pos)
        buffer[:count] = stream[pos : pos + count]
        framer.buffer_updated(count)
        pos += count
    framer.get_buffer()
    assert framer.held_bytes <= 4 * len(stream) + 16 * 1024 + 4
    assert framer.is_partial == (0 < len(stream) < size + 4)


@settings(deadline=None)
@given(st.lists(st.integers(0, 200), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_frames_keep_their_bytes_while_more_are_read(
    sizes: list[int], chunks: random.Random
) -> None:
    framer = Framer(MAX_BYTES, SCRATCH)
    bodies = [contents(size) for size in sizes]
    stream = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    frames: list[memoryview] = []
    pos = 0
    while pos < len(stream):
        buffer = framer.get_buffer()
        count = min(len(stream) - pos, chunks.randint(1, 300))
        buffer[:count] = stream[pos : pos + count]
        frames += framer.buffer_updated(count)
        buffer[: count + 500] = bytes(count + 500)  # what the next reads will do
        pos += count
    assert frames == bodies

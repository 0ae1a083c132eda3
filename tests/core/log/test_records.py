"""Fields in headers of reserved names: there and back, and nobody else's headers are touched."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.log.records import (
    NO_EXTRAS,
    Chunk,
    Extras,
    Header,
    Record,
    RecordSet,
    extras_as_headers,
    fields_as_headers,
    is_text,
    with_fields_of_headers,
)

NAMES = [
    f"penstock.{name}"
    for name in (
        *("schema_version", "deliver_at", "replicated_from", "chunk", "envelope"),
        *("ordering_key", "bytes_key", "other", "header.0.text.a"),
    )
]
names = st.sampled_from(["a", "b", "", *NAMES]) | st.text(max_size=5)
values = st.none() | st.binary(max_size=20) | st.sampled_from([b"", bytes(8), b"x" * 12])
headers = st.lists(st.tuples(names, values), max_size=6).map(tuple)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
chunks = st.builds(Chunk, st.text(max_size=5), int32, int32, int32)
extras = st.builds(
    Extras,
    schema_version=st.none() | st.binary(max_size=8),
    deliver_at=st.none() | int64,
    replicated_from=st.none() | st.text(max_size=5),
    chunk=st.none() | chunks,
    envelope=st.none() | st.binary(max_size=9),
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    key = draw(st.none() | st.binary(max_size=5))
    return Record(
        key=key,
        value=draw(values),
        headers=draw(headers.filter(lambda each: not each or each[-1][0] not in NAMES)),
        ordering_key=draw(st.none() | st.binary(max_size=5)),
        key_is_text=key is not None and is_text(key) and draw(st.booleans()),
        extras=draw(extras),
    )


def plain(record: Record, written: tuple[Header, ...]) -> Record:
    """The record as a protocol that has but headers has it."""
    key_is_text = record.key is not None and is_text(record.key)
    return Record(record.key, record.value, written, key_is_text=key_is_text)


@given(records())
def test_fields_come_back_out_of_headers(record: Record) -> None:
    assert with_fields_of_headers(plain(record, fields_as_headers(record))) == record


@given(st.none() | st.binary(max_size=3), headers)
def test_any_headers_come_back_out_of_fields(
    key: bytes | None, written: tuple[Header, ...]
) -> None:
    record = with_fields_of_headers(plain(Record(key, b""), written))
    assert fields_as_headers(record) == written


def test_all_fields_in_their_order() -> None:
    record = Record(
        key=b"k",
        value=b"v",
        headers=(("mine", b"1"),),
        ordering_key=b"o",
        extras=Extras(b"\0", 5, "eu", Chunk("u", 1, 3, 30), b"e"),
    )
    assert fields_as_headers(record) == (
        ("mine", b"1"),
        ("penstock.schema_version", b"\0"),
        ("penstock.deliver_at", b"\0\0\0\0\0\0\0\x05"),
        ("penstock.replicated_from", b"eu"),
        ("penstock.chunk", b"\0\0\0\x01\0\0\0\x03\0\0\0\x1eu"),
        ("penstock.envelope", b"e"),
        ("penstock.ordering_key", b"o"),
        ("penstock.bytes_key", b""),
    )


def test_an_ordinary_record_has_no_headers_but_its_own() -> None:
    record = Record(b"k", b"v", (("mine", b"1"),), event_time=5, key_is_text=True)
    assert fields_as_headers(record) == record.headers
    assert extras_as_headers(record) is record
    assert with_fields_of_headers(record) is record


@pytest.mark.parametrize(
    "written",
    [
        (("penstock.ordering_key", b"o"), ("mine", b"1")),  # not behind all others
        (("penstock.deliver_at", b"soon"),),
        (("penstock.replicated_from", b"\xff"),),
        (("penstock.chunk", b"short"),),
        (("penstock.schema_version", None),),
        (("penstock.bytes_key", b"x"),),
        (("penstock.unheard_of", b""),),
    ],
)
def test_what_is_not_ours_stays_a_header(written: tuple[Header, ...]) -> None:
    record = Record(b"k", b"v", written, key_is_text=True)
    assert with_fields_of_headers(record) == record


def test_extras_go_behind_the_headers_alone() -> None:
    record = Record(
        b"k", b"v", (("a", b""),), ordering_key=b"o", extras=Extras(schema_version=b"1")
    )
    moved = extras_as_headers(record)
    assert moved.extras is NO_EXTRAS
    assert moved.ordering_key == b"o"
    assert moved.headers == (("a", b""), ("penstock.schema_version", b"1"))
    assert fields_as_headers(moved) == fields_as_headers(record)


def test_a_part_of_a_set() -> None:
    whole = RecordSet(tuple(Record(None, bytes([n])) for n in range(5)), 7, sequence=40)
    part = whole.part(2, 4)
    assert part == replace(whole, records=whole.records[2:4], sequence=42)
    assert whole.part(0, 5) == whole
    assert replace(whole, sequence=None).part(1, 2).sequence is None


def test_only_an_envelope_is_opaque() -> None:
    opaque = Record(None, b"?", extras=Extras(envelope=b"m"))
    assert RecordSet((opaque, None), 0).is_opaque
    assert not RecordSet((Record(None, b"?"), None), 0).is_opaque

"""Lines of JSON and of text, and the records they are; the codecs that kafka-python lacks."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import codec

from cli.codecs import pack_snappy, unpack_snappy
from cli.records import LineRefused, Record, TextForm, json_line, json_record, text_record


@dataclass
class Consumed:
    """As kafka-python's consumer gives it."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    topic: str = "t"
    partition: int = 2
    offset: int = 7
    timestamp: int = 1000


@given(
    value=st.none() | st.binary() | st.text().map(str.encode),
    key=st.none() | st.binary(),
    headers=st.lists(st.tuples(st.text(), st.binary())),
)
def test_what_is_consumed_can_be_produced(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes]]
) -> None:
    again = json_record(json_line(Consumed(value, key, headers)))
    assert again == Record(value, key, tuple(headers), 2, 1000)


def test_text_is_text_and_the_rest_is_base64() -> None:
    line = json.loads(json_line(Consumed("ä".encode(), b"\xff", [("h", b"\x80"), ("h", b"x")])))
    assert (line["value"], line["key_base64"]) == ("ä", "/w==")
    assert line["headers"] == [{"key": "h", "value_base64": "gA=="}, {"key": "h", "value": "x"}]


def test_values_and_headers_may_be_json() -> None:
    found = json_record(b'{"value": {"a": [1, 2]}, "headers": {"h": "x", "n": 1}}')
    assert found.value == b'{"a":[1,2]}'
    assert found.headers == (("h", b"x"), ("n", b"1"))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[]", "it is not a JSON object"),
        (b"{}", "it has no value"),
        (b'{"value": "a", "vlaue": "b"}', "there is no field 'vlaue'"),
        (b'{"value": "a", "value_base64": "eA=="}', "it has value and value_base64"),
        (b'{"value_base64": "%"}', "value_base64 is not Base64"),
        (b'{"value_base64": 5}', "value_base64 is not Base64"),
        (b'{"value": "a", "partition": -1}', "partition is not a whole number"),
        (b'{"value": "a", "timestamp": true}', "timestamp is not a whole number"),
        (b'{"value": "a", "headers": "x"}', "headers are not like"),
        (b'{"value": "a", "headers": [{"value": "x"}]}', "a header is not like"),
        (b'{"value": "\\ud800"}', "value is not text"),
    ],
)
def test_a_line_that_is_no_record_says_why(line: bytes, why: str) -> None:
    with pytest.raises(LineRefused, match=why):
        json_record(line)


def test_line_of_text_is_split_into_key_and_value() -> None:
    assert text_record(b"a:b:c", b":") == Record(b"b:c", b"a")
    assert text_record(b"\xff", None) == Record(b"\xff")
    with pytest.raises(LineRefused, match="no key separator ':'"):
        text_record(b"abc", b":")


def test_line_shows_the_parts_asked_for() -> None:
    record = Consumed(b"v\xff", None, [("h", b"x")])
    assert TextForm().line(record) == b"v\xff"
    everything = TextForm(timestamps=True, offsets=True, headers=True, keys=True, separator=b"|")
    assert everything.line(record) == b"1000|2:7|h=x|null|v\xff"


@given(st.binary())
def test_snappy_is_what_other_clients_read_and_write(data: bytes) -> None:
    assert codec.snappy_decode(pack_snappy(data)) == data
    assert unpack_snappy(codec.snappy_encode(data, xerial_blocksize=5)) == data
    assert unpack_snappy(codec.snappy_encode(data, xerial_compatible=False)) == data


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (codec.lz4_encode, cramjam.lz4.decompress),
        (codec.zstd_encode, cramjam.zstd.decompress),
    ],
)
def test_lz4_and_zstd_are_the_same_in_both(
    theirs: Callable[[bytes], bytes], ours: Callable[[bytes], bytes]
) -> None:
    assert bytes(ours(theirs(b"abc" * 10_000))) == b"abc" * 10_000

"""OAUTHBEARER's first message, as RFC 7628 and Kafka's OAuthBearerClientInitialResponse have it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.security.oauthbearer import BearerMessage, check_url, read_message

GOOD = [
    (b"n,,\x01auth=Bearer a.b-c_d.e\x01\x01", BearerMessage("a.b-c_d.e")),
    (b"n,a=alice,\x01auth=bearer  abc\x01\x01", BearerMessage("abc", "alice")),
    (b"n,a=a=2Cb=3Dc d,\x01auth=BEARER abc\x01\x01", BearerMessage("abc", "a,b=c d")),
    (
        b"n,,\x01host=h.example\x01auth=Bearer abc\x01traceId=1 2\t3\x01\x01",
        BearerMessage("abc", "", {"host": "h.example", "traceId": "1 2\t3"}),
    ),
]
BAD = [
    b"",
    b"\x01",
    b"n,,\x01\x01",
    b"n,,\x01auth=Bearer abc\x01",
    b"n,,auth=Bearer abc\x01\x01",
    b"n,,\x01auth=Bearer abc\x01\x01\x01",
    b"n,,\x01auth=Bearer abc\x01\x01x",
    b"y,,\x01auth=Bearer abc\x01\x01",
    b"p=tls-unique,,\x01auth=Bearer abc\x01\x01",
    b"n,a=,\x01auth=Bearer abc\x01\x01",
    b"n,a=a,b,\x01auth=Bearer abc\x01\x01",
    b"n,a=a=2Db,\x01auth=Bearer abc\x01\x01",
    b"n,,\x01auth=Basic abc\x01\x01",
    b"n,,\x01auth=Bearer\x01\x01",
    b"n,,\x01auth=Bearer a b\x01\x01",
    b"n,,\x01auth=Bearer a+b/c\x01\x01",
    b"n,,\x01auth=Bearer abc\x01auth=Bearer xyz\x01\x01",
    b"n,,\x01auth=Bearer abc\x01a=1\x01a=2\x01\x01",
    b"n,,\x01auth=Bearer abc\x01a1=1\x01\x01",
    b"n,,\x01auth=Bearer abc\x01a=\x01\x01",
    b"n,,\x01auth=Bearer abc\x01a=\x00\x01\x01",
    "n,a=bö,\x01auth=Bearer abc\x01\x01".encode(),
]


@pytest.mark.parametrize(("message", "found"), GOOD)
def test_a_message_is_read(message: bytes, found: BearerMessage) -> None:
    assert read_message(message) == found


@pytest.mark.parametrize("message", BAD)
def test_what_is_malformed_is_none(message: bytes) -> None:
    assert read_message(message) is None


@given(st.one_of(st.binary(), st.binary().map(lambda rest: b"n,,\x01auth=Bearer " + rest)))
def test_any_bytes_are_a_message_or_none(message: bytes) -> None:
    found = read_message(message)
    assert found is None or found.token.encode() in message


def test_a_long_message_is_read_in_time() -> None:
    pairs = b"".join(b"a%s=%s\x01" % (b"b" * number, b"c" * 300) for number in range(600))
    assert read_message(b"n,,\x01auth=Bearer abc\x01" + pairs + b"\x01") is not None
    assert read_message(b"n,,\x01auth=Bearer abc\x01" + pairs + b"\x00") is None
    assert read_message(b"n,a=" + b"=2C" * 100_000 + b"=") is None


def test_a_token_is_in_no_repr() -> None:
    message = read_message(GOOD[1][0])
    assert message is not None
    assert "abc" not in repr(message)


@pytest.mark.parametrize("url", ["https://a/b", "http://[::1]:8/", "file:///etc/jwks.json"])
def test_urls_of_key_sets(url: str) -> None:
    assert check_url(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/etc/jwks",
        "ftp://a/b",
        "https://",
        "http://a:x/",
        "file://other/etc",
        "http://:8",
        "https://a:b@c/d",
    ],
)
def test_what_is_no_url_of_a_key_set(url: str) -> None:
    assert check_url(url) is not None

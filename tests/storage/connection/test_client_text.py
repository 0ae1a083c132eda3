"""Any text survives; what is written is what PostgreSQL takes, and is read by people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.connection.client_text import key_of, read, read_or_none, written, written_or_none

# NUL and its sign often, side by side with everything else that UTF-8 can say.
TEXT = st.text(
    st.one_of(st.sampled_from("\0␀0\n"), st.characters(exclude_categories=["Cs"])), max_size=20
)


@given(text=TEXT)
def test_any_text_is_read_as_it_was_written(text: str) -> None:
    assert read(written(text)) == text
    assert "\0" not in written(text)


@given(one=TEXT, other=TEXT)
def test_different_texts_are_written_differently(one: str, other: str) -> None:
    assert (written(one) == written(other)) == (one == other)


@pytest.mark.parametrize(
    ("text", "shown"), [("plain", "plain"), ("a\0b", "a␀0b"), ("␀", "␀␀"), ("\\0", "\\0")]
)
def test_what_people_see(text: str, shown: str) -> None:
    assert written(text) == shown


def test_null_stays_null() -> None:
    assert written_or_none(None) is None
    assert read_or_none(None) is None


def test_keys_are_sixteen_bytes_and_never_change() -> None:
    assert key_of("g").hex() == "cd0aa9856147b6c5b4ff2b7dfee5da20"
    assert len(key_of("𝄞" * 8_000)) == 16

"""An expression, and who has subscribed by it, in one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.group.expressions import Viewer, is_of_somebody, read_expression, seen_by
from core.security.principal import Principal

ALICE = Viewer(Principal("alice"), "127.0.0.1")
TEXTS = st.text(min_size=1, max_size=20)


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_both_are_read_again(expression: str, kind: str, name: str, host: str) -> None:
    viewer = Viewer(Principal(name, kind), host)
    assert read_expression(seen_by(expression, viewer)) == (expression, viewer)


@given(TEXTS, TEXTS)
def test_no_two_clients_have_the_same(one: str, other: str) -> None:
    texts = {seen_by("a.*", Viewer(Principal(name), "h")) for name in (one, other)}
    assert len(texts) == len({one, other})


@pytest.mark.parametrize("plain", ["", "a.*", "\x1f", "\x1fa\x1fb\x1fc", "a\x1fb\x1fc\x1fd\x1fe"])
def test_one_without_a_client_stays_as_it_is(plain: str) -> None:
    assert read_expression(plain) == (plain, None)
    assert not is_of_somebody(plain)
    assert is_of_somebody(seen_by("a.*", ALICE))


def test_the_empty_one_ends_a_subscription_whoever_says_so() -> None:
    assert seen_by("", ALICE) == ""

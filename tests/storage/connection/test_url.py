"""storage.connection.url: no part of a password in what is shown of a URL, nor in a refusal."""

import pytest

from core.ports.log import StoreUnavailable
from storage.connection.url import check_url, describe_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@h:1/d", "postgresql://me:***@h:1/d"),
        ("postgresql://me:se%2Fc:ret@h:1,[::1]:2/d", "postgresql://me:***@h:1,[::1]:2/d"),
        ("postgresql://me:sec?ret@h/d", "postgresql://me:***@h/d"),
        ("postgresql://me@h/d", "postgresql://me@h/d"),
        ("postgresql:///d?host=/run&user=me", "postgresql:///d?host=/run&user=me"),
        ("postgresql://h/d?user=me&password=secret", "postgresql://h/d?user=me&password=***"),
        ("postgresql://h/d?password=s@cret&user=b", "postgresql://h/d?password=***&user=b"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    check_url(url)
    assert describe_url(url) == shown


@pytest.mark.parametrize(
    "password", ["se/cret", "1/cret", "se@cret", "se%cret", "[cret", "se cret"]
)
def test_a_password_that_libpq_takes_for_something_else_is_refused(password: str) -> None:
    url = f"postgresql://me:{password}@[::1]:1/d"
    if password == "[cret":
        url = f"postgresql://me:x@{password}/d"
    with pytest.raises(StoreUnavailable) as refusal:
        check_url(url)
    assert "cret" not in str(refusal.value)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize("url", ["postgresql://me:se/cret@h/d", "postgresql://me:se@cret@h/d"])
def test_nothing_is_shown_of_a_url_that_cannot_be_read(url: str) -> None:
    assert "cret" not in describe_url(url)

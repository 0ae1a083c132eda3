"""Tokens that a client gets of an issuer, or of a file."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import pytest

from penstock import tokens
from penstock.tokens import NoToken, TokenSource
from tests.issuer import SECRET, Issuer, serving


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with serving(Issuer()) as made:
        yield made


def refused() -> Never:
    raise ConnectionRefusedError("nobody is there")


def source(issuer: Issuer, secret: str = SECRET, client: str = "robot") -> TokenSource:
    return TokenSource(f"{issuer.url}/token", client, secret, "read")


def test_a_token_is_kept_for_most_of_its_time(issuer: Issuer) -> None:
    of = source(issuer)
    first = of.token()
    together = [threading.Thread(target=of.token) for _ in range(8)]
    for each in together:
        each.start()
    for each in together:
        each.join()
    assert of.token() == first
    assert issuer.asked == ["/token"]
    assert source(issuer, client="other").token() != first


def test_a_token_is_renewed_in_time(issuer: Issuer) -> None:
    issuer.tokens_for_s = 0
    of = source(issuer)
    of.token()
    of.token()
    assert issuer.asked == ["/token"] * 2


@pytest.mark.parametrize("how", ["away", 429, 503, 401])
def test_a_token_is_used_to_its_end_where_there_is_no_other(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch, how: str | int
) -> None:
    began, passed_s = time.monotonic(), 0.0
    clock = SimpleNamespace(monotonic=lambda: began + passed_s, time=time.time)
    monkeypatch.setattr(tokens, "time", clock)
    of = source(issuer)
    first = of.token()
    if how == "away":
        monkeypatch.setattr(tokens, "_connection", lambda *_: refused())
    else:
        issuer.answers["/token"] = (int(how), {}, b"{}")
    passed_s = 0.81 * issuer.tokens_for_s
    assert of.token() == of.token() == first
    if how != "away":
        assert issuer.asked == ["/token"] * 2, "the issuer is left in peace for a while"
    passed_s += 11
    assert of.token() == first
    passed_s = issuer.tokens_for_s - 0.5
    assert of.token() == first
    passed_s = issuer.tokens_for_s + 0.5
    with pytest.raises(NoToken if how == 401 else OSError):
        of.token()
    monkeypatch.undo()
    issuer.answers.clear()
    assert of.token()


def test_a_token_is_renewed_as_soon_as_its_issuer_is_back(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, passed_s = time.monotonic(), 0.0
    clock = SimpleNamespace(monotonic=lambda: began + passed_s, time=time.time)
    monkeypatch.setattr(tokens, "time", clock)
    of = source(issuer)
    first = of.token()
    issuer.answers["/token"] = (503, {}, b"")
    passed_s = 0.81 * issuer.tokens_for_s
    assert of.token() == first
    issuer.answers.clear()
    passed_s += 11
    assert of.token() != first


@pytest.mark.parametrize("told", [{"expires_in": 300}, {}, {"expires_in": "soon"}])
def test_how_long_a_token_lasts_its_issuer_says_or_it_does(
    issuer: Issuer, told: dict[str, object]
) -> None:
    answer = {"access_token": issuer.token(), **told}
    assert 295 < tokens._lifetime_s(issuer.token(), answer) <= 300
    assert tokens._lifetime_s("no.to.ken", {}) == 0


def test_a_name_and_a_secret_may_have_anything_in_them(issuer: Issuer) -> None:
    """`SECRET` has what has to be encoded."""
    assert source(issuer, client="a:b ö%").token()


def test_a_wrong_secret_is_told(issuer: Issuer) -> None:
    with pytest.raises(NoToken, match=r"/token gives no token: invalid_client$") as raised:
        source(issuer, "wrong secret").token()
    assert "wrong secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "error"),
    [("/nothing", NoToken), ("/500", OSError), ("/429", OSError), ("/strange", NoToken)],
)
def test_answers_without_a_token(issuer: Issuer, path: str, error: type[Exception]) -> None:
    issuer.answers["/500"] = (500, {}, b"")
    issuer.answers["/429"] = (429, {}, b"{}")
    issuer.answers["/strange"] = (200, {}, json.dumps({"access_token": 7}).encode())
    with pytest.raises(error):
        TokenSource(issuer.url + path, "a", SECRET).token()


def test_nobody_is_there(free_tcp_port: int) -> None:
    with pytest.raises(OSError, match="refused"):
        TokenSource(f"http://127.0.0.1:{free_tcp_port}/", "a", "b").token()


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    of = TokenSource(file.as_uri())
    with pytest.raises(NoToken, match="No such file"):
        of.token()
    for text in ("one", "two"):
        file.write_text(f"{text}\n")
        assert of.token() == text
    file.write_text(" ")
    with pytest.raises(NoToken, match="is empty"):
        of.token()

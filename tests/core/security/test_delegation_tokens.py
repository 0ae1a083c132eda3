"""Who may make, renew and end a delegation token, and when it ends."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from typing import Final

import pytest

from core.config.types import LONG_MAX
from core.errors import Error, Refusal
from core.security.delegation_tokens import (
    DelegationToken,
    Ended,
    Lifetimes,
    create_token,
    describe_tokens,
    expire_token,
    hmac_of,
    renew_token,
    verifier_of,
)
from core.security.principal import Principal
from core.security.verifier import ScramMechanism

ALICE, BOB, CAROL = map(Principal, ("alice", "bob", "carol"))
LIFETIMES: Final = Lifetimes(max_ms=7_000, expiry_ms=1_000)
NOW: Final = 100_000
TOKEN: Final = DelegationToken("t", ALICE, CAROL, (BOB,), NOW, NOW + 1_000, NOW + 7_000)


def made(max_lifetime_ms: int, *renewers: Principal) -> DelegationToken | Refusal:
    return create_token("t", CAROL, ALICE, renewers, max_lifetime_ms, LIFETIMES, NOW)


@pytest.mark.parametrize(
    ("asked", "expires_in", "max_in"),
    [
        (-1, 1_000, 7_000),
        (0, 1_000, 7_000),
        (500, 500, 500),
        (3_000, 1_000, 3_000),
        (8_000, 1_000, 7_000),
        (LONG_MAX, 1_000, 7_000),
    ],
)
def test_a_new_token_lasts_as_long_as_asked_for_and_allowed(
    asked: int, expires_in: int, max_in: int
) -> None:
    wanted = replace(TOKEN, expires_at_ms=NOW + expires_in, max_at_ms=NOW + max_in)
    assert made(asked, BOB) == wanted


def test_no_end_is_beyond_a_long() -> None:
    token = create_token("t", ALICE, ALICE, (), -1, Lifetimes(LONG_MAX, LONG_MAX), NOW)
    assert isinstance(token, DelegationToken)
    assert (token.expires_at_ms, token.max_at_ms) == (LONG_MAX, LONG_MAX)


@pytest.mark.parametrize(
    ("renewer", "error"),
    [
        (Principal("ops", "Group"), Error.INVALID_PRINCIPAL_TYPE),
        (Principal("a\0b"), Error.INVALID_REQUEST),
        (Principal("ü" * 16_384), Error.INVALID_REQUEST),
    ],
)
def test_renewers_are_users_with_names(renewer: Principal, error: Error) -> None:
    refused = made(-1, BOB, renewer)
    assert isinstance(refused, Refusal)
    assert refused.error is error


@pytest.mark.parametrize("who", [ALICE, BOB])
@pytest.mark.parametrize(
    ("asked", "expires_in"), [(-1, 1_000), (0, 1_000), (200, 200), (5_000, 1_000)]
)
def test_owner_and_renewers_renew(who: Principal, asked: int, expires_in: int) -> None:
    now = NOW + 900
    renewed = renew_token(TOKEN, who, asked, LIFETIMES, now)
    assert renewed == replace(TOKEN, expires_at_ms=now + expires_in)


def test_nobody_renews_beyond_the_longest_time() -> None:
    late = replace(TOKEN, expires_at_ms=NOW + 6_900)
    assert renew_token(late, ALICE, -1, LIFETIMES, NOW + 6_800) == replace(
        late, expires_at_ms=NOW + 7_000
    )


@pytest.mark.parametrize(
    ("token", "who", "now", "error"),
    [
        (None, ALICE, NOW, Error.DELEGATION_TOKEN_NOT_FOUND),
        (TOKEN, CAROL, NOW, Error.DELEGATION_TOKEN_OWNER_MISMATCH),  # has only asked for it
        (TOKEN, ALICE, NOW + 1_001, Error.DELEGATION_TOKEN_EXPIRED),
        (TOKEN, CAROL, NOW + 1_001, Error.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_who_may_not_renew(
    token: DelegationToken | None, who: Principal, now: int, error: Error
) -> None:
    refused = renew_token(token, who, -1, LIFETIMES, now)
    assert isinstance(refused, Refusal)
    assert refused.error is error


def test_a_token_counts_to_the_end_of_its_last_millisecond() -> None:
    assert TOKEN.ends_at_ms == NOW + 1_000
    assert not TOKEN.is_over(NOW + 1_000)
    assert TOKEN.is_over(NOW + 1_001)
    assert replace(TOKEN, expires_at_ms=NOW + 9_000).is_over(NOW + 7_001)


@pytest.mark.parametrize("who", [ALICE, BOB])
def test_its_end_is_moved(who: Principal) -> None:
    assert expire_token(TOKEN, who, 5_000, NOW) == replace(TOKEN, expires_at_ms=NOW + 5_000)
    assert expire_token(TOKEN, who, 0, NOW) == replace(TOKEN, expires_at_ms=NOW)
    assert expire_token(TOKEN, who, LONG_MAX, NOW) == replace(TOKEN, expires_at_ms=NOW + 7_000)
    assert expire_token(TOKEN, who, -1, NOW) == Ended("t")
    assert expire_token(TOKEN, who, -1, NOW + 2_000) == Ended("t")


@pytest.mark.parametrize(
    ("token", "who", "now", "error"),
    [
        (None, ALICE, NOW, Error.DELEGATION_TOKEN_NOT_FOUND),
        (TOKEN, CAROL, NOW, Error.DELEGATION_TOKEN_OWNER_MISMATCH),
        (TOKEN, CAROL, NOW + 1_001, Error.DELEGATION_TOKEN_OWNER_MISMATCH),
        (TOKEN, ALICE, NOW + 1_001, Error.DELEGATION_TOKEN_EXPIRED),
    ],
)
def test_who_may_not_move_its_end(
    token: DelegationToken | None, who: Principal, now: int, error: Error
) -> None:
    refused = expire_token(token, who, 0, now)
    assert isinstance(refused, Refusal)
    assert refused.error is error


def test_who_is_shown_which() -> None:
    of_bob = replace(TOKEN, token_id="b", owner=BOB, renewers=())
    both = [TOKEN, of_bob]

    def shown(
        who: Principal, owners: list[Principal] | None = None, may: str = ""
    ) -> list[DelegationToken]:
        return describe_tokens(both, who, owners, lambda each: each.token_id in may)

    assert shown(ALICE) == [TOKEN]
    assert shown(BOB) == both  # he may renew the first
    assert shown(CAROL) == []  # to have asked for it is not enough
    assert shown(CAROL, may="b") == [of_bob]
    assert shown(BOB, [ALICE]) == [TOKEN]
    assert shown(BOB, []) == []
    assert shown(CAROL, [BOB], may="tb") == both
    assert shown(CAROL, [CAROL], may="tb") == []


def test_a_secret_is_the_tokens_and_the_keys() -> None:
    """The value is Apache Kafka's, recorded with this key (tests/captures)."""
    found = hmac_of("DKLV7v-PS9qa7d3rX6Sp5A", "a key for captures")
    assert found.hex().startswith("0e0c982492997b4b1c513bd08ae35798bd76d46141162a3434f1215eeb7f")
    assert len({found, hmac_of("t", "a key for captures"), hmac_of("t", "another")}) == 3


@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_the_password_is_the_secret_in_base64(mechanism: ScramMechanism) -> None:
    verifier = verifier_of(mechanism, "t", "key")
    assert verifier == verifier_of(mechanism, "t", "key")
    assert verifier.is_of(b64encode(hmac_of("t", "key")).decode())
    assert not verifier.is_of(b64encode(hmac_of("u", "key")).decode())
    others = [verifier_of(mechanism, *each) for each in (("u", "key"), ("t", "another"))]
    assert len({each.salt for each in (verifier, *others)}) == 3


def test_nothing_of_a_token_is_secret() -> None:
    assert hmac_of("t", "key").hex() not in repr(TOKEN)

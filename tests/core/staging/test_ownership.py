"""core.staging.ownership: whose token is whose."""

from uuid import UUID

from hypothesis import assume, given
from hypothesis import strategies as st

from core.security.principal import ANONYMOUS, Principal
from core.staging.ownership import owned_token

NAMES = st.text(st.characters(codec="utf-8"), max_size=20)


@given(st.uuids(), NAMES, NAMES)
def test_each_principal_has_tokens_of_its_own(token: UUID, one: str, other: str) -> None:
    assume(one != other)
    mine = owned_token(token, Principal(one))
    assert mine == owned_token(token, Principal(one))
    assert mine not in (token, owned_token(token, Principal(other)))


@given(st.uuids(version=4))
def test_where_nobody_is_asked_a_token_is_as_it_is_said(token: UUID) -> None:
    assert owned_token(token, ANONYMOUS) == token


@given(st.uuids(), NAMES)
def test_nobody_names_anothers_by_working_it_out(token: UUID, owner: str) -> None:
    """What a token is stored as can be known: who has not logged in may say that."""
    stored = owned_token(token, Principal(owner))
    assume(Principal(owner) != ANONYMOUS)
    assert owned_token(stored, ANONYMOUS) != stored
    assert owned_token(stored, Principal("mallory")) != stored

"""Names of transactions and of what takes part: values that are keys of every flush."""

from __future__ import annotations

from core.transaction.key import Participant, ParticipantKind, TransactionKey, TransactionKind


def test_a_name_is_its_kind_and_its_text() -> None:
    assert TransactionKey.of_kafka("a") == (TransactionKind.TRANSACTIONAL_ID, "a")
    assert Participant.of_group("a") == (ParticipantKind.GROUP, "a")
    assert TransactionKey.of_kafka("a") != TransactionKey.of_kafka("b")


def test_a_key_hashes_without_a_call_of_python() -> None:
    assert TransactionKey.__hash__ is Participant.__hash__ is tuple.__hash__
    assert TransactionKind.__hash__ is ParticipantKind.__hash__ is int.__hash__

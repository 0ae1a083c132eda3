"""Names of transactions and of what takes part: values that are keys of every flush."""

from __future__ import annotations

import pytest

from core.transaction.key import Participant, ParticipantKind, TransactionKey, TransactionKind


def test_a_name_is_its_kind_and_its_text() -> None:
    assert TransactionKey.of_kafka("a") == (TransactionKind.TRANSACTIONAL_ID, "a")
    assert Participant.of_group("a") == (ParticipantKind.GROUP, "a")
    assert TransactionKey.of_kafka("a") != TransactionKey.of_kafka("b")


def test_a_txn_id_is_written_as_pulsar_writes_it() -> None:
    key = TransactionKey.of_pulsar(3, 1234)
    assert key == (TransactionKind.TXN_ID, "(3,1234)")
    assert key.txn_id == (3, 1234)
    assert TransactionKey.read_pulsar("(3,1234)") == key
    for text in ("", "3,1234", "(3, 1234)", "(3,01)", "(-3,1)", "(3,1)x", "(3,1)\n"):
        assert TransactionKey.read_pulsar(text) is None
    with pytest.raises(ValueError, match="is no TxnID"):
        _ = TransactionKey.of_kafka("(3,1234)").txn_id


def test_which_keys_are_used_once() -> None:
    assert TransactionKey.of_pulsar(0, 0).kind.is_used_once
    assert not TransactionKey.of_kafka("(0,0)").kind.is_used_once


def test_a_key_hashes_without_a_call_of_python() -> None:
    assert TransactionKey.__hash__ is Participant.__hash__ is tuple.__hash__
    assert TransactionKind.__hash__ is ParticipantKind.__hash__ is int.__hash__

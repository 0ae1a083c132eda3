"""Who may take part: partitions and groups that join, writes that are verified."""

from __future__ import annotations

import pytest

from core.errors import Error
from core.transaction.coordinator import (
    MAX_GROUP_ID_CHARACTERS,
    MAX_GROUPS,
    check_room,
    prepare_join,
    verify_joined,
    verify_write,
)
from core.transaction.key import Participant
from core.transaction.values import (
    Joining,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from tests.core.transaction.asked import (
    BUSY,
    DEAD,
    EPOCH,
    FENCE,
    FENCED,
    IDLE,
    MAPPING,
    NOW,
    OLD_PID,
    ONGOING,
    OTHER,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TIMEOUT_MS,
    V1,
    V2,
    producer,
    put_of,
    row,
)
from tests.keys import groups

# Joining.


@pytest.mark.parametrize("state", IDLE)
@pytest.mark.parametrize("version", [V1, V2])
@pytest.mark.parametrize("is_joined", [True, False])
def test_the_first_join_opens_the_transaction(
    state: TransactionState, version: TransactionVersion, is_joined: bool
) -> None:
    # is_joined: a row of joining that an earlier transaction left would not count.
    joining = prepare_join(row(state), producer(), version, NOW, is_joined=is_joined)
    put = put_of(joining)
    assert (joining.error, joining.joins) == (Error.NONE, True)
    assert (put.state, put.started_at, put.updated_at) == (ONGOING, NOW, NOW)
    assert (put.transaction_version, put.producer_epoch, put.version) == (version, EPOCH, 41)
    assert (put.last_producer_epoch, put.timeout_ms) == (-1, TIMEOUT_MS)


def test_a_further_join_changes_nothing_in_the_row() -> None:
    assert prepare_join(row(ONGOING), producer(), V1, NOW, is_joined=False) == Joining(joins=True)
    assert prepare_join(row(ONGOING), producer(), V1, NOW, is_joined=True) == Joining()


@pytest.mark.parametrize(
    ("known", "by", "error"),
    [
        (None, producer(), MAPPING),
        (row(DEAD), producer(), MAPPING),
        (row(ONGOING), producer(EPOCH, OTHER), MAPPING),
        (row(ONGOING, previous_producer_id=OLD_PID), producer(EPOCH, OLD_PID), MAPPING),
        (row(ONGOING), producer(EPOCH - 1), FENCED),
        (row(ONGOING), producer(EPOCH + 1), FENCED),
        (row(PREPARE_COMMIT), producer(), BUSY),
        (row(PREPARE_ABORT), producer(), BUSY),
        (row(FENCE), producer(), BUSY),
    ],
)
@pytest.mark.parametrize("is_joined", [True, False])
def test_who_may_not_take_part(
    known: TransactionMetadata | None, by: ProducerIdAndEpoch, error: Error, is_joined: bool
) -> None:
    assert prepare_join(known, by, V1, NOW, is_joined=is_joined) == Joining(error)
    assert verify_joined(known, by, is_joined=is_joined) is error
    # Writers know no PRODUCER_FENCED (AddPartitionsToTxnManager).
    written = Error.INVALID_PRODUCER_EPOCH if error is FENCED else error
    for version in (V1, V2):
        assert verify_write(known, by, version, NOW, is_joined=is_joined) == Joining(written)


@pytest.mark.parametrize("state", [*IDLE, ONGOING])
@pytest.mark.parametrize("is_joined", [True, False])
def test_v1_writes_only_where_it_has_joined(state: TransactionState, is_joined: bool) -> None:
    written = verify_write(row(state), producer(), V1, NOW, is_joined=is_joined)
    verified = verify_joined(row(state), producer(), is_joined=is_joined)
    assert (written.put, written.joins) == (None, False)
    assert written.error is verified
    if state is ONGOING and is_joined:
        assert verified is Error.NONE
    else:
        assert verified is Error.TRANSACTION_ABORTABLE
        assert written.message == "Partition was not added to the transaction"


@pytest.mark.parametrize("state", [*IDLE, ONGOING])
@pytest.mark.parametrize("is_joined", [True, False])
def test_v2_joins_as_it_writes(state: TransactionState, is_joined: bool) -> None:
    written = verify_write(row(state), producer(), V2, NOW, is_joined=is_joined)
    assert written == prepare_join(row(state), producer(), V2, NOW, is_joined=is_joined)
    assert written.joins is (state is not ONGOING or not is_joined)
    assert (written.put is None) is (state is ONGOING)


@pytest.mark.parametrize(
    ("group_ids", "wanted", "has_room"),
    [
        (frozenset(), "g" * MAX_GROUP_ID_CHARACTERS, True),
        (frozenset(), "g" * (MAX_GROUP_ID_CHARACTERS + 1), False),
        ({"a" * (MAX_GROUP_ID_CHARACTERS - 1)}, "b", True),
        ({"a" * MAX_GROUP_ID_CHARACTERS}, "b", False),
        ({str(number) for number in range(MAX_GROUPS - 1)}, "g", True),
        ({str(number) for number in range(MAX_GROUPS)}, "g", False),
        ({str(number) for number in range(MAX_GROUPS)}, "7", True),
    ],
)
def test_the_groups_of_a_transaction_have_limits(
    group_ids: set[str], wanted: str, has_room: bool
) -> None:
    joining = Joining(joins=True)
    found = check_room(joining, Participant.of_group(wanted), groups(*group_ids))
    assert found == (joining if has_room else Joining(Error.TRANSACTION_ABORTABLE))


def test_what_opens_a_transaction_and_what_is_refused_needs_no_room() -> None:
    full = frozenset({"a" * MAX_GROUP_ID_CHARACTERS})
    opening = prepare_join(row(), producer(), V1, NOW, is_joined=False)
    for joining in (opening, Joining(FENCED), Joining()):
        assert check_room(joining, "g", full) == joining

"""Transactions: coordinators, what is open, where it has written and acknowledged, and its abort.

Behavior: any broker answers for every coordinator and ends every transaction, since their rows are
the truth; what a subscription has pending is asked of the broker that dispatches it. A transaction
that has ended is known for some minutes, where Pulsar forgets it at once. "Slow" are, as in Pulsar,
those that were opened with a longer time to live than is asked for, not those that are old. There
is nothing to recover: states are Ready, and there are no low-water marks, snapshots and ledgers.
Transactions of Kafka's producers count in a topic's buffer, since they hold its readers back, too.
Sources: Transactions, TransactionsBase, TransactionsImpl, PendingAckHandleImpl.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from core.config.rules import (
    AlterOperation,
    ConfigAlteration,
    ConfigOperation,
    ConfigResource,
    ConfigResourceType,
)
from core.errors import Error
from core.security.pulsar_operations import (
    CHANGE_CLUSTER,
    READ_TOPIC,
    SEE_CLUSTER,
    SEE_TOPIC,
)
from core.transaction.key import TransactionKind
from core.transaction.values import StoredTransaction, TransactionMetadata, TransactionState
from gateway.pulsar.admin.api import AdminCall, endpoint
from gateway.pulsar.admin.places import on_one, place_of, refused, subscription_of
from gateway.pulsar.commands_pb2 import MessageIdData
from gateway.pulsar.ids import NO_ID, entry_offset
from gateway.pulsar.names import TopicName, pulsar_topic_name
from gateway.pulsar.topics import NamedPartition, is_partitioned, service_url
from gateway.pulsar.transactions import (
    COORDINATORS_SETTING,
    TxnId,
    count_coordinators,
    failed,
    owner_of_coordinator,
)
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.web.api import Refused
from gateway.web.call import ClientError

if TYPE_CHECKING:
    from core.log.partition_log import PartitionState
    from core.ports.transactions import AckingSubscription
    from gateway.pulsar.session import Services
    from gateway.runtime.subscriptions.members import LiveSubscription
    from gateway.runtime.subscriptions.partition import OwnedPartition

_AT: Final = "/admin/v3/transactions"
_TOPIC: Final = "{tenant}/{namespace}/{topic}"
_OF_SUBSCRIPTION: Final = f"{_TOPIC}/{{plain_subscription}}"
_TXN: Final = "{most}/{least}"
_NO_LEDGERS: Final = Refused(
    501,
    "Penstock keeps transactions as rows and has no ledgers of them: look at the views"
    " v_transaction, v_pending_ack and v_aborted_transaction",
)
_MOST_COORDINATORS: Final = 10_000  # each client connects to all of them when it starts
_STATUS: Final = {
    TransactionState.ONGOING: "OPEN",
    TransactionState.PREPARE_COMMIT: "COMMITTING",
    TransactionState.PREPARE_ABORT: "ABORTING",
    TransactionState.COMPLETE_COMMIT: "COMMITTED",
    TransactionState.COMPLETE_ABORT: "ABORTED",
}
_READY: Final = {"state": "Ready", "recoverStartTime": 0, "recoverEndTime": 0}


# --- coordinators ---


@endpoint("GET", f"{_AT}/coordinators", SEE_CLUSTER)
async def coordinators(call: AdminCall) -> list[dict[str, Any]]:
    """The coordinators, and the brokers that clients are sent to for each."""
    services = call.services.pulsar
    found = []
    for number in range(await _count(services)):
        owner = owner_of_coordinator(number, services)
        url = None if owner is None else service_url(owner, services)
        found.append({"id": number, "brokerServiceUrl": url})
    return found


@endpoint("GET", f"{_AT}/coordinatorStats", SEE_CLUSTER)
async def coordinator_stats(call: AdminCall) -> Any:
    """What is open at each coordinator, or at one. The sequence of ids is one for all of them."""
    services = call.services.pulsar
    numbers = await _coordinators_asked_for(call)
    newest = await services.transactions.newest_producer_id()
    opened: dict[int, list[int]] = defaultdict(list)
    for txn, _ in await _open(services):
        opened[txn.most].append(txn.least)
    stats = {
        str(number): {
            **_READY,
            "leastSigBits": newest,
            "lowWaterMark": min(opened[number], default=1) - 1,
            "ongoingTxnSize": len(opened[number]),
        }
        for number in numbers
    }
    return stats[str(numbers[0])] if "coordinatorId" in call.request.query_params else stats


@endpoint("GET", f"{_AT}/coordinatorInternalStats/{{coordinator}}", SEE_CLUSTER)
async def coordinator_internal_stats(call: AdminCall) -> Refused:
    """Of a coordinator's ledger: there is none."""
    return _NO_LEDGERS


@endpoint("POST", f"{_AT}/transactionCoordinator/replicas", CHANGE_CLUSTER)
async def scale(call: AdminCall) -> Refused | None:
    """Raise the number of coordinators: the setting `penstock.transaction.coordinators`."""
    wanted = await call.json()
    if not isinstance(wanted, int) or isinstance(wanted, bool) or wanted > _MOST_COORDINATORS:
        return Refused(400, f"The body is a number of coordinators, at most {_MOST_COORDINATORS}")
    services = call.services.pulsar
    if wanted <= await _count(services):
        reason = "Number of transaction coordinators should be more than the current number"
        return Refused(406, reason)
    setting = ConfigOperation(COORDINATORS_SETTING, AlterOperation.SET.value, str(wanted))
    everywhere = ConfigResource(ConfigResourceType.BROKER.value, "")
    (refusal,) = await services.configs.alter(
        [ConfigAlteration(everywhere, (setting,))], validate_only=False
    )
    return None if refusal is None else refused(refusal)


async def _count(services: Services) -> int:
    """How many coordinators there are, by the setting as it is now. Raises StoreUnavailable."""
    await services.configs.ensure_loaded()
    return count_coordinators(services)


async def _coordinators_asked_for(call: AdminCall) -> Sequence[int]:
    """The one of the query, else all. Raises ClientError."""
    count = await _count(call.services.pulsar)
    given = _number_of_query(call, "coordinatorId")
    if given is None:
        return range(count)
    if not 0 <= given < count:
        raise ClientError(404, f"Transaction coordinator not found! coordinator id : {given}")
    return [given]


def _number_of_query(call: AdminCall, name: str) -> int | None:
    """Raises ClientError."""
    given = call.request.query_params.get(name)
    try:
        return None if given is None else int(given)
    except ValueError:
        raise ClientError(400, f"{name} is a whole number") from None


async def _open(services: Services) -> list[tuple[TxnId, TransactionMetadata]]:
    """Pulsar's open transactions."""
    _, every = await services.transactions.list_all()
    return [
        (TxnId(*known.key.txn_id), known)
        for known in every
        if known.key.kind is TransactionKind.TXN_ID and known.state is TransactionState.ONGOING
    ]


# --- transactions ---


@endpoint("GET", f"{_AT}/transactionMetadata/{_TXN}", SEE_CLUSTER)
async def metadata(call: AdminCall) -> Any:
    """A transaction's state, times, and all that it has written to and acknowledged."""
    services, txn = call.services.pulsar, _txn_of(call)
    found = (await services.transactions.describe([txn.key])).get(txn.key)
    if found is None:
        raise ClientError(404, failed(Error.INVALID_PRODUCER_ID_MAPPING, txn).message)
    return (await _described([found], services))[txn.key.name]


@endpoint("GET", f"{_AT}/slowTransactions/{{timeout}}", SEE_CLUSTER)
async def slow(call: AdminCall) -> dict[str, Any]:
    """Open transactions whose time to live is longer than so many milliseconds."""
    services, timeout_ms = call.services.pulsar, call.number("timeout")
    numbers = await _coordinators_asked_for(call)
    wanted = [
        txn.key
        for txn, known in await _open(services)
        if txn.most in numbers and known.timeout_ms > timeout_ms
    ]
    found = await services.transactions.describe(wanted) if wanted else {}
    still_open = [e for e in found.values() if e.metadata.state is TransactionState.ONGOING]
    return await _described(still_open, services)


@endpoint("POST", f"{_AT}/abortTransaction/{_TXN}", CHANGE_CLUSTER)
async def abort(call: AdminCall) -> Refused | None:
    """Abort a transaction, whoever has opened it."""
    txn = _txn_of(call)
    answer = await call.services.pulsar.transactions.end_single(txn.key, txn.least, is_commit=False)
    if isinstance(answer, Unconfirmed):
        return Refused(503, answer.message)
    if answer.error is Error.NONE:
        return None
    status = 404 if answer.error is Error.INVALID_PRODUCER_ID_MAPPING else 409
    return Refused(status, failed(answer.error, txn).message)


def _txn_of(call: AdminCall) -> TxnId:
    """The transaction of the path. Raises ClientError."""
    txn = TxnId(call.number("most"), call.number("least"))
    if not txn.is_possible or min(txn) < 0:
        raise ClientError(404, failed(Error.INVALID_PRODUCER_ID_MAPPING, txn).message)
    return txn


async def _described(
    transactions: Iterable[StoredTransaction], services: Services
) -> dict[str, Any]:
    """TransactionMetadata by name. Asks three things of the database, however many they are."""
    transactions = list(transactions)
    if not transactions:
        return {}
    producer_ids = [each.metadata.producer_id for each in transactions]
    acking = await services.transactions.subscriptions_of(producer_ids)
    joined = {partition_id for each in transactions for partition_id in each.partitions}
    states = await services.partitions.refresh(sorted(joined)) if joined else {}
    names = await _names(services) if joined or acking else {}
    return {
        each.metadata.key.name: _described_one(each, acking, states, names) for each in transactions
    }


def _described_one(
    stored: StoredTransaction,
    acking: Iterable[AckingSubscription],
    states: Mapping[int, PartitionState],
    names: Mapping[int, str],
) -> dict[str, Any]:
    known = stored.metadata
    produced = {
        names[partition_id]: _in_buffer(states[partition_id], known.producer_id)
        for partition_id in sorted(stored.partitions)
        if partition_id in states and partition_id in names  # else deleted meanwhile
    }
    acked: dict[str, dict[str, Any]] = defaultdict(dict)
    for each in acking:
        if each.producer_id == known.producer_id and each.partition_id in names:
            position = _position(each.partition_id, each.cumulative_end)
            acked[names[each.partition_id]][each.name] = {"cumulativeAckPosition": position}
    return {
        "txnId": known.key.name,
        "status": _STATUS[known.state],
        "openTimestamp": known.started_at,
        "timeoutAt": known.timeout_ms,
        "producedPartitions": produced,
        "ackedPartitions": acked,
        "owner": None,
    }


async def _names(services: Services) -> dict[int, str]:
    """Of all partitions that Pulsar's clients can name, by their ids."""
    names = {}
    for topic in await services.topics.all():
        name = pulsar_topic_name(topic.name)
        if name is None:
            continue
        for number, partition_id in enumerate(topic.partition_ids):
            index = number if is_partitioned(topic) else -1
            names[partition_id] = str(
                TopicName(name.tenant, name.namespace, name.local_name, index)
            )
    return names


def _in_buffer(state: PartitionState, producer_id: int) -> dict[str, Any]:
    first = next(
        (e.first_offset for e in state.open_transactions if e.producer_id == producer_id), None
    )
    position = None if first is None else f"{state.partition_id}:{first}"
    return {"startPosition": position, "aborted": False}


def _position(partition_id: int, end: int | None) -> str | None:
    return None if end is None else f"{partition_id}:{end - 1}"


# --- topics and subscriptions ---


@endpoint("GET", f"{_AT}/transactionInBufferStats/{_TOPIC}/{_TXN}", SEE_TOPIC)
async def in_buffer(call: AdminCall) -> dict[str, Any]:
    """Where a transaction's first message lies in a topic, and whether it was aborted there."""
    txn = _txn_of(call)
    place, state = await _state_of(call)
    aborted = await call.services.pulsar.partitions.count_aborted(place.partition_id, txn.least)
    return {**_in_buffer(state, txn.least), "aborted": aborted > 0}


@endpoint("GET", f"{_AT}/transactionBufferStats/{_TOPIC}", SEE_TOPIC)
async def buffer(call: AdminCall) -> dict[str, Any]:
    """What is open and what was aborted in a topic, and how far consumers may read."""
    place, state = await _state_of(call)
    aborted = await call.services.pulsar.partitions.count_aborted(place.partition_id)
    return {
        **_READY,
        "maxReadPosition": f"{state.partition_id}:{state.last_stable_offset - 1}",
        "lastSnapshotTimestamps": 0,
        "ongoingTxnSize": len(state.open_transactions),
        "totalAbortedTransactions": aborted,
    }


@endpoint("GET", f"{_AT}/transactionBufferInternalStats/{_TOPIC}", SEE_TOPIC)
async def buffer_internal_stats(call: AdminCall) -> Refused:
    """Of a buffer's snapshots: there are none."""
    return _NO_LEDGERS


async def _state_of(call: AdminCall) -> tuple[NamedPartition, PartitionState]:
    """The partition of the path, as it is now. Raises ClientError."""
    place = await place_of(call)
    partition_id = place.partition_id
    state = (await call.services.pulsar.partitions.refresh([partition_id])).get(partition_id)
    if state is None:
        raise ClientError(404, f"Topic {place.name} not found")
    return place, state


@endpoint("GET", f"{_AT}/transactionInPendingAckStats/{_OF_SUBSCRIPTION}/{_TXN}", READ_TOPIC)
async def in_pending_ack(call: AdminCall) -> Any:
    """How far a transaction acknowledges all of a subscription, if it does."""
    txn = _txn_of(call)

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, Any]:
        opened = await _subscription_of(call, owned, place)
        up_to = opened.pending_up_to(txn.least)
        return {"cumulativeAckPosition": _position(place.partition_id, up_to)}

    return await on_one(call, act)


@endpoint("GET", f"{_AT}/pendingAckStats/{_OF_SUBSCRIPTION}", READ_TOPIC)
async def pending_ack(call: AdminCall) -> Any:
    """How many open transactions have acknowledged something of a subscription."""

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, Any]:
        opened = await _subscription_of(call, owned, place)
        return {**_READY, "ongoingTxnSize": len(opened.core.pending_owners)}

    return await on_one(call, act)


@endpoint("GET", f"{_AT}/pendingAckInternalStats/{_OF_SUBSCRIPTION}", READ_TOPIC)
async def pending_ack_internal_stats(call: AdminCall) -> Refused:
    """Of a subscription's ledger: there is none."""
    return _NO_LEDGERS


@endpoint(
    "GET",
    f"{_AT}/positionStatsInPendingAck/{_OF_SUBSCRIPTION}/{{ledger}}/{{entry}}",
    READ_TOPIC,
)
async def position_in_pending_ack(call: AdminCall) -> Any:
    """Whether an entry, or one message of a batch, is acknowledged in an open transaction."""
    ledger, entry = call.number("ledger") & NO_ID, call.number("entry") & NO_ID
    index = _number_of_query(call, "batchIndex")

    async def act(owned: OwnedPartition, place: NamedPartition) -> dict[str, str]:
        opened = await _subscription_of(call, owned, place)
        position = MessageIdData(ledger_id=ledger, entry_id=entry)
        start = entry_offset(position, place.partition_id)
        stored = await owned.entry_at(start) if start >= 0 else None
        count = stored.record_count if stored and stored.base_offset == start else 1
        if index is None or index < 0:
            return {"state": _state_in_pending_ack(opened, start, start + count)}
        if index >= count:
            return {"state": "InvalidPosition"}
        at = start + index
        return {"state": _state_in_pending_ack(opened, at, at + 1)}

    return await on_one(call, act)


def _state_in_pending_ack(opened: LiveSubscription, start: int, end: int) -> str:
    if end <= opened.core.cursor.mark_delete:
        return "MarkDelete"
    for owner in opened.core.pending_owners:
        ranges, up_to = opened.core.pending_of(owner)
        if start < (up_to or 0) or any(a < end and start < b for a, b in ranges):
            return "PendingAck"
    return "NotInPendingAck"


async def _subscription_of(
    call: AdminCall, owned: OwnedPartition, place: NamedPartition
) -> LiveSubscription:
    """Raises ClientError."""
    name = subscription_of(call)
    opened = await owned.open(name)
    if opened is None:
        raise ClientError(404, f"Subscription {name} not found on {place.name}")
    return opened

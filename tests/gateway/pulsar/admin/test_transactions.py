"""REST for transactions: what people and `pulsar-admin transactions` ask, over transactions that
are made by the wire."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.pulsar.commands import AckType, CommandType, ServerError
from gateway.pulsar.commands_pb2 import CommandPartitionedTopicMetadata
from gateway.pulsar.ids import unacknowledged_words
from tests.gateway.pulsar.admin.test_namespaces import Rest
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of
from tests.gateway.pulsar.handlers.test_consumers import TOPIC, messages, produce, subscribe
from tests.gateway.pulsar.handlers.test_transactions import (
    COORDINATORS,
    Txn,
    abort,
    acknowledge,
    add_partition,
    add_subscription,
    begin,
    commit,
    send,
)

AT = "/admin/v3/transactions"
IN_T = "public/default/t"
UNKNOWN = "There is no transaction (3,77)"


@pytest.fixture
def rest(broker: Broker) -> Rest:
    return Rest(broker)


def path_of(txn: Txn) -> str:
    return f"{txn['txnid_most_bits']}/{txn['txnid_least_bits']}"


def name_of(txn: Txn) -> str:
    return f"({path_of(txn).replace('/', ',')})"


async def opened(client: Conversation, ttl_ms: int = 60_000, coordinator: int = 3) -> Txn:
    """A transaction with a message in the topic."""
    txn = await begin(client, ttl_ms, coordinator)
    assert await add_partition(client, txn) is None
    assert await send(client, txn["txnid_least_bits"], txn) is None
    return txn


async def ledger_of(broker: Broker) -> int:
    topic = await broker.runtime.topics.get("t")
    assert topic is not None
    return topic.partition_ids[0]


# --- coordinators ---


async def test_coordinators(broker: Broker, rest: Rest) -> None:
    status, found = await rest("GET", f"{AT}/coordinators")
    url = "pulsar://127.0.0.1:6650"
    assert (status, found) == (200, [{"id": n, "brokerServiceUrl": url} for n in range(16)])


async def test_stats_of_coordinators(broker: Broker, rest: Rest) -> None:
    quiet = {"state": "Ready", "recoverStartTime": 0, "recoverEndTime": 0, "ongoingTxnSize": 0}
    status, every = await rest("GET", f"{AT}/coordinatorStats")
    assert (status, len(every)) == (200, 16)
    assert every["3"] == {**quiet, "leastSigBits": -1, "lowWaterMark": 0}
    client = await broker.client()
    first, _, ended = [await begin(client) for _ in range(3)]
    await commit(client, ended)
    low, newest = first["txnid_least_bits"], ended["txnid_least_bits"]
    wanted = {**quiet, "ongoingTxnSize": 2, "leastSigBits": newest, "lowWaterMark": low - 1}
    assert await rest("GET", f"{AT}/coordinatorStats?coordinatorId=3") == (200, wanted)
    _, every = await rest("GET", f"{AT}/coordinatorStats")
    assert [each["ongoingTxnSize"] for each in every.values()] == [0] * 3 + [2] + [0] * 12
    missing = 404, "Transaction coordinator not found! coordinator id : 16"
    assert await rest("GET", f"{AT}/coordinatorStats?coordinatorId=16") == missing
    assert (await rest("GET", f"{AT}/coordinatorStats?coordinatorId=-1"))[0] == 404
    for wrong in ("x", "9" * 5000):
        assert (await rest("GET", f"{AT}/coordinatorStats?coordinatorId={wrong}"))[0] == 400


async def test_more_coordinators(broker: Broker, rest: Rest) -> None:
    at = f"{AT}/transactionCoordinator/replicas"
    too_few = "Number of transaction coordinators should be more than the current number"
    assert await rest("POST", at, 16) == (406, too_few)
    for wrong in ("17", 1.5, True, {"replicas": 17}, 10**6):
        assert (await rest("POST", at, wrong))[0] == 400
    assert await rest("POST", at, 17) == (204, None)
    assert len((await rest("GET", f"{AT}/coordinators"))[1]) == 17
    client = await broker.client()
    asked = CommandPartitionedTopicMetadata(topic=COORDINATORS)
    found = await client.ask(asked, CommandType.PARTITIONED_METADATA_RESPONSE)
    assert found.partitions == 17
    await begin(client, coordinator=16)


# --- transactions ---


async def test_what_a_transaction_has_done(broker: Broker, rest: Rest) -> None:
    await produce(broker, 3)
    client = await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 3)]
    await subscribe(client, subscription="by one", consumer_id=2, permits=0)
    await client.produce_to(TOPIC)
    txn = await opened(client)
    await acknowledge(client, txn, ids[1], kind=AckType.CUMULATIVE)
    await acknowledge(client, txn, ids[2], consumer_id=2)
    status, found = await rest("GET", f"{AT}/transactionMetadata/{path_of(txn)}")
    ledger = await ledger_of(broker)
    assert abs(found.pop("openTimestamp") - broker.front_end.services.clock()) < 60_000
    assert (status, found) == (
        200,
        {
            "txnId": name_of(txn),
            "status": "OPEN",
            "timeoutAt": 60_000,
            "producedPartitions": {TOPIC: {"startPosition": f"{ledger}:3", "aborted": False}},
            "ackedPartitions": {
                TOPIC: {
                    "by one": {"cumulativeAckPosition": None},
                    "s": {"cumulativeAckPosition": f"{ledger}:1"},
                }
            },
            "owner": None,
        },
    )
    await commit(client, txn)
    _, found = await rest("GET", f"{AT}/transactionMetadata/{path_of(txn)}")
    assert (found["status"], found["producedPartitions"]) == ("COMMITTED", {})
    assert await rest("GET", f"{AT}/transactionMetadata/3/77") == (404, UNKNOWN)
    assert (await rest("GET", f"{AT}/transactionMetadata/3/{2**63}"))[0] == 404
    assert (await rest("GET", f"{AT}/transactionMetadata/-1/0"))[0] == 404
    assert (await rest("GET", f"{AT}/transactionMetadata/3/x"))[0] == 400


async def test_partitions_are_called_by_their_names(broker: Broker, rest: Rest) -> None:
    await rest("PUT", "/admin/v2/persistent/public/default/parts/partitions", 2)
    topic = "persistent://public/default/parts-partition-1"
    client = await broker.client()
    txn = await begin(client)
    assert await add_partition(client, txn, topic) is None
    _, found = await rest("GET", f"{AT}/transactionMetadata/{path_of(txn)}")
    assert found["producedPartitions"] == {topic: {"startPosition": None, "aborted": False}}
    at = f"{AT}/transactionInBufferStats/public/default/parts"
    assert (await rest("GET", f"{at}/{path_of(txn)}"))[0] == 405
    assert (await rest("GET", f"{at}-partition-1/{path_of(txn)}"))[0] == 200


async def test_slow_transactions_are_those_that_may_take_long(broker: Broker, rest: Rest) -> None:
    client = await broker.client()
    short, long, other = (
        await begin(client, 20_000),
        await begin(client, 60_000),
        await begin(client, 60_000, coordinator=4),
    )

    async def slow(timeout: int, query: str = "") -> set[str]:
        status, found = await rest("GET", f"{AT}/slowTransactions/{timeout}{query}")
        assert status == 200
        assert all(each["txnId"] == name for name, each in found.items())
        return set(found)

    assert await slow(30_000) == {name_of(long), name_of(other)}
    assert await slow(30_000, "?coordinatorId=4") == {name_of(other)}
    assert await slow(10_000) == {name_of(short), name_of(long), name_of(other)}
    assert await slow(60_000) == set()
    await commit(client, long)
    assert await slow(30_000) == {name_of(other)}
    assert (await rest("GET", f"{AT}/slowTransactions/1?coordinatorId=99"))[0] == 404


async def test_an_abort_ends_all_of_it(broker: Broker, rest: Rest) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await subscribe(client)
    (message,) = await messages(client, 1)
    await client.produce_to(TOPIC)
    txn = await opened(client)
    await acknowledge(client, txn, message.message_id)
    assert await rest("POST", f"{AT}/abortTransaction/{path_of(txn)}", "") == (204, None)
    assert await rest("POST", f"{AT}/abortTransaction/{path_of(txn)}", "") == (204, None)
    (again,) = await messages(client, 1)
    assert (again.message_id, again.redelivery_count) == (message.message_id, 1)
    assert await commit(client, txn) is ServerError.INVALID_TXN_STATUS
    _, found = await rest("GET", f"{AT}/transactionMetadata/{path_of(txn)}")
    assert found["status"] == "ABORTED"
    committed = await begin(client)
    await commit(client, committed)
    status, said = await rest("POST", f"{AT}/abortTransaction/{path_of(committed)}")
    assert (status, said) == (409, f"Transaction {name_of(committed)} has ended")
    assert await rest("POST", f"{AT}/abortTransaction/3/77") == (404, UNKNOWN)


async def test_another_broker_ends_it_too(make_broker: Any) -> None:
    one, other = await make_broker(), await make_broker()
    await one.runtime.cluster.heartbeat()
    clients = [await one.client(), await other.client()]
    for each in range(16):
        for client, elsewhere in zip(clients, (other, one), strict=True):
            wanted = {"tc_id": each}
            if await _is_served(client, wanted):
                txn = await begin(client, coordinator=each)
                assert await add_subscription(client, txn) is None  # so that every broker sees it
                path = f"{AT}/abortTransaction/{path_of(txn)}"
                assert await Rest(elsewhere)("POST", path) == (204, None)
                assert await abort(client, txn) is None
                assert await commit(client, txn) is ServerError.INVALID_TXN_STATUS


async def _is_served(client: Conversation, wanted: Any) -> bool:
    from gateway.pulsar.commands_pb2 import CommandTcClientConnectRequest

    asked = CommandTcClientConnectRequest(**wanted)
    answer = await client.ask(asked, CommandType.TC_CLIENT_CONNECT_RESPONSE)
    return not answer.HasField("error")


# --- topics and subscriptions ---


async def test_a_topics_buffer(broker: Broker, rest: Rest) -> None:
    await produce(broker, 1)
    ledger = await ledger_of(broker)
    at = f"{AT}/transactionBufferStats/{IN_T}"
    wanted = {
        "state": "Ready",
        "recoverStartTime": 0,
        "recoverEndTime": 0,
        "maxReadPosition": f"{ledger}:0",
        "lastSnapshotTimestamps": 0,
        "ongoingTxnSize": 0,
        "totalAbortedTransactions": 0,
    }
    assert await rest("GET", f"{at}?lowWaterMarks=true&segmentStats=true") == (200, wanted)
    client = await broker.client()
    await client.produce_to(TOPIC)
    first, second = await opened(client), await opened(client)
    in_buffer = f"{AT}/transactionInBufferStats/{IN_T}/{path_of(second)}"
    assert await rest("GET", at) == (200, {**wanted, "ongoingTxnSize": 2})
    assert await rest("GET", in_buffer) == (
        200,
        {"startPosition": f"{ledger}:2", "aborted": False},
    )
    await abort(client, second)
    await commit(client, first)  # offsets: 0 plain, 1 and 2 in transactions, 3 and 4 markers
    end = {"maxReadPosition": f"{ledger}:4", "totalAbortedTransactions": 1}
    assert await rest("GET", at) == (200, {**wanted, **end})
    assert await rest("GET", in_buffer) == (200, {"startPosition": None, "aborted": True})
    of_first = f"{AT}/transactionInBufferStats/{IN_T}/{path_of(first)}"
    assert await rest("GET", of_first) == (200, {"startPosition": None, "aborted": False})
    assert (await rest("GET", f"{AT}/transactionBufferStats/public/default/none"))[0] == 404


async def test_what_a_subscription_has_pending(broker: Broker, rest: Rest) -> None:
    client = await broker.client()
    await client.produce_to(TOPIC)
    client.send(entry_of(b"x" * 30, num_messages_in_batch=3), num_messages=3)
    await client.hear(CommandType.SEND_RECEIPT)
    await produce(broker, 3)
    await subscribe(client)
    batch, *singles = [each.message_id for each in await messages(client, 4)]
    one, two, third = await begin(client), await begin(client), await begin(client)
    ledger = await ledger_of(broker)

    async def state(entry: int, query: str = "", ledger_id: int = ledger) -> str:
        at = f"{AT}/positionStatsInPendingAck/{IN_T}/s/{ledger_id}/{entry}"
        status, found = await rest("GET", f"{at}{query}")
        assert status == 200
        return str(found["state"])

    assert await state(0) == "NotInPendingAck"
    batch.ack_set.extend(unacknowledged_words([range(1, 2)], 3))
    assert await acknowledge(client, one, batch) is None
    assert await acknowledge(client, two, singles[1]) is None
    stats = f"{AT}/pendingAckStats/{IN_T}/s"
    ready = {"state": "Ready", "recoverStartTime": 0, "recoverEndTime": 0}
    assert await rest("GET", stats) == (200, {**ready, "ongoingTxnSize": 2})
    assert [await state(0, f"?batchIndex={index}") for index in range(4)] == [
        "NotInPendingAck",
        "PendingAck",
        "NotInPendingAck",
        "InvalidPosition",
    ]
    assert [await state(entry) for entry in (0, 3, 4, 99)] == [
        "PendingAck",
        "NotInPendingAck",
        "PendingAck",
        "NotInPendingAck",
    ]
    await abort(client, one)
    await messages(client, 1)  # the batch again
    assert await acknowledge(client, third, singles[0], kind=AckType.CUMULATIVE) is None
    in_stats = f"{AT}/transactionInPendingAckStats/{IN_T}/s"
    wanted = {"cumulativeAckPosition": f"{ledger}:3"}
    assert await rest("GET", f"{in_stats}/{path_of(third)}") == (200, wanted)
    assert await rest("GET", f"{in_stats}/{path_of(two)}") == (
        200,
        {"cumulativeAckPosition": None},
    )
    assert await state(0, "?batchIndex=0") == "PendingAck"
    await commit(client, third)
    assert [await state(0), await state(3), await state(4)] == ["MarkDelete"] * 2 + ["PendingAck"]
    assert await state(7, ledger_id=ledger - 1) == "MarkDelete"
    assert await state(0, ledger_id=ledger + 1) == "NotInPendingAck"
    for entry in (-1, -(2**63), 2**63 - 1, 2**64, 10**30):
        assert await state(entry) in ("MarkDelete", "NotInPendingAck", "PendingAck")
        assert await state(0, "?batchIndex=" + "9" * 30) == "InvalidPosition"
    at = f"{AT}/positionStatsInPendingAck/{IN_T}/s/{ledger}"
    for wrong in ("0?batchIndex=x", "x", f"0?batchIndex={'9' * 5000}", "9" * 5000):
        assert (await rest("GET", f"{at}/{wrong}"))[0] == 400
    missing = 404, f"Subscription a+b/c d not found on {TOPIC}"
    assert await rest("GET", f"{AT}/pendingAckStats/{IN_T}/a+b%2Fc%20d") == missing


@pytest.mark.parametrize(
    "path",
    [
        "coordinatorInternalStats/1?metadata=true",
        f"pendingAckInternalStats/{IN_T}/s",
        f"transactionBufferInternalStats/{IN_T}",
    ],
)
async def test_there_are_no_ledgers(rest: Rest, path: str) -> None:
    status, said = await rest("GET", f"{AT}/{path}")
    assert status == 501
    assert "v_transaction" in said

"""Pulsar's transactions, command by command, and what another client sees of them meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest

from core.ports.log import StoreUnavailable
from core.transaction.key import TransactionKey
from core.transaction.values import InitProducerId, ProducerIdAndEpoch
from gateway.pulsar.commands import AckType, CommandType, ServerError, SubType, TxnAction
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandConsumerStats,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    CommandGetLastMessageId,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandTcClientConnectRequest,
    CommandUnsubscribe,
    MessageIdData,
    Subscription,
)
from gateway.pulsar.ids import earliest, unacknowledged_words
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of
from tests.gateway.pulsar.handlers.test_consumers import TOPIC, messages, produce, subscribe

OTHER = "persistent://public/default/other"
COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"
Txn = dict[str, int]


@pytest.fixture
def query(database_url: str) -> Callable[[str], list[Any]]:
    """Asks the broker's database, as psql does."""

    def ask(statement: str) -> list[Any]:
        with psycopg.connect(database_url) as connection:
            return connection.execute(statement).fetchall()

    return ask


async def begin(client: Conversation, ttl_ms: int = 60_000, coordinator: int = 3) -> Txn:
    wanted = CommandNewTxn(tc_id=coordinator, txn_ttl_seconds=ttl_ms)
    answer = await client.ask(wanted, CommandType.NEW_TXN_RESPONSE)
    assert not answer.HasField("error"), answer
    assert answer.txnid_most_bits == coordinator
    return {"txnid_most_bits": coordinator, "txnid_least_bits": answer.txnid_least_bits}


def error_of(answer: Any) -> ServerError | None:
    return ServerError(answer.error) if answer.HasField("error") else None


async def add_partition(client: Conversation, txn: Txn, *topics: str) -> ServerError | None:
    wanted = CommandAddPartitionToTxn(partitions=topics or [TOPIC], **txn)
    answer = await client.ask(wanted, CommandType.ADD_PARTITION_TO_TXN_RESPONSE)
    assert {each: getattr(answer, each) for each in txn} == txn
    return error_of(answer)


async def add_subscription(client: Conversation, txn: Txn) -> ServerError | None:
    wanted = CommandAddSubscriptionToTxn(
        subscription=[Subscription(topic=TOPIC, subscription="s")], **txn
    )
    return error_of(await client.ask(wanted, CommandType.ADD_SUBSCRIPTION_TO_TXN_RESPONSE))


async def end(client: Conversation, txn: Txn, action: TxnAction) -> ServerError | None:
    wanted = CommandEndTxn(txn_action=action, **txn)
    return error_of(await client.ask(wanted, CommandType.END_TXN_RESPONSE))


async def commit(client: Conversation, txn: Txn) -> ServerError | None:
    return await end(client, txn, TxnAction.COMMIT)


async def abort(client: Conversation, txn: Txn) -> ServerError | None:
    return await end(client, txn, TxnAction.ABORT)


async def send(client: Conversation, number: int, txn: Txn | None = None) -> ServerError | None:
    client.send(entry_of(b"%d" % number, sequence_id=number), sequence_id=number, **(txn or {}))
    await asyncio.wait_for(client._some(), 20)
    if client.transport.commands[0].type is CommandType.SEND_ERROR:
        return ServerError((await client.hear(CommandType.SEND_ERROR)).error)
    assert (await client.hear(CommandType.SEND_RECEIPT)).sequence_id == number
    return None


async def acknowledge(
    client: Conversation,
    txn: Txn | None,
    *ids: MessageIdData,
    kind: AckType = AckType.INDIVIDUAL,
    consumer_id: int = 1,
) -> ServerError | None:
    wanted = CommandAck(consumer_id=consumer_id, ack_type=kind, message_id=ids, **(txn or {}))
    answer = await client.ask(wanted, CommandType.ACK_RESPONSE)
    if txn:
        assert {each: getattr(answer, each) for each in txn} == txn
    return error_of(answer)


def say_acknowledge(client: Conversation, txn: Txn, request_id: int, *ids: MessageIdData) -> None:
    """Does not wait for the answer."""
    kind = AckType.INDIVIDUAL
    wanted = CommandAck(consumer_id=1, ack_type=kind, message_id=ids, request_id=request_id, **txn)
    client.say(wanted)


async def is_quiet(client: Conversation) -> bool:
    """Whether no message has come, even after a moment."""
    await asyncio.sleep(0.05)
    stats = CommandConsumerStats(consumer_id=1)
    return bool(await client.ask(stats, CommandType.CONSUMER_STATS_RESPONSE))


async def read_all(broker: Broker, count: int, **subscription: Any) -> list[int]:
    """The entries that a new subscription gets."""
    client = await broker.client()
    await subscribe(client, **{"subscription": "reader", **subscription})
    found = await messages(client, count)
    assert await is_quiet(client)
    return [each.message_id.entry_id for each in found]


@asynccontextmanager
async def background(broker: Broker) -> AsyncIterator[None]:
    """With timeouts, and a look at what has ended elsewhere."""
    runtime = broker.runtime
    tasks = [
        asyncio.create_task(runtime.transactions.run()),
        asyncio.create_task(runtime.subscriptions.pending_acks.run()),
    ]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- the coordinator ---


async def test_clients_find_sixteen_coordinators(broker: Broker) -> None:
    client = await broker.client()
    found = await client.ask(
        CommandPartitionedTopicMetadata(topic=COORDINATORS),
        CommandType.PARTITIONED_METADATA_RESPONSE,
    )
    assert (found.partitions, found.HasField("error")) == (16, False)
    for number in (0, 15):
        wanted = CommandLookupTopic(topic=f"{COORDINATORS}-partition-{number}")
        looked_up = await client.ask(wanted, CommandType.LOOKUP_RESPONSE)
        assert looked_up.broker_service_url == "pulsar://127.0.0.1:6650"
        connect = CommandTcClientConnectRequest(tc_id=number)
        answer = await client.ask(connect, CommandType.TC_CLIENT_CONNECT_RESPONSE)
        assert not answer.HasField("error")
    connect = CommandTcClientConnectRequest(tc_id=16)
    answer = await client.ask(connect, CommandType.TC_CLIENT_CONNECT_RESPONSE)
    assert error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND


async def test_how_many_coordinators_there_are_is_a_setting(make_broker: Any) -> None:
    broker = await make_broker({"penstock.transaction.coordinators": "2"})
    client = await broker.client()
    found = await client.ask(
        CommandPartitionedTopicMetadata(topic=COORDINATORS),
        CommandType.PARTITIONED_METADATA_RESPONSE,
    )
    assert found.partitions == 2
    wanted = CommandNewTxn(tc_id=2, txn_ttl_seconds=1000)
    answer = await client.ask(wanted, CommandType.NEW_TXN_RESPONSE)
    assert error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND


async def test_coordinators_are_spread_over_brokers(make_broker: Any) -> None:
    one, other = await make_broker(), await make_broker()
    await one.runtime.cluster.heartbeat()
    clients = [await one.client(), await other.client()]
    owners = []
    for number in range(16):
        served = []
        for client in clients:
            wanted = CommandTcClientConnectRequest(tc_id=number)
            answer = await client.ask(wanted, CommandType.TC_CLIENT_CONNECT_RESPONSE)
            served.append(error_of(answer) is None)
        assert sorted(served) == [False, True]
        owners.append(served.index(True))
        wanted = CommandLookupTopic(topic=f"{COORDINATORS}-partition-{number}")
        looked_up = await clients[0].ask(wanted, CommandType.LOOKUP_RESPONSE)
        assert looked_up.broker_service_url.endswith(str(6650 + owners[-1]))
    assert set(owners) == {0, 1}


async def test_a_connection_keeps_the_coordinators_that_it_was_given(make_broker: Any) -> None:
    """Though another broker joins, whose they are then for everybody else: Go's client does not
    look them up again while its connection lasts."""
    first = await make_broker()
    client = await first.client()
    for number in range(16):
        connect = CommandTcClientConnectRequest(tc_id=number)
        await client.ask(connect, CommandType.TC_CLIENT_CONNECT_RESPONSE)
    txns = [await begin(client, coordinator=number) for number in range(16)]
    second = await make_broker()
    await first.runtime.cluster.heartbeat()
    stranger = await first.client()
    told = [await commit(stranger, txn) for txn in txns]
    assert set(told) == {None, ServerError.TRANSACTION_COORDINATOR_NOT_FOUND}
    for txn in txns:
        assert await commit(client, txn) is None
        assert await commit(client, await begin(client, coordinator=txn["txnid_most_bits"])) is None
    assert second.runtime.cluster.live_ids == first.runtime.cluster.live_ids


async def test_ids_rise_and_never_repeat(make_broker: Any) -> None:
    seen = []
    for _ in range(2):
        broker = await make_broker()
        client = await broker.client()
        for number in range(16):
            wanted = CommandNewTxn(tc_id=number, txn_ttl_seconds=60_000)
            answer = await client.ask(wanted, CommandType.NEW_TXN_RESPONSE)
            if error_of(answer) is None:
                seen.append(answer.txnid_least_bits)
    assert len(seen) > 16
    assert seen == sorted(set(seen))


async def test_ids_of_a_coordinator_rise_whoever_has_it(make_broker: Any) -> None:
    first = await make_broker()
    brokers, seen = [first], []

    async def next_ids(coordinator: int) -> None:
        for broker in brokers:
            client = await broker.client()
            txns = []
            for _ in range(3):
                wanted = CommandNewTxn(tc_id=coordinator, txn_ttl_seconds=60_000)
                answer = await client.ask(wanted, CommandType.NEW_TXN_RESPONSE)
                if error_of(answer) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND:
                    break
                seen.append(answer.txnid_least_bits)
                txns.append(answer.txnid_least_bits)
                # Ends, Kafka's as well, take no id that a later transaction could have.
                key = TransactionKey.of_kafka(f"k{len(seen)}")
                await broker.runtime.transactions.init_producer_id(
                    InitProducerId(key, 60_000, ProducerIdAndEpoch(), "", "")
                )
                least = txns.pop()
                await broker.runtime.transactions.end_single(
                    TransactionKey.of_pulsar(coordinator, least), least, is_commit=True
                )

    await next_ids(3)
    brokers.append(await make_broker())  # its ids begin higher
    await first.runtime.cluster.heartbeat()
    await next_ids(3)
    moved = brokers.pop()
    await moved.runtime.cluster.leave()
    await first.runtime.cluster.heartbeat()
    await next_ids(3)
    assert len(seen) == 9
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("ttl_ms", [0, 15 * 60_000 + 1, 2**64 - 1])
async def test_a_time_to_live_has_bounds(broker: Broker, ttl_ms: int) -> None:
    client = await broker.client()
    wanted = CommandNewTxn(tc_id=0, txn_ttl_seconds=ttl_ms)
    answer = await client.ask(wanted, CommandType.NEW_TXN_RESPONSE)
    assert error_of(answer) is ServerError.NOT_ALLOWED_ERROR


async def test_an_end_may_be_repeated_and_not_be_turned_round(broker: Broker) -> None:
    client = await broker.client()
    for action, other in ((commit, abort), (abort, commit)):
        txn = await begin(client)
        for _ in range(3):
            assert await action(client, txn) is None
        assert await other(client, txn) is ServerError.INVALID_TXN_STATUS
        assert await action(client, txn) is None
    for least in (10**9, 2**64 - 1):
        unknown = {"txnid_most_bits": 3, "txnid_least_bits": least}
        assert await commit(client, unknown) is ServerError.TRANSACTION_NOT_FOUND
    elsewhere = {"txnid_most_bits": 99, "txnid_least_bits": 0}
    assert await abort(client, elsewhere) is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND


async def test_what_has_ended_takes_nothing_in(broker: Broker) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await client.produce_to(TOPIC)
    txn = await begin(client)
    assert await commit(client, txn) is None
    assert await add_partition(client, txn) is ServerError.INVALID_TXN_STATUS
    assert await add_subscription(client, txn) is ServerError.INVALID_TXN_STATUS
    assert await send(client, 1, txn) is ServerError.NOT_ALLOWED_ERROR
    await subscribe(client)
    (found,) = await messages(client, 1)
    assert await acknowledge(client, txn, found.message_id) is ServerError.INVALID_TXN_STATUS
    client.transport.close()  # what was refused is not withheld
    client = await broker.client()
    await subscribe(client)
    (again,) = await messages(client, 1)
    assert again.message_id == found.message_id


async def test_partitions_that_are_not_there_do_not_join(broker: Broker) -> None:
    await produce(broker, 1)
    client = await broker.client()
    txn = await begin(client)
    assert await add_partition(client, txn, TOPIC, OTHER) is ServerError.TOPIC_NOT_FOUND
    await client.produce_to(TOPIC)
    assert await send(client, 1, txn) is ServerError.NOT_ALLOWED_ERROR
    assert await add_partition(client, txn) is None
    assert await send(client, 1, txn) is None


async def test_a_transaction_of_kafkas_is_none_of_pulsars(broker: Broker) -> None:
    """A producer id is the least bits of one TxnID at most."""
    await produce(broker, 1)
    transactions = broker.runtime.transactions
    key = TransactionKey.of_kafka("k")
    begun = await transactions.init_producer_id(
        InitProducerId(key, 60_000, ProducerIdAndEpoch(), "", "")
    )
    topic = await broker.runtime.topics.get("t")
    await transactions.add_partitions(key, begun.producer, topic.partition_ids)  # type: ignore[union-attr]
    client = await broker.client()
    await client.produce_to(TOPIC)
    txn = {"txnid_most_bits": 3, "txnid_least_bits": begun.producer.producer_id}  # type: ignore[union-attr]
    assert await send(client, 1, txn) is ServerError.NOT_ALLOWED_ERROR
    assert await commit(client, txn) is ServerError.TRANSACTION_NOT_FOUND
    assert await add_partition(client, txn) is ServerError.TRANSACTION_NOT_FOUND


async def test_brokers_commands_tell_how_it_has_ended(broker: Broker) -> None:
    client = await broker.client()
    of = Subscription(topic=TOPIC, subscription="s")
    txn = await begin(client)

    async def told(action: TxnAction) -> list[ServerError | None]:
        on_partition = CommandEndTxnOnPartition(topic=TOPIC, txn_action=action, **txn)
        on_subscription = CommandEndTxnOnSubscription(subscription=of, txn_action=action, **txn)
        return [
            error_of(await client.ask(on_partition, CommandType.END_TXN_ON_PARTITION_RESPONSE)),
            error_of(
                await client.ask(on_subscription, CommandType.END_TXN_ON_SUBSCRIPTION_RESPONSE)
            ),
        ]

    assert await told(TxnAction.COMMIT) == [ServerError.INVALID_TXN_STATUS] * 2
    assert await commit(client, txn) is None
    assert await told(TxnAction.COMMIT) == [None] * 2
    assert await told(TxnAction.ABORT) == [ServerError.INVALID_TXN_STATUS] * 2


# --- producing ---


async def test_nothing_behind_an_open_transaction_is_read(broker: Broker) -> None:
    await produce(broker, 1)
    client, reader = await broker.client(), await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(reader)
    await messages(reader, 1)
    txn = await begin(client)
    assert await add_partition(client, txn) is None
    assert await send(client, 1, txn) is None
    assert await send(client, 2) is None  # plain, and waits too
    assert await is_quiet(reader)
    last = await reader.ask(
        CommandGetLastMessageId(consumer_id=1), CommandType.GET_LAST_MESSAGE_ID_RESPONSE
    )
    assert last.last_message_id.entry_id == 0
    assert await commit(client, txn) is None
    found = await messages(reader, 2)
    assert [each.message_id.entry_id for each in found] == [1, 2]


async def test_what_was_aborted_is_never_read(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to(TOPIC)
    txn = await begin(client)
    assert await add_partition(client, txn) is None
    for number in range(3):
        assert await send(client, number, txn) is None
    assert await abort(client, txn) is None
    assert await send(client, 3) is None
    assert await read_all(broker, 1) == [4]  # behind the marker
    reader = await broker.client()
    await subscribe(reader, subscription="reader", permits=0)
    last = await reader.ask(
        CommandGetLastMessageId(consumer_id=1), CommandType.GET_LAST_MESSAGE_ID_RESPONSE
    )
    assert last.last_message_id.entry_id == 4


async def test_a_topic_of_aborted_messages_is_empty(broker: Broker) -> None:
    client = await broker.client()
    await client.produce_to(TOPIC)
    txn = await begin(client)
    await add_partition(client, txn)
    await send(client, 0, txn)
    await abort(client, txn)
    await subscribe(client)
    last = await client.ask(
        CommandGetLastMessageId(consumer_id=1), CommandType.GET_LAST_MESSAGE_ID_RESPONSE
    )
    assert last.last_message_id == earliest()


async def test_partitions_forget_a_transactions_producer(broker: Broker, query: Any) -> None:
    client = await broker.client()
    await client.produce_to(TOPIC)
    for action in (commit, abort):
        txn = await begin(client)
        await add_partition(client, txn)
        await send(client, 0, txn)
        assert query("SELECT count(*) FROM producer_state") == [(1,)]
        await action(client, txn)
        for table in ("producer_state", "transaction_partition", "transaction_participant"):
            assert query(f"SELECT count(*) FROM {table}") == [(0,)]


# --- acknowledging ---


async def test_acknowledgements_count_with_the_commit(broker: Broker, query: Any) -> None:
    await produce(broker, 3)
    client = await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 3)]
    txn = await begin(client)
    assert await add_subscription(client, txn) is None
    assert await acknowledge(client, txn, *ids[:2]) is None
    assert query("SELECT state FROM v_pending_ack") == [("pending",)] * 2
    assert query("SELECT mark_delete FROM subscription") == [(0,)]
    assert query("SELECT subscriptions FROM v_transaction") == [("t-0/s",)]
    assert await commit(client, txn) is None
    assert query("SELECT backlog FROM v_subscription_backlog") == [(1,)]
    assert await acknowledge(client, None, ids[2]) is None
    assert query("SELECT mark_delete FROM subscription") == [(3,)]
    assert query("SELECT count(*) FROM pending_ack") == [(0,)]


async def test_an_abort_gives_them_out_again(broker: Broker) -> None:
    await produce(broker, 2)
    client, other = await broker.client(), await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 2)]
    await subscribe(other)
    txn = await begin(client)
    assert await acknowledge(client, txn, *ids) is None
    assert await is_quiet(other)
    client.transport.close()  # what is pending is nobody's
    assert await is_quiet(other)
    client = await broker.client()
    assert await abort(client, txn) is None
    found = await messages(other, 2)
    assert [each.message_id for each in found] == ids
    assert [each.redelivery_count for each in found] == [1, 1]


async def test_one_of_two_transactions_gets_a_message(broker: Broker) -> None:
    await produce(broker, 2)
    client = await broker.client()
    await subscribe(client)
    first, second = [each.message_id for each in await messages(client, 2)]
    one, two = await begin(client), await begin(client)
    assert await acknowledge(client, one, first) is None
    assert (
        await acknowledge(client, one, first) is ServerError.TRANSACTION_CONFLICT
    )  # a second copy
    assert await acknowledge(client, one, second, second) is ServerError.TRANSACTION_CONFLICT
    assert await acknowledge(client, two, first, second) is ServerError.TRANSACTION_CONFLICT
    assert await acknowledge(client, two, second) is None
    assert await commit(client, one) is None
    assert await acknowledge(client, two, first) is ServerError.TRANSACTION_CONFLICT
    assert await commit(client, two) is None


async def test_two_copies_at_once_are_a_conflict(broker: Broker) -> None:
    """Also while the first acknowledgement is still on its way into the store."""
    await produce(broker, 1)
    client = await broker.client()
    await subscribe(client)
    (found,) = await messages(client, 1)
    txn = await begin(client)
    for request_id in (1001, 1002):
        say_acknowledge(client, txn, request_id, found.message_id)
    answers = [await client.hear(CommandType.ACK_RESPONSE) for _ in range(2)]
    assert {each.request_id: error_of(each) for each in answers} == {
        1001: None,
        1002: ServerError.TRANSACTION_CONFLICT,
    }


async def test_who_was_not_answered_may_acknowledge_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost while the acknowledgement is on its way into the store."""
    await produce(broker, 2)
    client = await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 2)]
    txn = await begin(client)
    writes = broker.runtime.transactions._acks
    write = writes.write
    has_come, goes_on, is_stored = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def write_late(wanted: Any) -> Any:
        has_come.set()
        await goes_on.wait()
        await write(wanted)
        is_stored.set()

    monkeypatch.setattr(writes, "write", write_late)
    say_acknowledge(client, txn, 1001, ids[0])
    await asyncio.wait_for(has_come.wait(), 20)
    client.transport.close()
    client = await broker.client()
    await subscribe(client)
    (second,) = await messages(client, 1)  # so the connection is known to be lost
    assert second.message_id == ids[1]
    goes_on.set()
    await asyncio.wait_for(is_stored.wait(), 20)
    assert await acknowledge(client, txn, ids[0]) is None
    assert await acknowledge(client, txn, ids[0]) is ServerError.TRANSACTION_CONFLICT
    assert await commit(client, txn) is None
    assert await read_all(broker, 0, subscription="s") == []


async def test_parts_of_a_batch_are_no_conflict(broker: Broker) -> None:
    producer = await broker.client()
    await producer.produce_to(TOPIC)
    producer.send(entry_of(b"x" * 40, num_messages_in_batch=4), num_messages=4)
    await producer.hear(CommandType.SEND_RECEIPT)
    client = await broker.client()
    await subscribe(client)
    (found,) = await messages(client, 1)

    def part(*done: int) -> MessageIdData:
        each = MessageIdData()
        each.CopyFrom(found.message_id)
        each.ack_set.extend(unacknowledged_words([range(i, i + 1) for i in done], 4))
        each.batch_size = 4
        return each

    one, two = await begin(client), await begin(client)
    assert await acknowledge(client, one, part(0, 1)) is None
    assert await acknowledge(client, two, part(1, 2)) is ServerError.TRANSACTION_CONFLICT
    assert await acknowledge(client, two, part(2)) is None
    assert await commit(client, one) is None
    assert await abort(client, two) is None
    (again,) = await messages(client, 1)
    assert again.ack_set == [0b0100]


async def test_a_read_that_fails_keeps_what_is_given_out_again_and_no_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await broker.client()
    await producer.produce_to(TOPIC)
    producer.send(entry_of(b"x" * 20, num_messages_in_batch=2), num_messages=2)
    await producer.hear(CommandType.SEND_RECEIPT)
    client, other = await broker.client(), await broker.client()
    await subscribe(client)
    (found,) = await messages(client, 1)
    await subscribe(other)
    first = MessageIdData(batch_size=2, ack_set=unacknowledged_words([range(1)], 2))
    first.MergeFrom(found.message_id)
    txn = await begin(client)
    assert await acknowledge(client, txn, first) is None
    partitions, failed = broker.runtime.partitions, asyncio.Event()
    read = partitions.read

    async def fail_once(*wanted: Any) -> Any:
        if failed.is_set():
            return await read(*wanted)
        failed.set()
        raise StoreUnavailable("gone")

    monkeypatch.setattr(partitions, "read", fail_once)
    assert await abort(client, txn) is None
    (again,) = await messages(client, 1)
    assert failed.is_set()
    assert (again.ack_set, again.redelivery_count) == ([0b01], 2)
    assert await is_quiet(other)
    assert await is_quiet(client)


@pytest.mark.parametrize("is_commit", [True, False])
async def test_a_key_waits_for_the_transaction_of_a_consumer_that_has_gone(
    broker: Broker, is_commit: bool
) -> None:
    """Else an abort would bring its first message after its second one."""
    producer = await broker.client()
    await producer.produce_to(TOPIC)

    async def send_key(key: bytes) -> None:
        producer.send(entry_of(b"x", partition_key=key))
        await producer.hear(CommandType.SEND_RECEIPT)

    await send_key(b"a")
    client, other = await broker.client(), await broker.client()
    await subscribe(client, sub_type=SubType.KEY_SHARED)
    (found,) = await messages(client, 1)
    txn = await begin(other)
    assert await acknowledge(client, txn, found.message_id) is None
    client.transport.close()
    await send_key(b"a")
    await send_key(b"b")
    await subscribe(other, sub_type=SubType.KEY_SHARED)
    (of_b,) = await messages(other, 1)
    assert of_b.message_id.entry_id == 2
    assert await is_quiet(other)
    assert await (commit if is_commit else abort)(other, txn) is None
    expected = [1] if is_commit else [0, 1]
    come = await messages(other, len(expected))
    assert [each.message_id.entry_id for each in come] == expected


@pytest.mark.parametrize("kind", [SubType.EXCLUSIVE, SubType.FAILOVER])
async def test_one_cumulative_acknowledgement_at_a_time(broker: Broker, kind: SubType) -> None:
    await produce(broker, 4)
    client = await broker.client()
    await subscribe(client, sub_type=kind)
    if kind is SubType.FAILOVER:
        await client.hear(CommandType.ACTIVE_CONSUMER_CHANGE)
    ids = [each.message_id for each in await messages(client, 4)]
    one, two = await begin(client), await begin(client)
    cumulative = {"kind": AckType.CUMULATIVE}
    assert await acknowledge(client, one, ids[0], **cumulative) is None
    assert await acknowledge(client, one, ids[1], **cumulative) is None
    conflict = ServerError.TRANSACTION_CONFLICT
    assert await acknowledge(client, two, ids[2], **cumulative) is conflict
    assert await abort(client, one) is None
    again = await messages(client, 4)
    assert [each.message_id.entry_id for each in again] == [0, 1, 2, 3]
    assert await acknowledge(client, two, ids[2], **cumulative) is None
    assert await commit(client, two) is None
    assert await acknowledge(client, await begin(client), ids[2], **cumulative) is conflict
    assert await acknowledge(client, None, ids[3], **cumulative) is None


async def test_a_plain_acknowledgement_outlives_the_abort(broker: Broker, query: Any) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await subscribe(client)
    (found,) = await messages(client, 1)
    txn = await begin(client)
    assert await acknowledge(client, txn, found.message_id) is None
    assert await acknowledge(client, None, found.message_id) is None
    assert await abort(client, txn) is None
    assert await is_quiet(client)
    assert query("SELECT mark_delete FROM subscription") == [(1,)]


async def test_what_is_pending_comes_back_with_a_broker(make_broker: Any, query: Any) -> None:
    first = await make_broker()
    await produce(first, 3)
    client = await first.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 3)]
    kept, dropped = await begin(client), await begin(client)
    assert await acknowledge(client, kept, ids[0]) is None
    assert await acknowledge(client, dropped, ids[1]) is None
    await first.runtime.subscriptions.stop()
    await first.runtime.leases.release()
    second = await make_broker()
    client = await second.client()
    await subscribe(client)
    (found,) = await messages(client, 1)
    assert found.message_id == ids[2]
    assert await is_quiet(client)
    # Ended where the dispatcher is not.
    transactions = first.runtime.transactions
    for txn, is_commit in ((kept, True), (dropped, False)):
        key = TransactionKey.of_pulsar(*txn.values())
        await transactions.end_single(key, txn["txnid_least_bits"], is_commit=is_commit)
    async with background(second):
        (found,) = await asyncio.wait_for(messages(client, 1), 20)
    assert found.message_id == ids[1]
    assert await acknowledge(client, None, *ids[1:]) is None
    assert query("SELECT mark_delete FROM subscription") == [(3,)]
    assert query("SELECT count(*) FROM pending_ack") == [(0,)]


async def test_what_ends_while_it_is_looked_at_is_looked_at_once_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for ever, while another transaction is open."""
    await produce(broker, 2)
    client, other = await broker.client(), await broker.client()
    await subscribe(client)
    ids = [each.message_id for each in await messages(client, 2)]
    kept, ended = await begin(client), await begin(client)
    assert await acknowledge(client, kept, ids[0]) is None
    assert await acknowledge(client, ended, ids[1]) is None
    store = broker.runtime.subscriptions.pending_acks._store
    read, reads = store.read_pending, []

    async def read_and_end(subscription_ids: Any) -> Any:
        found = await read(subscription_ids)
        reads.append(found)
        if len(reads) == 1:
            assert await abort(other, ended) is None
        return found

    monkeypatch.setattr(store, "read_pending", read_and_end)
    async with background(broker):
        (again,) = await asyncio.wait_for(messages(client, 1), 20)
        assert again.message_id == ids[1]
        await asyncio.sleep(0.5)
        assert 1 <= len(reads) <= 3
        assert await commit(other, kept) is None


async def test_a_subscription_that_goes_takes_its_own_along(broker: Broker, query: Any) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await subscribe(client)
    (found,) = await messages(client, 1)
    txn = await begin(client)
    assert await acknowledge(client, txn, found.message_id) is None
    await client.ask(CommandUnsubscribe(consumer_id=1), CommandType.SUCCESS)
    assert query("SELECT count(*) FROM pending_ack") == [(0,)]
    assert await commit(client, txn) is None


async def test_a_reader_acknowledges_in_no_transaction(broker: Broker) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await subscribe(client, sub_type=SubType.EXCLUSIVE, durable=False)
    (found,) = await messages(client, 1)
    txn = await begin(client)
    error = await acknowledge(client, txn, found.message_id)
    assert error is ServerError.NOT_ALLOWED_ERROR


# --- time ---


async def test_time_ends_a_transaction_for_good(broker: Broker) -> None:
    await produce(broker, 1)
    client = await broker.client()
    await client.produce_to(TOPIC)
    await subscribe(client)
    (found,) = await messages(client, 1)
    async with background(broker):
        txn = await begin(client, ttl_ms=3_000)
        await add_partition(client, txn)
        assert await send(client, 1, txn) is None
        assert await acknowledge(client, txn, found.message_id) is None
        (again,) = await asyncio.wait_for(messages(client, 1), 20)
    assert (again.message_id, again.redelivery_count) == (found.message_id, 1)
    assert await commit(client, txn) is ServerError.INVALID_TXN_STATUS
    assert await abort(client, txn) is None
    assert await send(client, 2, txn) is ServerError.NOT_ALLOWED_ERROR

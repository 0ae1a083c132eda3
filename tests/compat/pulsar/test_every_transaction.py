"""Java's and Go's transactions, on one broker: produce, acknowledge, both; time; conflicts.

C++'s client, and so Python's and Node's, has none.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import psycopg
import pytest

from tests.compat.pulsar.clients import (
    Client,
    Consumer,
    Message,
    Producer,
    Transaction,
    eventually,
    numbers,
    refusal,
    values,
)
from tests.compat.pulsar.conftest import JAVA, Both, MakeClient, make_topic, of
from tests.compat.pulsar.raw import RawClient

TYPES = ["Exclusive", "Failover", "Shared", "Key_Shared"]
CONFLICT = {"java": "TransactionConflictException", "go": "TransactionConflict"}
ENDED = {"java": "InvalidTxnStatusException", "go": "Result(40)"}  # InvalidStatus has no name there
# Java's producers take messages of transactions only without a time limit.
NO_LIMIT = {"send_timeout_ms": 0}


@pytest.fixture(params=[JAVA, "go"])
def stock(request: pytest.FixtureRequest, make_client: MakeClient) -> Client:
    """A client with transactions."""
    return make_client(request.param, has_transactions=True)


def producer_of(client: Client, topic: str, **settings: Any) -> Producer:
    return client.producer(topic, **NO_LIMIT, **settings)


# --- producing ---

WAYS: dict[str, dict[str, Any]] = {
    "single": {},
    "batched": {"is_batched": True},
    "by-key": {"is_batched": True, "is_by_key": True},
    **{
        codec: {"is_batched": True, "compression": codec}
        for codec in ("lz4", "zlib", "zstd", "snappy")
    },
}


def test_what_commits_is_read_and_what_aborts_is_not(stock: Client, topic: str) -> None:
    sent = [{"value": b"%d" % number, "key": f"k{number % 3}"} for number in range(9)]
    for way, settings in WAYS.items():
        name = f"{topic}-{way}"
        consumer = stock.consumer(name, is_earliest=True)
        producer = producer_of(stock, name, **settings)
        dropped = stock.begin()
        producer.send(*({"value": b"dropped", "key": "k0"} for _ in range(9)), transaction=dropped)
        kept = stock.begin()
        assert kept.id != dropped.id
        ids = producer.send(*sent, transaction=kept)
        kept.commit()
        dropped.abort()
        assert (kept.state, dropped.state) == ("COMMITTED", "ABORTED")
        found = consumer.take(9)
        if "is_by_key" in settings:  # a batch a key
            assert sorted(values(found)) == numbers(9), way
        else:
            assert values(found) == numbers(9), way
            assert [each.id.place for each in found] == [each.place for each in ids]
        assert consumer.nothing_comes(20), way
        producer.close()
        consumer.close()


def test_a_chunked_message_is_of_its_transaction(stock: Client, topic: str) -> None:
    consumer = stock.consumer(topic)
    producer = producer_of(stock, topic, is_chunking=True)
    large = bytes(range(256)) * 24_000  # 6 MB
    for number, is_commit in enumerate((False, True)):
        transaction = stock.begin()
        producer.send(large + b"%d" % number, transaction=transaction)
        end(transaction, is_commit=is_commit)
    (found,) = consumer.take(1)
    assert found.value == large + b"1"
    assert consumer.nothing_comes()


def end(transaction: Transaction, *, is_commit: bool) -> None:
    if is_commit:
        transaction.commit()
    else:
        transaction.abort()


@pytest.mark.parametrize("is_commit", [True, False])
def test_nothing_at_or_behind_an_open_transaction_is_read(
    stock: Client, topic: str, is_commit: bool
) -> None:
    producer = producer_of(stock, topic)
    (first,) = producer.send(b"before")
    consumer = stock.consumer(topic, "exclusive", is_earliest=True)
    shared = stock.consumer(topic, "shared", type="Shared", is_earliest=True)
    reader = stock.reader(topic)
    transaction = stock.begin()
    producer.send(b"in it", transaction=transaction)
    producer.send(b"plain")  # waits as well
    for each in (consumer, shared):
        assert values(each.take(1)) == [b"before"]
        assert each.nothing_comes()
        assert [found.place for found in each.last_ids()] == [first.place]
    assert values(reader.rest()) == [b"before"]
    assert not reader.is_available()
    end(transaction, is_commit=is_commit)
    rest = [b"in it", b"plain"] if is_commit else [b"plain"]
    for each in (consumer, shared):
        assert values(each.take(len(rest))) == rest
    assert reader.is_available()
    assert values(reader.rest()) == rest
    assert values(stock.reader(topic).rest()) == [b"before", *rest]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_topic_with_an_open_transaction_alone_has_nothing(
    stock: Client, topic: str, is_commit: bool
) -> None:
    transaction = stock.begin()
    producer_of(stock, topic).send(b"first", transaction=transaction)
    reader = stock.reader(topic)
    assert not reader.is_available()
    end(transaction, is_commit=is_commit)
    assert values(reader.rest()) == ([b"first"] if is_commit else [])


def test_partitions_topics_and_producers_of_one_transaction(
    both: Both, stock: Client, make_client: MakeClient, topic: str
) -> None:
    """All or nothing: whoever sees one of them, sees the others."""
    make_topic(both.gateway.bootstrap, f"{topic}-p", 3)
    topics = [f"{topic}-a", f"{topic}-b", f"{topic}-p"]
    consumer = stock.consumer(topics, type="Shared")
    producers = [
        producer_of(stock, each, is_batched=is_batched, is_round_robin=True)
        for each in topics
        for is_batched in (False, True)
    ]
    for is_commit in (False, True, False, True):
        transaction = stock.begin()
        value = b"%d" % is_commit
        for producer in producers:
            producer.send(*[value] * 6, transaction=transaction)
        assert consumer.nothing_comes(50)
        end(transaction, is_commit=is_commit)
        if is_commit:
            found = consumer.take(36)
            assert set(values(found)) == {b"1"}
            assert len({each.topic for each in found}) == 5
    assert consumer.nothing_comes(100)


def test_transactions_beside_each_other(stock: Client, topic: str) -> None:
    """Mixed in one partition; the first to begin ends last."""
    producer = producer_of(stock, topic)
    consumer = stock.consumer(topic)
    transactions = [stock.begin() for _ in range(5)]
    assert len({each.id for each in transactions}) == 5
    for number, (_, transaction) in enumerate(itertools.product(range(3), transactions)):
        producer.send(b"%d" % number, transaction=transaction)
    for place in (4, 3, 2, 1, 0):
        assert consumer.nothing_comes(20)
        end(transactions[place], is_commit=place % 2 == 0)
    kept = [b"%d" % number for number in range(15) if number % 5 % 2 == 0]
    assert values(consumer.take(9)) == kept
    assert consumer.nothing_comes(50)


def test_a_transaction_of_nothing(stock: Client) -> None:
    for is_commit in (True, False):
        transaction = stock.begin()
        assert transaction.state == "OPEN"
        end(transaction, is_commit=is_commit)
        assert transaction.state == ("COMMITTED" if is_commit else "ABORTED")


def test_what_has_ended_takes_nothing_more(stock: Client, topic: str) -> None:
    """The client itself refuses it, with its own words."""
    producer = producer_of(stock, topic)
    consumer = stock.consumer(topic)
    transaction = stock.begin()
    producer.send(b"1", transaction=transaction)
    transaction.commit()
    assert refusal(lambda: producer.send(b"2", transaction=transaction))
    (found,) = consumer.take(1, acknowledge=False)
    assert refusal(lambda: consumer.acknowledge(found, transaction=transaction))
    assert refusal(transaction.abort)
    assert found.value == b"1"
    assert consumer.nothing_comes(50)


def test_deduplication_in_a_transaction(both: Both, stock: Client, topic: str) -> None:
    make_topic(both.gateway.bootstrap, topic, 1, **{"penstock.deduplication.enabled": "true"})
    producer = producer_of(stock, topic, producer_name="app")
    consumer = stock.consumer(topic)

    def send(*sequence_ids: int, transaction: Transaction | None = None) -> list[int]:
        ids = producer.send(
            *({"value": b"%d" % each, "sequence_id": each} for each in sequence_ids),
            transaction=transaction,
        )
        return [each.entry for each in ids]

    kept = stock.begin()
    assert send(10, 11, transaction=kept) == [0, 1]
    assert send(10, 11, 12, transaction=kept)[2] == 2
    kept.commit()
    # A duplicate of what has committed is none of the next transaction's.
    other = stock.begin()
    assert send(11, 13, transaction=other)[1] == 4
    other.commit()
    send(12, 13)
    assert values(consumer.take(4)) == numbers(4, 10)
    assert consumer.nothing_comes(50)


@of("go")
def test_gos_batches_are_of_their_first_messages_transaction(stock: Client, topic: str) -> None:
    """Two transactions at once in one batching producer: the client mixes them.

    Nothing of the other is lost: it stands in the same batch (compat/pulsar/go/FINDINGS.md).
    """
    producer = producer_of(stock, topic, is_batched=True, batch_delay_ms=300)
    consumer = stock.consumer(topic)
    one, other = stock.begin(), stock.begin()
    sending = [
        producer.send_later(b"one", transaction=one),
        producer.send_later(b"other", transaction=other),
    ]
    for each in sending:
        each.join()
    other.abort()
    one.commit()
    found = values(consumer.take(1))
    found += values(consumer.some(1))
    assert found[0] in (b"one", b"other")


@of("go")
def test_gos_batching_producer_keeps_an_ended_transactions_id(stock: Client, topic: str) -> None:
    """Its plain batches bear the id of the last transaction: refused, so that nobody waits for an
    end that never comes. Its batches of the next transaction are in order again."""
    settings = {"is_batched": True, "send_timeout_ms": 4_000}
    producer = stock.producer(topic, **settings)
    for number in range(2):
        transaction = stock.begin()
        producer.send(b"%d" % number, transaction=transaction)
        transaction.commit()
    assert refusal(lambda: producer.send(b"plain")) == "TimeoutError"
    stock.producer(topic, **settings).send(b"plain")  # by one that was in no transaction
    assert values(stock.reader(topic).rest()) == [b"0", b"1", b"plain"]


def test_keys_keep_their_order_when_what_was_aborted_comes_again(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    """Key_Shared: what is aborted comes before the key's next, whichever consumer has it."""
    other = make_client(stock.name, has_transactions=True)
    members = [
        (client, client.consumer(topic, type="Key_Shared", is_earliest=True))
        for client in (stock, other)
    ]
    producer = stock.producer(topic)
    sent = 0
    done: dict[bytes | None, list[int]] = {}
    deadline = time.monotonic() + 60
    for round_ in itertools.count():
        if sent < 40:
            producer.send(
                *({"value": b"%d" % n, "key": f"k{n % 5}"} for n in range(sent, sent + 10))
            )
            sent += 10
        elif sum(map(len, done.values())) == sent:
            break
        hands: list[list[Message]] = [[], []]
        while sum(map(len, hands)) < sent - sum(map(len, done.values())):
            # All, so that none is on its way: what is aborted would come behind it.
            assert time.monotonic() < deadline, (hands, done)
            for hand, (_, consumer) in zip(hands, members, strict=True):
                hand += consumer.some(100, 50)
        for place, (client, consumer) in enumerate(members):
            found = hands[place]
            transaction = client.begin()
            consumer.acknowledge(*found, transaction=transaction)
            is_commit = (round_ + place) % 3 == 1
            end(transaction, is_commit=is_commit)
            if is_commit:
                for each in found:
                    done.setdefault(each.key, []).append(int(each.value or b""))
    assert {key: sorted(each) for key, each in done.items()} == done
    assert len(done) == 5


# --- acknowledging ---


def filled(stock: Client, topic: str, kind: str, count: int, **settings: Any) -> Consumer:
    """A consumer of a new subscription of a topic with so many messages."""
    sent = [{"value": b"%d" % number, "key": f"k{number % 4}"} for number in range(count)]
    stock.send(topic, *sent, **settings)
    return stock.consumer(topic, type=kind, is_earliest=True)


@pytest.mark.parametrize("kind", TYPES)
def test_acknowledgements_count_with_the_commit_alone(
    both: Both, stock: Client, topic: str, kind: str
) -> None:
    consumer = filled(stock, topic, kind, 10)
    found = consumer.take(10, acknowledge=False)
    dropped = stock.begin()
    consumer.acknowledge(*found[:6], transaction=dropped)
    kept = stock.begin()
    consumer.acknowledge(*found[6:], transaction=kept)
    assert pending_of(both, topic) == 10
    assert consumer.nothing_comes(50)
    kept.commit()
    dropped.abort()
    again = consumer.take(6)  # it does not ask
    assert sorted(values(again)) == numbers(6)
    if kind in ("Shared", "Key_Shared"):
        assert {each.redelivery_count for each in again} == {1}
    for key in {each.key for each in again}:
        of_key = values([each for each in again if each.key == key])
        assert of_key == sorted(of_key)
    consumer.close()
    assert stock.consumer(topic, type=kind).nothing_comes()
    assert eventually(lambda: pending_of(both, topic) == 0)


def pending_of(both: Both, topic: str) -> int:
    """Rows that are pending, as people see them."""
    with psycopg.connect(str(both.gateway.database_url)) as connection:
        row = connection.execute(
            "SELECT count(*) FROM v_pending_ack WHERE topic = %s", [topic]
        ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_what_is_pending_is_nobody_elses(
    stock: Client, make_client: MakeClient, topic: str, kind: str
) -> None:
    consumer = filled(stock, topic, kind, 4)
    found = consumer.take(4, acknowledge=False)
    transaction = stock.begin()
    consumer.acknowledge(*found[:3], transaction=transaction)
    consumer.close()
    later = make_client(stock.name).consumer(topic, type=kind)
    assert values(later.take(1)) == [b"3"]
    assert later.nothing_comes()
    transaction.abort()
    assert values(later.take(3)) == numbers(3)


@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
@pytest.mark.parametrize("is_by_index", [False, True])
def test_messages_of_a_batch_in_transactions(
    stock: Client, topic: str, kind: str, is_by_index: bool
) -> None:
    stock.send(topic, *numbers(10), is_batched=True, batch_delay_ms=60_000)
    consumer = stock.consumer(topic, type=kind, is_earliest=True, is_by_index=is_by_index)
    found = consumer.take(10, acknowledge=False)
    assert len({each.id.entry for each in found}) == 1
    one, other = stock.begin(), stock.begin()
    consumer.acknowledge(*found[:4], transaction=one)
    if stock.name == "go":
        # It says nothing until all of a batch is done; by index it says with each what it said of
        # the batch before, in whatever transaction: a conflict, as with Apache Pulsar.
        one.commit()
        name = refusal(lambda: consumer.acknowledge(*found[4:], transaction=other))
        assert name == ("TransactionConflict" if is_by_index else "")
        if not is_by_index:
            other.commit()
        consumer.close()
        again = stock.consumer(topic, type=kind, is_by_index=True).some(10)
        assert values(again) == (numbers(6, 4) if is_by_index else [])
        return
    consumer.acknowledge(*found[4:8], transaction=other)
    assert consumer.nothing_comes(50)
    one.commit()
    other.abort()
    # On Exclusive all comes again; on Shared not what it still has.
    again = consumer.take(6 if kind == "Exclusive" else 4, acknowledge=False)
    assert values(again) == numbers(len(again), 4)
    assert consumer.nothing_comes(50)
    in_hand = again if kind == "Exclusive" else [*again, *found[8:]]
    last = stock.begin()
    consumer.acknowledge(*in_hand, transaction=last)
    last.commit()
    consumer.close()
    assert stock.consumer(topic, type=kind).nothing_comes()


@of("java")
@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
@pytest.mark.parametrize("is_batched", [False, True])
def test_cumulative_acknowledgements(
    stock: Client, topic: str, kind: str, is_batched: bool
) -> None:
    consumer = filled(stock, topic, kind, 12, is_batched=is_batched, batch_messages=4)
    found = consumer.take(12, acknowledge=False)
    one, other = stock.begin(), stock.begin()
    consumer.acknowledge(found[2], is_cumulative=True, transaction=one)
    consumer.acknowledge(found[5], is_cumulative=True, transaction=one)

    def by_other() -> None:
        consumer.acknowledge(found[8], is_cumulative=True, transaction=other)

    assert refusal(by_other) == "TransactionConflictException"
    one.abort()
    again = consumer.take(12, acknowledge=False)
    assert values(again) == values(found)
    last = stock.begin()
    consumer.acknowledge(again[5], is_cumulative=True, transaction=last)
    last.commit()
    consumer.close()
    rest = stock.consumer(topic, type=kind, is_by_index=True).take(6)
    assert values(rest) == numbers(6, 6)


def test_one_of_two_transactions_has_a_message(
    stock: Client, make_client: MakeClient, topic: str
) -> None:
    consumer = filled(stock, topic, "Shared", 2)
    first, second = consumer.take(2, acknowledge=False)
    one, other = stock.begin(), stock.begin()
    consumer.acknowledge(first, transaction=one)
    name = refusal(lambda: consumer.acknowledge(first, transaction=other))
    assert name == CONFLICT[stock.name]
    # After that the client's other transaction cannot commit: Java aborts it, Go leaves it alone.
    assert refusal(other.commit)
    consumer.acknowledge(second, transaction=one)
    one.commit()
    consumer.close()
    assert stock.consumer(topic, type="Shared").nothing_comes()
    # What is acknowledged already is nobody's, either.
    consumer = stock.consumer(topic, "late", type="Shared", is_earliest=True, is_receipted=True)
    found = consumer.take(2, acknowledge=False)
    consumer.acknowledge(found[0])
    late = stock.begin()
    name = refusal(lambda: consumer.acknowledge(found[0], transaction=late))
    assert name == CONFLICT[stock.name]


# --- time ---


def test_time_ends_a_transaction(stock: Client, topic: str) -> None:
    consumer = filled(stock, topic, "Shared", 1)
    producer = producer_of(stock, topic)
    (found,) = consumer.take(1, acknowledge=False)
    begun = time.monotonic()
    transaction = stock.begin(ttl_ms=4_000)
    producer.send(b"dropped", transaction=transaction)
    consumer.acknowledge(found, transaction=transaction)
    producer.send(b"plain")
    again = consumer.take(2, acknowledge=False)
    assert 3.9 < time.monotonic() - begun < 30
    assert sorted(values(again)) == [b"0", b"plain"]
    assert eventually(lambda: transaction.state == "TIME_OUT")
    assert refusal(transaction.commit)
    assert refusal(lambda: producer.send(b"late", transaction=transaction))
    assert consumer.nothing_comes(50)


def test_a_client_hears_that_its_transaction_was_ended(
    both: Both, stock: Client, topic: str
) -> None:
    """By somebody else, so its own clock says nothing."""
    with RawClient(both.pulsar_port) as other:
        for is_commit in (True, False):
            transaction = stock.begin()
            producer_of(stock, topic).send(b"%d" % is_commit, transaction=transaction)
            other.end(transaction.id, is_commit=not is_commit)
            act = transaction.commit if is_commit else transaction.abort
            assert refusal(act) == ENDED[stock.name]
            assert transaction.state == "ERROR"
            transaction = stock.begin()
            other.end(transaction.id, is_commit=is_commit)
            end(transaction, is_commit=is_commit)  # the same again
    assert values(stock.reader(topic).rest()) == [b"0"]


def test_a_send_of_an_ended_transaction_is_refused(both: Both, stock: Client, topic: str) -> None:
    """What the client does about it: Java's send fails; Go's waits for its time limit."""
    producer = stock.producer(topic, send_timeout_ms=0 if stock.name == "java" else 4_000)
    with RawClient(both.pulsar_port) as other:
        transaction = stock.begin()
        producer.send(b"1", transaction=transaction)
        other.end(transaction.id, is_commit=True)
        assert refusal(lambda: producer.send(b"2", transaction=transaction))
        assert refusal(transaction.commit)
    assert values(stock.reader(topic).rest()) == [b"1"]


# --- all of it ---


@pytest.mark.parametrize("kind", TYPES)
def test_consume_process_produce_exactly_once(
    stock: Client, make_client: MakeClient, topic: str, kind: str
) -> None:
    """With aborts: what an aborted round took comes again, what it wrote is never read."""
    source, sink = f"{topic}-source", f"{topic}-sink"
    count = 60
    # Go acknowledges nothing of a batch before it is done, whatever the transactions.
    is_batched = stock.name == "java" and kind == "Exclusive"
    consumer = filled(stock, source, kind, count, is_batched=is_batched)
    producer = producer_of(stock, sink, is_batched=True)
    done: Counter[bytes | None] = Counter()
    deadline = time.monotonic() + 60
    for round_ in itertools.count():
        if len(done) == count:
            break
        assert time.monotonic() < deadline
        # On Exclusive and Failover an abort brings all again that is not acknowledged, and what was
        # on its way to the client, or in its queue, comes twice, as with Apache Pulsar.
        come = {each.value: each for each in consumer.some(7, 50) if each.value not in done}
        if not come:
            continue
        transaction = stock.begin()
        written = [b"%d of %s" % (round_, value) for value in come if value]
        producer.send(*written, transaction=transaction)
        consumer.acknowledge(*come.values(), transaction=transaction)
        is_commit = round_ % 3 != 1
        end(transaction, is_commit=is_commit)
        if is_commit:
            done.update(come.keys())
    assert done == Counter(numbers(count))
    consumer.close()
    assert make_client(stock.name).consumer(source, type=kind).nothing_comes()
    read = [int((value or b"").split()[-1]) for value in values(stock.reader(sink).rest())]
    assert sorted(read) == list(range(count))

"""One log, one coordinator: Pulsar's transactions as Kafka's stock clients see them, and Kafka's as
Pulsar's do; both at once in one topic."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from compat.java import tools
from tests.compat import clients as kafka_clients
from tests.compat.clients import READ_COMMITTED, READ_UNCOMMITTED, read_to_end
from tests.compat.conftest import make_client as kafka_client
from tests.compat.pulsar.clients import Client, Transaction, numbers, values
from tests.compat.pulsar.conftest import JAVA, WITHIN_S, Both, MakeClient, make_topic, of
from tests.compat.test_transactions_tool_java import TRANSACTIONS, rows

PULSARS_CODECS = ("none", "lz4", "zlib", "zstd", "snappy")
# Java's consumer waits for its last fetch when it is closed.
WAIT_OF_A_FETCH = {"confluent": "fetch.wait.max.ms", "aiokafka": "fetch_max_wait_ms"}
KAFKAS_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="session")
def bootstrap(both: Both) -> str:
    """Kafka's clients are of the same broker."""
    return both.gateway.bootstrap


@pytest.fixture(params=["confluent", "aiokafka", JAVA])
def kafka(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[kafka_clients.Client]:
    with contextlib.closing(kafka_client(request.param, request, bootstrap)) as made:
        yield made


@pytest.fixture
def stock(request: pytest.FixtureRequest, make_client: MakeClient) -> Client:
    """Python's client has no transactions, and reads those of others."""
    name = request.param
    return make_client(name, **({} if name == "python" else {"has_transactions": True}))


every_writer = of("java", "go")
every_reader = of("java", "go", "python")


def committed_ends(bootstrap: str, topic: str) -> tuple[int, int]:
    """ListOffsets of the latest: for readers of committed data, and for others."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(topic, 0)
    ends = []
    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        asked = admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)
        ends.append(asked[place].result(WITHIN_S).offset)
    return ends[0], ends[1]


@every_writer
def test_kafkas_consumers_see_pulsars_transactions(
    bootstrap: str, stock: Client, kafka: kafka_clients.Client, topic: str
) -> None:
    make_topic(bootstrap, topic, 1)
    producer = stock.producer(topic, send_timeout_ms=0)

    def read(isolation: str) -> dict[int, str]:
        found = read_to_end(kafka, topic, isolation=isolation)
        return {each.offset: each.value.decode() for each in found}

    kept, dropped = stock.begin(), stock.begin()
    written = {}
    for offset, transaction in enumerate([None, kept, dropped, kept, dropped, None]):
        written[offset] = str(offset)
        producer.send(b"%d" % offset, transaction=transaction)
    # Open: who reads committed data gets to the first of them, others get all.
    assert read(READ_COMMITTED) == {0: "0"}
    assert read(READ_UNCOMMITTED) == written
    assert committed_ends(bootstrap, topic) == (1, 6)
    # A group that has read all there is for it has no lag.
    with contextlib.closing(kafka.reader(topic)) as reader:
        assert reader.end(0) == 1
    dropped.abort()  # a marker, 6
    assert read(READ_COMMITTED) == {0: "0"}
    assert committed_ends(bootstrap, topic) == (1, 7)
    kept.commit()  # 7
    assert read(READ_COMMITTED) == {0: "0", 1: "1", 3: "3", 5: "5"}
    assert read(READ_UNCOMMITTED) == written
    assert committed_ends(bootstrap, topic) == (8, 8)


@every_writer
def test_batches_of_every_codec_in_pulsars_transactions(
    bootstrap: str, stock: Client, kafka: kafka_clients.Client, topic: str
) -> None:
    make_topic(bootstrap, topic, 1)
    expected = []
    for codec in PULSARS_CODECS:
        settings = {"is_batched": True, "compression": codec, "send_timeout_ms": 0}
        producer = stock.producer(topic, **settings)
        kept, dropped = stock.begin(), stock.begin()
        for transaction, word in ((dropped, "dropped"), (kept, "kept")):
            sent = [f"{codec} {word} {number} " * 20 for number in range(3)]
            producer.send(*(each.encode() for each in sent), transaction=transaction)
            expected += sent if transaction is kept else []
        kept.commit()
        dropped.abort()
        producer.close()
    assert kafka_clients.values(read_to_end(kafka, topic)) == expected
    everything = read_to_end(kafka, topic, isolation=READ_UNCOMMITTED)
    assert len(everything) == 2 * len(expected)


@pytest.fixture
def confluent(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[kafka_clients.Client]:
    with contextlib.closing(kafka_client("confluent", request, bootstrap)) as made:
        yield made


@every_reader
def test_pulsars_clients_see_kafkas_transactions(
    bootstrap: str, stock: Client, confluent: kafka_clients.Client, topic: str
) -> None:
    make_topic(bootstrap, topic, 1)
    stock.send(topic, b"0")
    kept = confluent.producer(f"kept-{topic}")
    dropped = confluent.producer(f"dropped-{topic}")
    consumers = [
        stock.consumer(topic, kind, type=kind, is_earliest=True) for kind in ("Exclusive", "Shared")
    ]
    reader = stock.reader(topic)
    kept.begin()
    dropped.begin()
    for number, producer in ((1, kept), (2, dropped), (3, kept), (4, dropped)):
        producer.send(topic, str(number))
        producer.flush()
    stock.send(topic, b"5")

    def all_have(*expected: bytes) -> None:
        for consumer in consumers:
            if expected:
                assert values(consumer.take(len(expected))) == list(expected)
            assert consumer.nothing_comes(50)
        assert values(reader.rest()) == list(expected)
        assert not reader.is_available()

    all_have(b"0")
    assert consumers[0].last_ids()[0].entry == 0
    dropped.abort()
    all_have()
    kept.commit()
    all_have(b"1", b"3", b"5")
    dropped.begin()
    dropped.send(topic, "dropped")
    dropped.abort()
    all_have()
    # All that was aborted counts as acknowledged, markers as well.
    for consumer in consumers:
        consumer.close()
        assert consumer is not None
    for kind in ("Exclusive", "Shared"):
        again = stock.consumer(topic, kind, type=kind)
        assert again.nothing_comes(50)
        again.close()
    assert values(stock.reader(topic).rest()) == [b"0", b"1", b"3", b"5"]


@every_reader
def test_batches_of_every_codec_in_kafkas_transactions(
    bootstrap: str, stock: Client, confluent: kafka_clients.Client, topic: str
) -> None:
    make_topic(bootstrap, topic, 1)
    consumer = stock.consumer(topic)
    for codec in KAFKAS_CODECS:
        settings = {"compression.type": codec, "linger.ms": 200}
        producer = confluent.producer(f"{codec}-{topic}", **settings)
        for is_commit in (False, True):
            producer.begin()
            sent = [f"{codec} {is_commit} {number} " * 20 for number in range(3)]
            producer.send(topic, *sent)
            producer.flush()
            if is_commit:
                producer.commit()
                assert values(consumer.take(3)) == [each.encode() for each in sent]
            else:
                producer.abort()
    assert consumer.nothing_comes(50)


@every_writer
def test_both_at_once_in_one_topic(
    bootstrap: str,
    stock: Client,
    confluent: kafka_clients.Client,
    topic: str,
    seed: int,
) -> None:
    """By chance; after each end, both see the same: what is committed, up to the first open one."""
    make_topic(bootstrap, topic, 1)
    chance = random.Random(seed)
    producer = stock.producer(topic, send_timeout_ms=0)
    of_kafka = [confluent.producer(f"{number}-{topic}") for number in range(2)]
    open_kafka: set[int] = set()
    open_pulsar: list[Transaction] = []
    log: list[tuple[str, object]] = []  # value, and whose
    ended: dict[object, bool] = {None: True}
    reader = stock.reader(topic)
    seen: list[str] = []

    def readable() -> list[str]:
        found = []
        for value, owner in log:
            if owner not in ended:
                break
            if ended[owner]:
                found.append(value)
        return found

    def end(number: int | Transaction, owner: object) -> None:
        is_commit = chance.random() < 0.6
        act = of_kafka[number] if isinstance(number, int) else number
        if is_commit:
            act.commit()
        else:
            act.abort()
        ended[owner] = is_commit

    owners = {}
    for step in range(40):
        value = str(step)
        what = chance.randrange(9)
        if what < 3:
            number = chance.randrange(2)
            if number not in open_kafka:
                of_kafka[number].begin()
                open_kafka.add(number)
                owners[number] = f"kafka {step}"
            of_kafka[number].send(topic, value)
            of_kafka[number].flush()
            log.append((value, owners[number]))
        elif what < 6:
            if len(open_pulsar) < 3:
                open_pulsar.append(stock.begin())
            transaction = chance.choice(open_pulsar)
            producer.send(value.encode(), transaction=transaction)
            log.append((value, transaction.id))
        elif what == 6:
            producer.send(value.encode())
            log.append((value, None))
        else:
            if what == 7 and open_kafka:
                number = open_kafka.pop()
                end(number, owners[number])
            elif open_pulsar:
                transaction = open_pulsar.pop(chance.randrange(len(open_pulsar)))
                end(transaction, transaction.id)
            seen += [(each.value or b"").decode() for each in reader.rest()]
            assert seen == readable()
            assert kafka_clients.values(read_to_end(confluent, topic)) == readable()
    for number in open_kafka:
        end(number, owners[number])
    for transaction in open_pulsar:
        end(transaction, transaction.id)
    seen += [(each.value or b"").decode() for each in reader.rest()]
    assert seen == readable() == kafka_clients.values(read_to_end(confluent, topic))
    everything = read_to_end(confluent, topic, isolation=READ_UNCOMMITTED)
    assert kafka_clients.values(everything) == [value for value, _ in log]


@of("go")
@pytest.mark.parametrize("kafka", WAIT_OF_A_FETCH, indirect=True)
def test_a_consumer_of_kafkas_waits_for_pulsars_commit(
    bootstrap: str, stock: Client, kafka: kafka_clients.Client, topic: str
) -> None:
    """A fetch that waits is woken by the end, as by one of Kafka's own."""
    make_topic(bootstrap, topic, 1)
    producer = stock.producer(topic, send_timeout_ms=0)
    fetch = WAIT_OF_A_FETCH[kafka.name]
    with contextlib.closing(kafka.reader(topic, **{fetch: 20_000})) as reader:
        for is_commit in (True, False, True):
            transaction = stock.begin()
            producer.send(*numbers(3), transaction=transaction)
            assert reader.poll(0.1) == []
            if not is_commit:
                transaction.abort()
                assert reader.poll(0.1) == []
                continue
            transaction.commit()
            begun = time.monotonic()
            found = kafka_clients.read_until(reader, lambda found: len(found) >= 3)
            assert [each.value for each in found] == numbers(3)
            assert time.monotonic() - begun < 10  # it would have waited for 20 s


@pytest.mark.java
@of("go")
def test_kafkas_tool_shows_pulsars_transactions(
    bootstrap: str, stock: Client, shell: tools.RunTool, topic: str
) -> None:
    producer = stock.producer(topic, send_timeout_ms=0)
    transaction = stock.begin()
    producer.send(b"1", transaction=transaction)
    name = "pulsar:({},{})".format(*transaction.id)

    def run(*words: str) -> list[dict[str, str]]:
        done = shell(TRANSACTIONS, "--bootstrap-server", bootstrap, *words, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return rows(done.stdout)

    def listed() -> dict[str, str]:
        return {row["TransactionalId"]: row["TransactionState"] for row in run("list")}

    assert listed()[name] == "Ongoing"
    (row,) = run("describe", "--transactional-id", name)
    assert (row["ProducerId"], row["TransactionState"]) == (str(transaction.id[1]), "Ongoing")
    assert row["TopicPartitions"] == f"{topic}-0"
    (row,) = run("describe-producers", "--topic", topic, "--partition", "0")
    assert row["ProducerId"] == str(transaction.id[1])
    # It is Kafka's way to end one that hangs, and ends one of Pulsar's as well.
    transaction.commit()
    assert listed().get(name, "CompleteCommit") == "CompleteCommit"

"""Clients held to quotas by a broker: told at once, left unread, freed when the quota goes.

By bytes on the wire, where it matters when an answer comes, and by librdkafka.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from gateway.kafka import codec
from tests.batches import kafka_batch
from tests.captures import record
from tests.conftest import Gateway, StartGateway
from tests.databases import Copies
from tests.entrance import PASSWORD, USER, Entrance, own_entrance
from tests.gateway.kafka.handlers.fetching import fetch_request
from tests.gateway.kafka.handlers.producing import produce_request
from tests.gateway.kafka.handlers.staging import stage_request

PRODUCE_V, FETCH_V, METADATA_V = 9, 11, 9
RECORDS = kafka_batch([b"x" * 900] * 100)  # about 91,000 bytes


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    directory = tmp_path_factory.mktemp("gateway")
    at_once = "group.initial.rebalance.delay.ms=0"
    with own_entrance(copies, template_database, certificate, directory, at_once) as found:
        yield found


@pytest.fixture
def topic(at: Entrance) -> str:
    name = f"topic-{uuid4()}"
    at.admin.create_topics([NewTopic(name, 1)])[name].result(20)
    return name


Rate = Callable[..., None]
Entry = codec.AlterClientQuotasRequest.EntryData


class Wire:
    """One connection, and a client of this id."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self.socket = socket.create_connection(record.address(bootstrap), timeout=30)
        self._client_id = client_id

    def send(self, request: Any, version: int) -> None:
        request.API_VERSION = version
        request.with_header(correlation_id=1, client_id=self._client_id)
        self.socket.sendall(bytes(request.encode(header=True, framed=True)))

    def receive(self, key: int, version: int) -> Any:
        size = int.from_bytes(self._bytes(4), "big")
        return record.describe_response(key, version, self._bytes(size))

    def _bytes(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self.socket.recv(size - len(found))
            assert more, "the broker has closed the connection"
            found += more
        return found

    def ask(self, request: Any, version: int) -> tuple[Any, float]:
        """The answer, and after how many seconds it came."""
        began = time.monotonic()
        self.send(request, version)
        answer = self.receive(request.API_KEY, version)
        return answer, time.monotonic() - began


@contextmanager
def wire(bootstrap: str, client_id: str) -> Iterator[Wire]:
    found = Wire(bootstrap, client_id)
    with found.socket:
        yield found


@pytest.fixture
def rate(at: Entrance) -> Iterator[Rate]:
    """Sets a quota, by its key and the entity; None removes it. All are gone afterwards."""

    def alter(key: str, value: float | None, **entity: str | None) -> None:
        named = {kind.replace("_", "-"): name for kind, name in entity.items()}
        parts = [Entry.EntityData(entity_type=k, entity_name=n) for k, n in named.items()]
        op = Entry.OpData(key=key, value=value or 0.0, remove=value is None)
        entries = [Entry(entity=parts, ops=[op])]
        request = codec.AlterClientQuotasRequest(entries=entries, validate_only=False)
        with wire(at.open, "admin") as admin:
            answer, _ = admin.ask(request, 1)
        assert [each["error_code"] for each in answer["entries"]] == [0]

    yield alter
    by_psql(at.gateway, "TRUNCATE client_quota")
    eventually(lambda: not described(at))


def by_psql(gateway: Gateway, statement: str) -> None:
    assert gateway.database_url is not None
    with psycopg.connect(gateway.database_url, autocommit=True) as connection:
        connection.execute(statement.encode())


def described(at: Entrance) -> list[Any]:
    request = codec.DescribeClientQuotasRequest(components=[], strict=False)
    with wire(at.open, "admin") as admin:
        found: list[Any] = admin.ask(request, 1)[0]["entries"]
        return found


def eventually(check: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def metadata() -> Any:
    return codec.MetadataRequest(topics=[])


def throttled_s(held: Wire) -> float:
    """How long a connection does not answer."""
    return held.ask(metadata(), METADATA_V)[1]


def test_who_writes_too_much_is_told_at_once_and_left_unread(
    at: Entrance, topic: str, rate: Rate
) -> None:
    rate("producer_byte_rate", float(len(RECORDS)), client_id=topic)
    request = produce_request({0: RECORDS}, name=topic)
    with wire(at.open, topic) as writer, wire(at.open, "other") as other:
        began = time.monotonic()
        answer, seconds = writer.ask(request, PRODUCE_V)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
        told_s = answer["throttle_time_ms"] / 1000
        # A second's worth, and the request's own few bytes.
        assert told_s < 1.1 and told_s + seconds > 0.95
        assert other.ask(request, PRODUCE_V)[0]["throttle_time_ms"] == 0
        answer, _ = writer.ask(metadata(), METADATA_V)
        assert answer["throttle_time_ms"] == 0
        assert time.monotonic() - began > 0.95
        # Without an answer (acks=0) it is left unread all the same.
        began = time.monotonic()
        writer.send(produce_request({0: RECORDS}, name=topic, acks=0), PRODUCE_V)
        writer.ask(metadata(), METADATA_V)
        assert time.monotonic() - began > 0.8


def test_requests_that_came_together_wait_for_their_turn(
    at: Entrance, topic: str, rate: Rate
) -> None:
    """Though they were read, and may run side by side without a quota."""
    rate("producer_byte_rate", 2.0 * len(RECORDS), client_id=topic)
    with wire(at.open, topic) as writer:
        began = time.monotonic()
        for _ in range(4):
            writer.send(produce_request({0: RECORDS}, name=topic), PRODUCE_V)
        for number in range(4):
            writer.receive(0, PRODUCE_V)
            assert time.monotonic() - began > 0.5 * number - 0.05


def test_what_is_staged_counts_as_what_is_written(at: Entrance, topic: str, rate: Rate) -> None:
    rate("producer_byte_rate", float(len(RECORDS)), client_id=topic)
    with wire(at.open, topic) as sink:
        began = time.monotonic()
        answer, _ = sink.ask(stage_request(uuid4(), (topic, 0, RECORDS)), 0)
        assert answer["error_code"] == 0
        sink.ask(metadata(), METADATA_V)
        assert time.monotonic() - began > 0.95


def test_a_quota_that_goes_frees_who_waits(at: Entrance, topic: str, rate: Rate) -> None:
    """So does one that is raised; also by psql."""
    rate("producer_byte_rate", 1.0, client_id=topic)
    with wire(at.open, topic) as writer:
        answer, _ = writer.ask(produce_request({0: RECORDS}, name=topic), PRODUCE_V)
        assert answer["throttle_time_ms"] > 80_000_000
        rate("producer_byte_rate", 1e9, client_id=topic)
        assert throttled_s(writer) < 5
        rate("producer_byte_rate", 1.0, client_id=topic)
        writer.ask(produce_request({0: RECORDS}, name=topic), PRODUCE_V)
        by_psql(at.gateway, "TRUNCATE client_quota")
        assert throttled_s(writer) < 5


def test_a_change_counts_at_every_broker(
    at: Entrance, topic: str, rate: Rate, start_gateway: StartGateway
) -> None:
    other = start_gateway(database_url=at.gateway.database_url)

    def is_told() -> bool:
        request = produce_request({0: kafka_batch()}, name=topic)
        return bool(writer.ask(request, PRODUCE_V)[0]["throttle_time_ms"])

    with wire(other.bootstrap, topic) as writer:
        assert not is_told()
        rate("producer_byte_rate", 1.0, client_id=topic)
        eventually(is_told)
        by_psql(at.gateway, "TRUNCATE client_quota")
        assert throttled_s(writer) < 10  # of some hundred
        eventually(lambda: not is_told())


def test_who_reads_too_much(at: Entrance, topic: str, rate: Rate) -> None:
    size, reading = len(RECORDS), f"{topic}-reader"
    with wire(at.open, topic) as writer:
        for _ in range(8):
            writer.ask(produce_request({0: RECORDS}, name=topic), PRODUCE_V)
    rate("consumer_byte_rate", float(size // 10), client_id=reading)
    with wire(at.open, reading) as reader, wire(at.open, reading) as beside:
        answer, _ = reader.ask(fetch_request({0: 0}, topic=topic), FETCH_V)
        # Not all that there is, but one batch: a quarter of a second is less than that.
        [part] = answer["responses"][0]["partitions"]
        assert len(part["records"]["hex"]) / 2 == size
        assert 5_000 < answer["throttle_time_ms"] < 10_100
        # Others of this client get nothing meanwhile, and are told so at once.
        answer, _ = beside.ask(fetch_request({0: 0}, topic=topic), FETCH_V)
        assert answer["responses"] == []
        assert 0 < answer["throttle_time_ms"] < 10_100
        rate("consumer_byte_rate", float(size * 10), client_id=reading)
        answer, _ = beside.ask(fetch_request({0: 0}, topic=topic), FETCH_V)
        assert len(answer["responses"]) == 1


def test_a_session_of_fetches_goes_on(at: Entrance, topic: str, rate: Rate) -> None:
    """What it was not given it is given later."""
    reading = f"{topic}-reader"
    with wire(at.open, reading) as reader, wire(at.open, reading) as beside:
        first, _ = reader.ask(fetch_request({0: 0}, topic=topic, session=(0, 0)), FETCH_V)
        session_id = first["session_id"]
        assert session_id
        with wire(at.open, topic) as writer:
            writer.ask(produce_request({0: RECORDS}, name=topic), PRODUCE_V)
        rate("consumer_byte_rate", 200.0, client_id=reading)
        beside.ask(fetch_request({0: 0}, topic=topic), FETCH_V)
        held, _ = reader.ask(fetch_request(topic=topic, session=(session_id, 1)), FETCH_V)
        assert (held["error_code"], held["session_id"], held["responses"]) == (0, session_id, [])
        assert held["throttle_time_ms"] > 100_000
        rate("consumer_byte_rate", None, client_id=reading)
        more, _ = reader.ask(fetch_request(topic=topic, session=(session_id, 2)), FETCH_V)
        assert (more["error_code"], more["session_id"]) == (0, session_id)
        assert len(more["responses"]) == 1


def test_who_takes_too_much_time(at: Entrance, rate: Rate) -> None:
    """A window at most, however little the quota is; a login is not counted."""
    rate("request_percentage", 0.0001, client_id="busy")
    with wire(at.open, "busy") as busy:
        began = time.monotonic()
        answer, _ = busy.ask(metadata(), METADATA_V)
        assert 900 < answer["throttle_time_ms"] <= 1000
        # An answer without room for the time comes all the same.
        answer, _ = busy.ask(codec.DescribeQuorumRequest(topics=[]), 0)
        assert time.monotonic() - began > 0.95
        assert "throttle_time_ms" not in answer


def test_before_a_login_nothing_is_counted(at: Entrance, rate: Rate) -> None:
    """Nobody is there yet whose it would be."""
    rate("request_percentage", 0.0001, user=None)
    with wire(at.plain, "any") as one:
        answer, _ = one.ask(codec.ApiVersionsRequest(), 2)
        assert answer["throttle_time_ms"] == 0


def test_librdkafka_keeps_to_a_users_quota(at: Entrance, topic: str, rate: Rate) -> None:
    """Writing and reading, whatever its client id."""
    rate("producer_byte_rate", 300_000, user=USER)
    rate("consumer_byte_rate", 300_000, user=USER)
    as_alice = {
        "bootstrap.servers": at.plain,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    told: list[float] = []
    producer = Producer(
        as_alice
        | {
            "client.id": "any",
            "batch.size": 50_000,
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    value = b"x" * 1000
    began = time.monotonic()
    for _ in range(600):
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    # What goes first is not waited for: nothing but what follows.
    assert time.monotonic() - began > 1.7
    assert told and max(told) < 1
    consumer = Consumer(as_alice | {"group.id": topic, "auto.offset.reset": "earliest"})
    began = time.monotonic()
    consumer.subscribe([topic])
    count = 0
    while count < 600:
        assert time.monotonic() - began < 60
        count += len(consumer.consume(600 - count, 1))
    assert time.monotonic() - began > 1.7
    consumer.close()


def test_an_address_makes_so_many_connections_a_second(at: Entrance, rate: Rate) -> None:
    """Ten seconds' worth at once, as in Kafka. Then it is let in again, once a second."""

    def is_let_in() -> bool:
        try:
            with wire(at.open, "any") as one:
                return "brokers" in one.ask(metadata(), METADATA_V)[0]
        except (AssertionError, ConnectionError):
            return False

    rate("connection_creation_rate", 1.0, ip="127.0.0.1")
    assert all(is_let_in() for _ in range(10))
    eventually(lambda: not is_let_in())
    eventually(is_let_in)
    by_psql(at.gateway, "TRUNCATE client_quota")
    eventually(lambda: all(is_let_in() for _ in range(5)))


def test_a_listener_may_have_a_limit_of_its_own(at: Entrance) -> None:
    """Of connections, here; that of all listeners together is another one."""

    def alter(operation: AlterConfigOpType) -> None:
        name = "listener.name.asks.max.connections"
        entry = ConfigEntry(name, "1", incremental_operation=operation)
        wanted = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        at.admin.incremental_alter_configs([wanted])[wanted].result(20)

    def is_let_in(bootstrap: str) -> bool:
        try:
            with wire(bootstrap, "any") as one:
                return bool(one.ask(codec.ApiVersionsRequest(), 0)[0]["api_keys"])
        except (AssertionError, ConnectionError):
            return False

    with wire(at.plain, "first"):
        assert is_let_in(at.plain)
        alter(AlterConfigOpType.SET)
        eventually(lambda: not is_let_in(at.plain))
        assert is_let_in(at.open)
        alter(AlterConfigOpType.DELETE)
        eventually(lambda: is_let_in(at.plain))

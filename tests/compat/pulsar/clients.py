"""Pulsar's stock clients with one face: Java's and Go's behind their drivers, Python's in here.

Settings have the names of the drivers' calls (compat/pulsar/README.md). What a client refuses is
raised as Refused, with the client's own name for it. Knows the clients and waiting; must not know
what a test expects.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
from pulsar import schema as schemas

from compat.pulsar.drivers import Call, Refused

WITHIN_MS = 30_000
"""Until something that must happen is taken for lost."""
NOTHING_MS = 300
"""How long nothing is waited for."""
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class Id:
    """A message's id. serialized: as the client writes it for later (its toByteArray), Base64."""

    ledger: int
    entry: int
    partition: int
    batch_index: int
    serialized: str

    @property
    def place(self) -> tuple[int, int, int]:
        """Ledger, entry and place in the batch, by which ids are ordered."""
        return self.ledger, self.entry, max(self.batch_index, 0)


@dataclass(frozen=True, slots=True)
class Message:
    """A message as a consumer has it; what its client does not tell is None.

    decoded: what its schema makes of it. number: of the driver, for acknowledgements.
    """

    topic: str
    id: Id
    value: bytes | None
    key: bytes | None
    ordering_key: bytes | None
    properties: dict[str, str]
    publish_time: int
    event_time: int
    producer_name: str
    redelivery_count: int
    sequence_id: int | None = None
    schema_version: bytes | None = None
    decoded: Any = None
    number: int | None = None


def values(messages: Iterable[Message]) -> list[bytes | None]:
    return [each.value for each in messages]


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def _bytes(encoded: str | None) -> bytes | None:
    return None if encoded is None else base64.b64decode(encoded)


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


def _id(shown: dict[str, Any]) -> Id:
    parts = (shown[name] for name in ("ledger", "entry", "partition", "batch_index", "bytes"))
    return Id(*parts)


def _message(shown: dict[str, Any]) -> Message:
    return Message(
        topic=shown["topic"],
        id=_id(shown["id"]),
        value=_bytes(shown["value"]),
        key=_bytes(shown["key"]),
        ordering_key=_bytes(shown["ordering_key"]),
        properties=shown["properties"],
        publish_time=shown["publish_time"],
        event_time=shown["event_time"],
        producer_name=shown["producer_name"],
        redelivery_count=shown["redelivery_count"],
        sequence_id=shown.get("sequence_id"),
        schema_version=_bytes(shown.get("schema_version")),
        decoded=shown.get("decoded"),
        number=shown.get("number"),
    )


class Transaction:
    """id: (most, least bits) of its TxnID. number: of the driver."""

    def __init__(self, call: Call, made: dict[str, Any]) -> None:
        self._call = call
        self.number: int = made["number"]
        self.id: tuple[int, int] = (made["most"], made["least"])

    def commit(self) -> None:
        self._call("commit", transaction=self.number)

    def abort(self) -> None:
        self._call("abort", transaction=self.number)

    @property
    def state(self) -> str:
        """What the client takes it for, in Java's words: OPEN, COMMITTING, TIME_OUT, ..."""
        return str(self._call("state", transaction=self.number))


def _in(transaction: Transaction | None) -> dict[str, int]:
    return {} if transaction is None else {"transaction": transaction.number}


class Producer:
    def __init__(self, call: Call, made: dict[str, Any]) -> None:
        self._call = call
        self._number = made["number"]
        self.name: str = made["name"]

    def send(
        self, *messages: dict[str, Any] | bytes | None, transaction: Transaction | None = None
    ) -> list[Id]:
        """Hands all over, then waits for the receipts. bytes (or None): a message's value."""
        return [_id(each) for each in self._send(messages, transaction)]

    def send_later(
        self, *messages: dict[str, Any] | bytes | None, transaction: Transaction | None = None
    ) -> Later:
        """Hands all over, and does not wait."""
        return Later(self._call, self._send(messages, transaction, later=True))

    def _send(
        self,
        messages: Sequence[dict[str, Any] | bytes | None],
        transaction: Transaction | None,
        **how: Any,
    ) -> Any:
        given = [each if isinstance(each, dict) else {"value": each} for each in messages]
        encoded = []
        for each in given:
            message = dict(each)
            for name in ("value", "key_bytes", "ordering_key"):
                if name in message:
                    message[name] = _base64(message[name])
            encoded.append(message)
        return self._call(
            "send", producer=self._number, messages=encoded, **_in(transaction), **how
        )

    def last_sequence_id(self) -> int:
        return int(self._call("sequence", producer=self._number))

    def close(self) -> None:
        self._call("close", object=self._number)


class Later:
    """A call that is waited for later."""

    def __init__(self, call: Call, job: int) -> None:
        self._call = call
        self._job = job

    def join(self, within_ms: int = WITHIN_MS) -> Any:
        """Its answer; Refused("TimeoutError" or the like) if there is none yet."""
        return self._call("join", job=self._job, within_ms=within_ms)


class Consumer:
    def __init__(self, call: Call, number: int) -> None:
        self._call = call
        self._number = number

    def some(self, count: int, within_ms: int = NOTHING_MS, **how: Any) -> list[Message]:
        """Up to `count` messages: until nothing comes for that long. how: acknowledge=True."""
        shown = self._call(
            "receive", consumer=self._number, count=count, within_ms=within_ms, **how
        )
        return [_message(each) for each in shown]

    def take(
        self, count: int, *, acknowledge: bool = True, transaction: Transaction | None = None
    ) -> list[Message]:
        """The next `count` messages, acknowledged one by one."""
        found = self.some(count, WITHIN_MS, acknowledge=acknowledge, **_in(transaction))
        assert len(found) == count, f"{len(found)} of {count}: {values(found)[-20:]}"
        return found

    def nothing_comes(self, within_ms: int = NOTHING_MS) -> bool:
        found = self.some(1, within_ms)
        assert not found, f"there came {found}"
        return True

    def acknowledge(
        self,
        *messages: Message,
        is_cumulative: bool = False,
        transaction: Transaction | None = None,
    ) -> None:
        self._call(
            "acknowledge",
            consumer=self._number,
            messages=[each.number for each in messages],
            is_cumulative=is_cumulative,
            **_in(transaction),
        )

    def give_back(self, *messages: Message) -> None:
        """Negative acknowledgements."""
        shown = [each.number for each in messages]
        self._call("give_back", consumer=self._number, messages=shown)

    def give_all_back(self) -> None:
        self._call("give_all_back", consumer=self._number)

    def reconsume_later(self, message: Message, delay_ms: int) -> None:
        self._call(
            "reconsume_later", consumer=self._number, message=message.number, delay_ms=delay_ms
        )

    def seek(self, to: Id | int | str) -> None:
        """An id, a time (ms), EARLIEST or LATEST."""
        self._call("seek", consumer=self._number, **_place(to))

    def last_ids(self) -> list[Id]:
        return [_id(each) for each in self._call("last_ids", consumer=self._number)]

    def events(self) -> list[str]:
        """What its listener was told: "active -1", "inactive 0"."""
        return list(self._call("events", consumer=self._number))

    def is_at_end(self) -> bool:
        """Whether it has been told that it has reached the end of its topic."""
        return bool(self._call("at_end", consumer=self._number))

    def unsubscribe(self, **how: Any) -> None:
        self._call("unsubscribe", consumer=self._number, **how)

    def close(self) -> None:
        self._call("close", object=self._number)


class Reader:
    def __init__(self, call: Call, number: int) -> None:
        self._call = call
        self._number = number

    def some(self, count: int, within_ms: int = NOTHING_MS) -> list[Message]:
        shown = self._call("read", reader=self._number, count=count, within_ms=within_ms)
        return [_message(each) for each in shown]

    def take(self, count: int) -> list[Message]:
        found = self.some(count, WITHIN_MS)
        assert len(found) == count, f"{len(found)} of {count}"
        return found

    def rest(self) -> list[Message]:
        """All that is there, as hasMessageAvailable says."""
        found = []
        while self.is_available():
            found += self.take(1)
        return found

    def is_available(self) -> bool:
        return bool(self._call("available", reader=self._number))

    def seek(self, to: Id | int | str) -> None:
        self._call("seek", reader=self._number, **_place(to))

    def close(self) -> None:
        self._call("close", object=self._number)


class TableView:
    def __init__(self, call: Call, number: int) -> None:
        self._call = call
        self._number = number

    def entries(self) -> dict[str, bytes | None]:
        shown = self._call("entries", view=self._number)
        return {key: _bytes(value) for key, value in shown.items()}

    def close(self) -> None:
        self._call("close", object=self._number)


def _place(to: Id | int | str) -> dict[str, Any]:
    if isinstance(to, int):
        return {"time": to}
    return {"id": to.serialized if isinstance(to, Id) else to}


class Client:
    """A stock client. name: java, go or python."""

    def __init__(self, name: str, call: Call, url: str, **settings: Any) -> None:
        self.name = name
        self._call = call
        self._number = call("client", url=url, **settings)

    def producer(self, topic: str, **settings: Any) -> Producer:
        made = self._call("producer", client=self._number, topic=topic, **_encoded(settings))
        return Producer(self._call, made)

    def begin(self, **settings: Any) -> Transaction:
        """A transaction, of a client made with has_transactions; ttl_ms: of a minute, else."""
        return Transaction(self._call, self._call("begin", client=self._number, **settings))

    def producer_later(self, topic: str, **settings: Any) -> Callable[..., Producer]:
        """For a producer that waits until it may: a function that waits and gives it."""
        job = self._call("producer", client=self._number, topic=topic, later=True, **settings)
        later = Later(self._call, job)
        return lambda within_ms=WITHIN_MS: Producer(self._call, later.join(within_ms))

    def send(
        self, topic: str, *messages: dict[str, Any] | bytes | None, **settings: Any
    ) -> list[Id]:
        """By a producer of its own."""
        producer = self.producer(topic, **settings)
        ids = producer.send(*messages)
        producer.close()
        return ids

    def consumer(
        self, topics: str | Sequence[str], subscription: str = "s", **settings: Any
    ) -> Consumer:
        """Exclusive from the latest message on, if the settings say nothing else."""
        if "pattern" not in settings:
            settings["topics"] = [topics] if isinstance(topics, str) else list(topics)
        number = self._call(
            "consumer", client=self._number, subscription=subscription, **_encoded(settings)
        )
        return Consumer(self._call, number)

    def reader(self, topic: str, start: Id | str = EARLIEST, **settings: Any) -> Reader:
        number = self._call(
            "reader", client=self._number, topic=topic, start=_place(start)["id"], **settings
        )
        return Reader(self._call, number)

    def table_view(self, topic: str) -> TableView:
        return TableView(self._call, self._call("view", client=self._number, topic=topic))

    def partitions(self, topic: str) -> list[str]:
        return list(self._call("partitions", client=self._number, topic=topic))

    def close(self) -> None:
        self._call("close", object=self._number)


def _encoded(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in settings.items() if each is not None}


def refusal(act: Callable[[], object]) -> str:
    """The client's name for what it raises; nothing if it does not."""
    try:
        act()
    except Refused as raised:
        return raised.name
    return ""


def eventually(is_so: Callable[[], object], within_s: float = 30.0) -> bool:
    """Whether it is so within that time."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


# --- Python's own client, with the drivers' calls ---

_TYPES = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Shared": pulsar.ConsumerType.Shared,
    "Failover": pulsar.ConsumerType.Failover,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}
_CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
_ACCESS = {
    "Shared": pulsar.ProducerAccessMode.Shared,
    "Exclusive": pulsar.ProducerAccessMode.Exclusive,
    "WaitForExclusive": pulsar.ProducerAccessMode.WaitForExclusive,
    "ExclusiveWithFencing": pulsar.ProducerAccessMode.ExclusiveWithFencing,
}


class Flight(schemas.Record):  # type: ignore[misc]
    """What Java's driver has as a class of this name."""

    tail = schemas.String()
    delays = schemas.Array(schemas.Integer())
    distance = schemas.Long(required=True, default=0)


class _Job(threading.Thread):
    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._act = act
        self._answer: Any = None
        self._raised: Refused | None = None
        self.start()

    def run(self) -> None:
        try:
            self._answer = self._act()
        except Refused as raised:
            self._raised = raised

    def wait(self, within_ms: int) -> Any:
        self.join(within_ms / 1000)
        if self.is_alive():
            raise Refused("TimeoutError", "not done yet")
        if self._raised is not None:
            raise self._raised
        return self._answer


def _login(
    method: str,
    token_file: str = "",
    user: str = "",
    password: str = "",
    certificate: str = "",
    key: str = "",
) -> pulsar.Authentication:
    if method == "token":
        return pulsar.AuthenticationToken(lambda: Path(token_file).read_text().strip())
    if method == "basic":
        return pulsar.AuthenticationBasic(user, password)
    return pulsar.AuthenticationTLS(certificate, key)


class Python:
    """Answers the drivers' calls (compat/pulsar/README.md) by the client of this process."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._count = 0

    def __call__(self, _call: str, **arguments: Any) -> Any:
        if arguments.pop("later", False):
            return self._keep(_Job(lambda: self(_call, **arguments)))
        try:
            return getattr(self, f"_{_call}")(**arguments)
        except (pulsar.PulsarException, ValueError) as raised:
            raise Refused(type(raised).__name__, str(raised)) from raised

    def _keep(self, made: Any) -> int:
        self._count += 1
        self._made[self._count] = made
        return self._count

    def _client(
        self,
        url: str,
        operation_timeout_ms: int = 30_000,
        trust: str | None = None,
        login: dict[str, str] | None = None,
    ) -> int:
        settings: dict[str, Any] = {
            "logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
            "operation_timeout_seconds": operation_timeout_ms // 1000,
            "tls_trust_certs_file_path": trust,
            "authentication": _login(**login) if login else None,
        }
        return self._keep(pulsar.Client(url, **settings))

    def _producer(self, client: int, topic: str, **given: Any) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "batching_enabled": given.pop("is_batched", False),
            "batching_max_publish_delay_ms": given.pop("batch_delay_ms", 20),
            "batching_max_messages": given.pop("batch_messages", 1000),
            "block_if_queue_full": True,
            "chunking_enabled": given.pop("is_chunking", False),
            "send_timeout_millis": given.pop("send_timeout_ms", 30_000),
            "compression_type": _CODECS[given.pop("compression", "none")],
            "producer_name": given.pop("producer_name", None),
            "initial_sequence_id": given.pop("initial_sequence_id", None),
            "access_mode": _ACCESS[given.pop("access", "Shared")],
            "schema": _schema(given.pop("schema", None)),
        }
        if given.pop("is_by_key", False):
            settings["batching_type"] = pulsar.BatchingType.KeyBased
        if not given.pop("is_round_robin", False):
            settings["message_routing_mode"] = pulsar.PartitionsRoutingMode.UseSinglePartition
        if public := given.pop("public_key", None):
            settings["encryption_key"] = "k"
            settings["crypto_key_reader"] = pulsar.CryptoKeyReader(public, "")
        assert not given, f"no such settings in Python: {given}"
        producer = self._made[client].create_producer(topic, **settings)
        return {"number": self._keep(producer), "name": producer.producer_name()}

    def _send(self, producer: int, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        told: list[tuple[pulsar.Result, Any]] = []
        done = threading.Event()

        def sent(result: pulsar.Result, message_id: Any) -> None:
            told.append((result, message_id))
            if len(told) == len(messages):
                done.set()

        for each in messages:
            given = dict(each)
            settings: dict[str, Any] = {
                "properties": given.pop("properties", None),
                "partition_key": given.pop("key", None),
                "event_timestamp": given.pop("event_time", None),
                "sequence_id": given.pop("sequence_id", None),
                "deliver_at": given.pop("deliver_at", None),
            }
            if "ordering_key" in given:
                settings["ordering_key"] = (_bytes(given.pop("ordering_key")) or b"").decode()
            if "deliver_after_ms" in given:
                delay = datetime.timedelta(milliseconds=given.pop("deliver_after_ms"))
                settings["deliver_after"] = delay
            if "typed" in given:
                value = _typed(given.pop("typed"))
            else:
                value = _bytes(given.pop("value", None))
            assert not given, f"no such settings in Python: {given}"
            self._made[producer].send_async(value, sent, **settings)
        self._made[producer].flush()
        assert done.wait(WITHIN_MS / 1000)
        for result, _ in told:
            if result != pulsar.Result.Ok:
                raise Refused(result.name, "not sent")
        return [_shown_id(message_id) for _, message_id in told]

    def _sequence(self, producer: int) -> int:
        return int(self._made[producer].last_sequence_id())

    def _consumer(self, client: int, subscription: str, **given: Any) -> int:
        settings: dict[str, Any] = {
            "consumer_type": _TYPES[given.pop("type", "Exclusive")],
            "batch_index_ack_enabled": given.pop("is_by_index", False),
            "negative_ack_redelivery_delay_ms": given.pop("give_back_ms", 60_000),
            "receiver_queue_size": given.pop("queue", 1000),
            "consumer_name": given.pop("consumer_name", None),
            "start_message_id_inclusive": given.pop("is_inclusive", False),
            "unacked_messages_timeout_ms": given.pop("ack_timeout_ms", None),
            "schema": _schema(given.pop("schema", None)),
        }
        given.pop("is_receipted", None)  # there is no such setting: it always waits, or never does
        if given.pop("is_earliest", False):
            settings["initial_position"] = pulsar.InitialPosition.Earliest
        if dead := given.pop("dead_letter", None):
            settings["dead_letter_policy"] = pulsar.ConsumerDeadLetterPolicy(
                dead["after"], dead.get("topic"), dead.get("subscription")
            )
        if ranges := given.pop("ranges", None):
            settings["key_shared_policy"] = pulsar.ConsumerKeySharedPolicy(
                key_shared_mode=pulsar.KeySharedMode.Sticky,
                sticky_ranges=[tuple(each) for each in ranges],
            )
        elif given.pop("is_out_of_order", False):
            settings["key_shared_policy"] = pulsar.ConsumerKeySharedPolicy(
                allow_out_of_order_delivery=True
            )
        if private := given.pop("private_key", None):
            settings["crypto_key_reader"] = pulsar.CryptoKeyReader("", private)
        topics = given.pop("topics", None)
        if "pattern" in given:
            topics = re.compile(given.pop("pattern"))
        assert not given, f"no such settings in Python: {given}"
        of = topics[0] if isinstance(topics, list) and len(topics) == 1 else topics
        consumer = self._made[client].subscribe(of, subscription, **settings)
        return self._keep(consumer)

    def _reader(self, client: int, topic: str, start: str, **given: Any) -> int:
        is_inclusive = given.pop("is_inclusive", False)
        schema = _schema(given.pop("schema", None))
        assert not given, f"no such settings in Python: {given}"
        reader = self._made[client].create_reader(
            topic, _read_id(start), start_message_id_inclusive=is_inclusive, schema=schema
        )
        return self._keep(reader)

    def _view(self, client: int, topic: str) -> int:
        return self._keep(self._made[client].create_table_view(topic))

    def _entries(self, view: int) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        self._made[view].for_each(lambda key, value: found.update({key: _base64(value)}))
        return found

    def _partitions(self, client: int, topic: str) -> list[str]:
        return list(self._made[client].get_topic_partitions(topic))

    def _receive(
        self, consumer: int, count: int, within_ms: int, acknowledge: bool = False
    ) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            try:
                message = self._made[consumer].receive(within_ms)
            except pulsar.Timeout:
                break
            shown = _shown(message)
            if acknowledge:
                self._made[consumer].acknowledge(message)
            else:
                shown["number"] = self._keep(message)
            found.append(shown)
        return found

    def _read(self, reader: int, count: int, within_ms: int) -> list[dict[str, Any]]:
        found = []
        for _ in range(count):
            try:
                found.append(_shown(self._made[reader].read_next(within_ms)))
            except pulsar.Timeout:
                break
        return found

    def _available(self, reader: int) -> bool:
        return bool(self._made[reader].has_message_available())

    def _acknowledge(self, consumer: int, messages: list[int], is_cumulative: bool) -> None:
        for each in messages:
            if is_cumulative:
                self._made[consumer].acknowledge_cumulative(self._made[each])
            else:
                self._made[consumer].acknowledge(self._made[each])

    def _give_back(self, consumer: int, messages: list[int]) -> None:
        for each in messages:
            self._made[consumer].negative_acknowledge(self._made[each])

    def _give_all_back(self, consumer: int) -> None:
        self._made[consumer].redeliver_unacknowledged_messages()

    def _seek(
        self, consumer: int | None = None, reader: int | None = None, **to: str | int
    ) -> None:
        of = self._made[consumer if reader is None else reader]  # type: ignore[index]
        of.seek(_read_id(str(to["id"])) if "id" in to else to["time"])

    def _last_ids(self, consumer: int) -> list[dict[str, Any]]:
        return [_shown_id(self._made[consumer].get_last_message_id())]

    def _unsubscribe(self, consumer: int) -> None:
        self._made[consumer].unsubscribe()

    def _join(self, job: int, within_ms: int) -> Any:
        return self._made[job].wait(within_ms)

    def _close(self, **of: int) -> None:
        with contextlib.suppress(pulsar.AlreadyClosed):
            self._made.pop(of["object"]).close()


def _read_id(given: str) -> Any:
    if given == EARLIEST:
        return pulsar.MessageId.earliest
    if given == LATEST:
        return pulsar.MessageId.latest
    return pulsar.MessageId.deserialize(base64.b64decode(given))


def _shown_id(message_id: Any) -> dict[str, Any]:
    return {
        "ledger": message_id.ledger_id(),
        "entry": message_id.entry_id(),
        "partition": message_id.partition(),
        "batch_index": message_id.batch_index(),
        "bytes": _base64(message_id.serialize()),
    }


def _shown(message: pulsar.Message) -> dict[str, Any]:
    value = message.data()
    version = message.schema_version()
    shown: dict[str, Any] = {
        "topic": message.topic_name(),
        "id": _shown_id(message.message_id()),
        "value": None if message.has_null_value() else _base64(value),
        # An empty key is like none here.
        "key": _base64(message.partition_key().encode()) if message.partition_key() else None,
        "ordering_key": _base64(message.ordering_key().encode())
        if message.ordering_key()
        else None,
        "properties": dict(message.properties()),
        "publish_time": message.publish_timestamp(),
        "event_time": message.event_timestamp(),
        "producer_name": message.producer_name(),
        "redelivery_count": message.redelivery_count(),
        "schema_version": _base64(version.encode("latin-1")) if version else None,
    }
    decoded = message.value() if not message.has_null_value() else None
    if isinstance(decoded, Flight):
        decoded = {name: getattr(decoded, name) for name in ("tail", "delays", "distance")}
    if not isinstance(decoded, bytes):
        shown["decoded"] = decoded
    return shown


def _schema(given: dict[str, Any] | None) -> Any:
    if given is None:
        return schemas.BytesSchema()
    if given["type"] == "STRING":
        return schemas.StringSchema()
    if given["type"] == "FLIGHT":
        kind = {"JSON": schemas.JsonSchema, "AVRO": schemas.AvroSchema}[given["kind"]]
        return kind(Flight)
    raise Refused("NoSuchSchema", f"Python has none: {given}")


def _typed(typed: dict[str, Any]) -> Any:
    return Flight(**typed["value"]) if typed["type"] == "FLIGHT" else typed["value"]

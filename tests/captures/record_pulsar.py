"""Records what a stock Pulsar client sends: a broker that says yes to everything, on loopback.

It answers each command with as little as the client is content with, and keeps the frames under
the name of the scene that is played. Run it again with another client's version as

    python -m tests.captures.record_pulsar [--replace]

A capture is `pulsar/06_send/python_batch_zstd.bin`, the frame without its four bytes of size;
beside it in JSON what our own definition reads there, for people and for diffs. Knows no store.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from compat.pulsar import drivers
from gateway.framing import Framer, make_scratch
from gateway.pulsar import entries, framing, ids
from gateway.pulsar.commands import CommandType
from gateway.pulsar.commands_pb2 import (
    CommandAckResponse,
    CommandAddPartitionToTxnResponse,
    CommandAddSubscriptionToTxnResponse,
    CommandConnected,
    CommandEndTxnResponse,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandGetSchemaResponse,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandNewTxnResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandPong,
    CommandProducerSuccess,
    CommandSuccess,
    CommandTcClientConnectResponse,
)

CAPTURES = Path(__file__).with_name("pulsar")
LEDGER = 7
WITHIN_S = 20.0
MAX_MESSAGE_SIZE = 4096  # small, so that chunks are
COORDINATORS = "transaction_coordinator_assign"
TXN_ANSWERS: dict[CommandType, Callable[..., Message]] = {
    CommandType.NEW_TXN: CommandNewTxnResponse,
    CommandType.ADD_PARTITION_TO_TXN: CommandAddPartitionToTxnResponse,
    CommandType.ADD_SUBSCRIPTION_TO_TXN: CommandAddSubscriptionToTxnResponse,
    CommandType.END_TXN: CommandEndTxnResponse,
}


def folder_of(command: CommandType) -> Path:
    return CAPTURES / f"{command:02d}_{command.name.lower()}"


def described(frame: memoryview) -> dict[str, Any]:
    """What the frame says, as plain values: the command, and of an entry its metadata and what is
    inside, where it can be opened."""
    command, behind = framing.parse_frame(frame)
    found: dict[str, Any] = {"command": as_dict(command.message)}
    if behind is not None:
        entry = entries.parse_entry(behind)
        assert isinstance(entry, entries.Entry), entry
        found["metadata"] = as_dict(entry.metadata)
        if entry.is_opaque:
            found["payload_size"] = len(entry.payload)
        else:
            found["messages"] = [
                {"metadata": as_dict(metadata) if entry.is_batch else None, "hex": payload.hex()}
                for metadata, payload in entries.messages(entry)
            ]
    return found


def as_dict(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


class Broker:
    """Says yes. `scene` names what is recorded; `stored` are the entries that consumers get, with
    this `ack_set`."""

    def __init__(self) -> None:
        self.scene = ""
        self.awaited: tuple[CommandType, ...] = ()
        self.recorded: dict[tuple[CommandType, str], list[bytes]] = {}
        self.stored: list[bytes] = []
        self.ack_set: list[int] = []
        self.arrived = threading.Condition()
        owner = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                owner.serve(self.request)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def serve(self, connection: socket.socket) -> None:
        framer = Framer(framing.max_frame_size(), make_scratch())
        with contextlib.suppress(OSError):
            while chunk := connection.recv(1 << 16):
                for frame in framer.feed(memoryview(chunk)):
                    for answer in self.answer(frame):
                        connection.sendall(answer)

    def answer(self, frame: memoryview) -> Iterator[bytes]:
        command, entry = framing.parse_frame(frame)
        with self.arrived:
            if command.type in self.awaited:
                self.recorded.setdefault((command.type, self.scene), []).append(bytes(frame))
            self.arrived.notify_all()
        asked = command.message
        match command.type:
            case CommandType.SEND:
                assert entry is not None
                self.stored.append(bytes(entry))
                highest = asked.highest_sequence_id if asked.HasField("highest_sequence_id") else 0
                place = len(self.stored)
                yield framing.encode_send_receipt(
                    asked.producer_id, asked.sequence_id, highest, LEDGER, place
                )
            case CommandType.FLOW:
                for place, stored in enumerate(self.stored):
                    yield b"".join(
                        framing.encode_message(
                            asked.consumer_id, LEDGER, place, stored, ack_set=self.ack_set
                        )
                    )
                self.stored = []
            case _:
                for message in self.reply(command.type, asked):
                    yield framing.encode_frame(message)

    def reply(self, command: CommandType, asked: Any) -> Iterator[Message]:
        match command:
            case CommandType.CONNECT:
                yield CommandConnected(
                    server_version="recorder",
                    protocol_version=asked.protocol_version,
                    max_message_size=MAX_MESSAGE_SIZE,
                )
            case CommandType.PING:
                yield CommandPong()
            case CommandType.PARTITIONED_METADATA:
                is_coordinators = asked.topic.endswith(COORDINATORS)
                yield CommandPartitionedTopicMetadataResponse(
                    request_id=asked.request_id, partitions=int(is_coordinators), response=0
                )
            case CommandType.LOOKUP:
                yield CommandLookupTopicResponse(
                    request_id=asked.request_id,
                    response=1,
                    authoritative=True,
                    broker_service_url=self.url,
                    proxy_through_service_url=True,
                )
            case CommandType.PRODUCER:
                yield CommandProducerSuccess(
                    request_id=asked.request_id,
                    producer_name=asked.producer_name or "recorder-0-1",
                    last_sequence_id=-1,
                    schema_version=b"",
                )
            case CommandType.GET_LAST_MESSAGE_ID:
                yield CommandGetLastMessageIdResponse(
                    request_id=asked.request_id, last_message_id=ids.message_id(LEDGER, 0)
                )
            case CommandType.GET_TOPICS_OF_NAMESPACE:
                yield CommandGetTopicsOfNamespaceResponse(
                    request_id=asked.request_id, topics=["persistent://public/default/captured"]
                )
            case CommandType.GET_SCHEMA:
                yield CommandGetSchemaResponse(request_id=asked.request_id, error_code=11)
            case CommandType.ACK:
                if asked.HasField("request_id"):
                    yield CommandAckResponse(
                        consumer_id=asked.consumer_id, request_id=asked.request_id
                    )
            case (
                CommandType.SUBSCRIBE
                | CommandType.SEEK
                | CommandType.UNSUBSCRIBE
                | CommandType.CLOSE_PRODUCER
                | CommandType.CLOSE_CONSUMER
            ):
                yield CommandSuccess(request_id=asked.request_id)
            case CommandType.TC_CLIENT_CONNECT_REQUEST:
                yield CommandTcClientConnectResponse(request_id=asked.request_id)
            case _ if command in TXN_ANSWERS:
                # Java's and Go's clients want the id again, which (0, 7) always is here.
                yield TXN_ANSWERS[command](
                    request_id=asked.request_id, txnid_most_bits=0, txnid_least_bits=7
                )
            case CommandType.PONG | CommandType.REDELIVER_UNACKNOWLEDGED_MESSAGES:
                pass
            case _:
                yield CommandError(request_id=asked.request_id, error=22, message=command.name)

    @contextlib.contextmanager
    def playing(self, scene: str, *awaited: CommandType) -> Iterator[None]:
        """The commands that belong to the scene; it ends when each of them has come."""
        self.scene, self.awaited = scene, awaited
        yield
        deadline = time.monotonic() + WITHIN_S
        with self.arrived:
            while missing := [each for each in awaited if (each, scene) not in self.recorded]:
                assert self.arrived.wait(deadline - time.monotonic()), f"{scene}: no {missing}"
            self.awaited = ()


def play_python(broker: Broker) -> str:
    """What `pulsar-client` does; returns who it was."""
    import pulsar

    topic = "persistent://public/default/captured"
    log = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.url, logger=log)
    C = CommandType
    with broker.playing("python", C.CONNECT, C.PARTITIONED_METADATA, C.LOOKUP, C.PRODUCER, C.SEND):
        producer = client.create_producer(topic)
        producer.send(b"single")
    sends: dict[str, dict[str, Any]] = {
        "properties": {"properties": {"b": "1", "a": "grün"}},
        "keyed": {"partition_key": "LH 442"},
        "ordered": {"partition_key": "k", "ordering_key": "o"},
        "event_time": {"event_timestamp": 1_700_000_000_000},
        "delayed": {"deliver_at": 1_700_000_000_500},
        "sequence": {"sequence_id": 41},
        "not_replicated": {"disable_replication": True},
    }
    for name, fields in sends.items():
        with broker.playing(f"python_{name}", C.SEND):
            producer.send(name.encode(), **fields)
    with broker.playing("python_empty", C.SEND):
        producer.send(b"")
    with broker.playing("python", C.CLOSE_PRODUCER):
        producer.close()

    def batch(name: str, count: int = 3, **options: Any) -> None:
        made = client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=500, **options
        )
        with broker.playing(f"python_{name}", C.SEND):
            for at in range(count):
                made.send_async(
                    f"message {at} ".encode() * 20,
                    lambda result, message_id: None,
                    partition_key=f"key {at % 2}",
                    properties={"at": str(at)},
                )
            made.flush()
        made.close()

    batch("batch")
    batch("batch_of_one", 1)
    with broker.playing("python_key_based", C.PRODUCER):
        batch("batch_by_key", batching_type=pulsar.BatchingType.KeyBased)
    for codec in ("LZ4", "ZLib", "ZSTD", "SNAPPY"):
        compression = getattr(pulsar.CompressionType, codec)
        batch(f"batch_{codec.lower()}", compression_type=compression)
        alone = client.create_producer(topic, compression_type=compression)
        with broker.playing(f"python_{codec.lower()}", C.SEND):
            alone.send(b"compressed " * 50)
        alone.close()
    with broker.playing("python_named", C.PRODUCER):
        named = client.create_producer(
            topic,
            producer_name="captain",
            initial_sequence_id=40,
            access_mode=pulsar.ProducerAccessMode.Exclusive,
            properties={"who": "me"},
            schema=pulsar.schema.StringSchema(),
        )
    with broker.playing("python_schema", C.SEND):
        named.send("grün")
    named.close()

    class Flight(pulsar.schema.Record):  # type: ignore[misc] - it has no types
        number = pulsar.schema.String(required=True)
        seats = pulsar.schema.Integer()

    for name, schema in {
        "json": pulsar.schema.JsonSchema(Flight),
        "avro": pulsar.schema.AvroSchema(Flight),
    }.items():
        with broker.playing(f"python_{name}", C.PRODUCER):
            client.create_producer(topic, schema=schema).close()
        with broker.playing(f"python_{name}", C.SUBSCRIBE):
            client.subscribe(topic, name, schema=schema).close()
    with broker.playing("python_chunking", C.PRODUCER):
        chunked = client.create_producer(topic, chunking_enabled=True)
    with broker.playing("python_chunk", C.SEND):
        chunked.send(bytes(5_000))
    for at, frame in enumerate(broker.recorded.pop((C.SEND, "python_chunk"))):
        broker.recorded[C.SEND, f"python_chunk_{at}"] = [frame]
    chunked.close()
    play_python_consumers(client, broker, topic)
    with broker.playing("python_regex", C.GET_TOPICS_OF_NAMESPACE):
        client.subscribe(re.compile("persistent://public/default/capt.*"), "regex").close()
    client.close()
    return f"pulsar-client (Python) {installed('pulsar-client')}"


def play_python_consumers(client: Any, broker: Broker, topic: str) -> None:
    """Subscriptions of each type, and all ways to acknowledge, on entries recorded before."""
    import pulsar

    C, Type = CommandType, pulsar.ConsumerType

    def entry_of(scene: str) -> bytes:
        _, entry = framing.parse_frame(memoryview(broker.recorded[C.SEND, scene][0]))
        assert entry is not None
        return bytes(entry)

    sticky = pulsar.ConsumerKeySharedPolicy(
        key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=[(0, 9999), (20_000, 65_535)]
    )
    subscriptions: dict[str, dict[str, Any]] = {
        "exclusive": {},
        "failover": {"consumer_type": Type.Failover, "consumer_name": "second officer"},
        "key_shared": {"consumer_type": Type.KeyShared},
        "sticky": {"consumer_type": Type.KeyShared, "key_shared_policy": sticky},
        "earliest": {"initial_position": pulsar.InitialPosition.Earliest},
        "properties": {"properties": {"who": "me"}, "schema": pulsar.schema.StringSchema()},
    }
    for name, options in subscriptions.items():
        with broker.playing(f"python_{name}", C.SUBSCRIBE):
            consumer = client.subscribe(topic, name, **options)
        if name == "exclusive":
            with broker.playing("python", C.UNSUBSCRIBE):
                consumer.unsubscribe()
        else:
            consumer.close()
    broker.stored = [entry_of("python"), entry_of("python_batch")]
    with broker.playing("python_shared", C.SUBSCRIBE, C.FLOW):
        consumer = client.subscribe(
            topic, "shared", Type.Shared, negative_ack_redelivery_delay_ms=100
        )
    with broker.playing("python_individual", C.ACK):
        alone = consumer.receive()
        consumer.acknowledge(alone)
    batch = [consumer.receive() for _ in range(3)]
    with broker.playing("python_negative", C.REDELIVER_UNACKNOWLEDGED_MESSAGES):
        consumer.negative_acknowledge(batch[0])
    with broker.playing("python_whole_batch", C.ACK):
        for message in batch:
            consumer.acknowledge(message)
    with broker.playing("python", C.CLOSE_CONSUMER):
        consumer.close()
    broker.stored = [entry_of("python"), entry_of("python_batch")]
    consumer = client.subscribe(topic, "indexes", batch_index_ack_enabled=True)
    messages = [consumer.receive() for _ in range(4)]
    with broker.playing("python_batch_index", C.ACK):
        consumer.acknowledge(messages[2])
    with broker.playing("python_cumulative_index", C.ACK):
        consumer.acknowledge_cumulative(messages[2])
    with broker.playing("python_cumulative", C.ACK):
        consumer.acknowledge_cumulative(messages[3])
    with broker.playing("python_all", C.REDELIVER_UNACKNOWLEDGED_MESSAGES):
        consumer.redeliver_unacknowledged_messages()
    with broker.playing("python", C.GET_LAST_MESSAGE_ID):
        consumer.get_last_message_id()
    targets = {
        "earliest": pulsar.MessageId.earliest,
        "latest": pulsar.MessageId.latest,
        "time": 1_700_000_000_000,
        "message": messages[0].message_id(),
        "within_batch": messages[2].message_id(),
    }
    for name, target in targets.items():
        with broker.playing(f"python_{name}", C.SEEK):
            consumer.seek(target)
    consumer.close()
    for name, start in {"earliest": pulsar.MessageId.earliest, "within_batch": None}.items():
        with broker.playing(f"python_reader_{name}", C.SUBSCRIBE):
            begin = start or messages[2].message_id()
            client.create_reader(topic, begin).close()


def play_java(broker: Broker) -> str:
    """What Java's client does in transactions."""
    return play_transactions(broker, "java", drivers.java_command())


def play_go(broker: Broker) -> str:
    """What Go's client does in transactions."""
    return play_transactions(broker, "go", drivers.go_command())


def play_transactions(broker: Broker, name: str, command: list[str]) -> str:
    """What a driver's client sends of a transaction, from its start to its end."""
    topic = "persistent://public/default/captured"
    C = CommandType
    value = base64.b64encode(b"in it").decode()
    errors = CAPTURES.with_name(f"{name}.log")
    with drivers.driver(command, errors) as call:
        with broker.playing(name, C.TC_CLIENT_CONNECT_REQUEST):
            client = call("client", url=broker.url, has_transactions=True)
        settings = {"client": client, "topic": topic, "send_timeout_ms": 0}
        producer = call("producer", **settings)["number"]
        with broker.playing(name, C.NEW_TXN):
            txn = call("begin", client=client, ttl_ms=30_000)["number"]

        def send(producer: int, count: int) -> None:
            call("send", producer=producer, transaction=txn, messages=[{"value": value}] * count)

        with broker.playing(f"{name}_in_transaction", C.ADD_PARTITION_TO_TXN, C.SEND):
            send(producer, 1)
        batching = call("producer", is_batched=True, batch_delay_ms=500, **settings)["number"]
        with broker.playing(f"{name}_batch_in_transaction", C.SEND):
            send(batching, 3)
        consumer = call(
            "consumer", client=client, topics=[topic], subscription="s", is_by_index=True
        )
        found = call("receive", consumer=consumer, count=4, within_ms=10_000)
        assert len(found) == 4
        for scene, place, first in (
            ("in_transaction", 0, [C.ADD_SUBSCRIPTION_TO_TXN]),
            ("batch_index_in_transaction", 2, []),
        ):
            with broker.playing(f"{name}_{scene}", *first, C.ACK):
                call(
                    "acknowledge",
                    consumer=consumer,
                    transaction=txn,
                    messages=[found[place]["number"]],
                )
        if name == "java":  # Go's has none
            with broker.playing("java_cumulative_in_transaction", C.ACK):
                call(
                    "acknowledge",
                    consumer=consumer,
                    transaction=txn,
                    messages=[found[3]["number"]],
                    is_cumulative=True,
                )
        with broker.playing(f"{name}_commit", C.END_TXN):
            call("commit", transaction=txn)
        aborted = call("begin", client=client)["number"]
        with broker.playing(f"{name}_abort", C.END_TXN):
            call("abort", transaction=aborted)
    errors.unlink()
    version = (Path(drivers.__file__).with_name(name) / "VERSION").read_text().strip()
    return f"Apache Pulsar's {name.capitalize()} client {version}"


def keep(recorded: dict[tuple[CommandType, str], list[bytes]], who: str, *, replace: bool) -> None:
    for (command, scene), frames in sorted(recorded.items()):
        folder = folder_of(command)
        folder.mkdir(parents=True, exist_ok=True)
        capture = folder / f"{scene}.bin"
        if capture.exists() and not replace:
            continue
        capture.write_bytes(frames[0])
        said = json.dumps(described(memoryview(frames[0])), indent=1, ensure_ascii=False)
        capture.with_suffix(".json").write_text(said + "\n")
        origin = folder / "ORIGIN"
        lines = set(origin.read_text().splitlines()) if origin.exists() else set()
        lines = {line for line in lines if not line.startswith(f"{scene}: ")}
        origin.write_text("\n".join(sorted({*lines, f"{scene}: {who}"})) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.captures.record_pulsar")
    parser.add_argument("--replace", action="store_true", help="also captures that exist")
    options = parser.parse_args()
    players: list[Callable[[Broker], str]] = [play_python, play_java, play_go]
    for play in players:
        broker = Broker()
        keep(broker.recorded, play(broker), replace=options.replace)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What makes no sense, over real sockets: a fitting ERROR or a closed connection, one line in the
log, bounded memory, and a stock client beside it that notices nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import re
import struct
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.pulsar.commands import AckType, CommandType, ServerError, SubType, encode_varint
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandAuthResponse,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandConnect,
    CommandFlow,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPing,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandSuccess,
    KeySharedMeta,
    KeyValue,
    MessageIdData,
    MessageMetadata,
)
from gateway.pulsar.entries import encode_entry
from gateway.pulsar.framing import MAX_COMMAND_SIZE, encode_frame, max_frame_size
from tests.captures import record_pulsar
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies
from tests.pulsar_wire import CONNECT, Wire, close_all, closing_all
from tests.variants import ARE_ALL_RUN

MIB = 2**20
ALLOWED_MIB = 96
"""What the broker may grow by while it is shown the worst: a frame and what is made of it, some
times over."""
MANY_CONSUMERS = 5_000 if ARE_ALL_RUN else 300
FRAMES = [each.read_bytes() for each in sorted(record_pulsar.CAPTURES.glob("*/*.bin"))]
"""What stock clients sent, without the size in front."""
OK = CommandType.SUCCESS
ERROR = CommandType.ERROR


@dataclass
class Served:
    """A broker, and a stock client that sends itself messages all the time."""

    gateway: Gateway
    port: int
    round_trips: int = 0
    slowest_s: float = 0.0

    async def wire(self) -> Wire:
        return await Wire.connected(self.port)

    def memory_mib(self, line: str = "VmRSS") -> float:
        """From the system's view of its process."""
        status = Path(f"/proc/{self.gateway.process.pid}/status").read_text()
        found = re.search(rf"{line}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024

    def forget_peak(self) -> None:
        """VmHWM begins anew."""
        Path(f"/proc/{self.gateway.process.pid}/clear_refs").write_text("5")

    def said(self, since: int) -> list[str]:
        """Lines of its log that tell of trouble. since: its length before."""
        log = self.gateway.log()[since:]
        return [
            line for line in log.splitlines() if re.search(r"\[(warning|error|critical) *\]", line)
        ]


@pytest.fixture(scope="module")
def served(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    port = free_port()
    stopped = threading.Event()
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("served")) as start,
    ):
        gateway = start("--pulsar-listen", f"127.0.0.1:{port}", database_url=url)
        served = Served(gateway, port)
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(f"pulsar://127.0.0.1:{port}", logger=logger)
        consumer = client.subscribe("healthy", "s", pulsar.ConsumerType.Shared)
        producer = client.create_producer("healthy")

        def go_on() -> None:
            while not stopped.is_set():
                began = time.monotonic()
                producer.send(b"%d" % served.round_trips)
                message = consumer.receive(20_000)
                assert message.data() == b"%d" % served.round_trips
                consumer.acknowledge(message)
                served.slowest_s = max(served.slowest_s, time.monotonic() - began)
                served.round_trips += 1
                time.sleep(0.01)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            stopped.set()
            thread.join(30)
            client.close()


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """The tests' connections, afterwards."""
    yield
    close_all()
    await asyncio.sleep(0)


@pytest.fixture
def undisturbed(served: Served) -> Iterator[None]:
    """Memory stays bounded, and the stock client goes on: meanwhile, and afterwards."""
    before, since = served.memory_mib(), served.round_trips
    served.forget_peak()
    yield
    after = served.round_trips
    deadline = time.monotonic() + 20
    while served.round_trips < after + 2:
        assert time.monotonic() < deadline, "the client beside it does not go on"
        time.sleep(0.01)
    assert after >= since
    growth = served.memory_mib("VmHWM") - before
    print(f"{growth:.1f} MiB more at the peak")  # noqa: T201 - for the report
    assert growth < ALLOWED_MIB, f"{growth:.0f} MiB more at the peak"
    assert "Traceback" not in served.gateway.log()


pytestmark = pytest.mark.usefixtures("undisturbed")


@contextlib.asynccontextmanager
async def one_line(served: Served, pattern: str) -> AsyncIterator[None]:
    """The block makes the broker say one thing."""
    since = len(served.gateway.log())
    yield
    async with asyncio.timeout(10):
        while not (lines := served.said(since)):
            await asyncio.sleep(0.01)
    assert len(lines) == 1, lines
    assert re.search(pattern, lines[0]), lines[0]
    assert len(lines[0]) < 1_000, "a line that a client can make as long as it likes"


@contextlib.asynccontextmanager
async def not_a_word(served: Served) -> AsyncIterator[None]:
    since = len(served.gateway.log())
    yield
    assert not served.said(since)


def names() -> Callable[[], str]:
    number = iter(range(10**9))
    return lambda: f"bad-{next(number)}"


new_topic = names()


def entry(payload: bytes = b"payload", **metadata: Any) -> bytes:
    wanted: dict[str, Any] = {"producer_name": "p", "sequence_id": 0, "publish_time": 1}
    return encode_entry(MessageMetadata(**(wanted | metadata)), payload)


async def producing(served: Served, topic: str) -> Wire:
    """A connection with producer 0."""
    wire = await served.wire()
    wanted = CommandProducer(topic=topic, producer_id=0)
    assert (await wire.ask(wanted, CommandType.PRODUCER_SUCCESS)).producer_name
    return wire


async def consuming(served: Served, topic: str, **subscribe: Any) -> Wire:
    """A connection with consumer 0."""
    wire = await served.wire()
    await wire.ask(subscribing(topic, **subscribe), OK)
    return wire


def subscribing(topic: str, **subscribe: Any) -> CommandSubscribe:
    return CommandSubscribe(
        **{
            "topic": topic,
            "subscription": "s",
            "sub_type": SubType.SHARED,
            "consumer_id": 0,
            "initial_position": 1,
            **subscribe,
        }
    )


# --- bytes ---


async def test_random_bytes(served: Served, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(30):
        wire = await (served.wire() if chance.random() < 0.5 else Wire.open(served.port))
        # A size that fits, so that the rest is looked at.
        garbage = chance.randbytes(chance.randint(8, 300))
        async with one_line(served, "connection closed"):
            wire.feed(struct.pack(">I", len(garbage)) + garbage)
            await wire.ended()
        wire.close()


def base_command(number: int, body: bytes) -> bytes:
    """A frame of a command of this type, whatever is in it."""
    command = b"\x08" + encode_varint(number)
    command += encode_varint(number << 3 | 2) + encode_varint(len(body)) + body
    return struct.pack(">II", len(command) + 4, len(command)) + command


def nested(depth: int) -> bytes:
    """MessageIdData in MessageIdData, in an ACK."""
    found = b"\x08\x01\x10\x01"
    for _ in range(depth):
        found = b"\x08\x01\x10\x01\x3a" + encode_varint(len(found)) + found
    return b"\x08\x00\x10\x00\x1a" + encode_varint(len(found)) + found


def lookup_of(topic: bytes) -> bytes:
    """A LOOKUP whose topic is any bytes."""
    return base_command(23, b"\x0a" + encode_varint(len(topic)) + topic + b"\x10\x01")


TOO_LONG = b"\x00" * (MAX_COMMAND_SIZE + 1)
BROKEN = [
    pytest.param(struct.pack(">I", max_frame_size() + 1), "the limit is", id="frame too long"),
    pytest.param(struct.pack(">I", 2**32 - 1), "announces -1 bytes", id="frame of 4 GiB"),
    pytest.param(struct.pack(">I", 0), "no command", id="frame of nothing"),
    pytest.param(struct.pack(">II", 8, 100) + bytes(4), "a command of 100", id="size that lies"),
    pytest.param(
        struct.pack(">II", len(TOO_LONG) + 4, len(TOO_LONG)) + TOO_LONG,
        "the limit is",
        id="command too long",
    ),
    pytest.param(base_command(99, b""), "99", id="unknown command"),
    pytest.param(base_command(9, b""), "MESSAGE", id="command of brokers"),
    pytest.param(base_command(10, nested(10_000)), "cannot be read", id="nested 10,000 deep"),
    pytest.param(
        base_command(23, b"\x0a\xff\xff\xff\x7f"), "cannot be read", id="length that lies"
    ),
    pytest.param(
        base_command(23, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "cannot be read", id="varint"
    ),
    pytest.param(encode_frame(CONNECT), "CONNECT of a client", id="CONNECT twice"),
    pytest.param(encode_frame(CommandSuccess(request_id=1)), "SUCCESS", id="an answer"),
    pytest.param(encode_frame(CommandAuthResponse()), "AUTH_RESPONSE", id="not served"),
    pytest.param(encode_frame(CommandPing()) + b"\x00\x00\x00\x00", "no command", id="after PING"),
]


@pytest.mark.parametrize(("sent", "reason"), BROKEN)
async def test_what_cannot_be_read_ends_the_connection(
    served: Served, sent: bytes, reason: str
) -> None:
    wire = await served.wire()
    async with one_line(served, f"connection closed.*{reason}|{reason}.*connection"):
        wire.feed(sent)
        await wire.ended()


@pytest.mark.parametrize(
    "first",
    [
        CommandPing(),
        CommandLookupTopic(topic="t", request_id=1),
        CommandFlow(consumer_id=1, message_permits=1),
    ],
    ids=lambda each: each.DESCRIPTOR.name,
)
async def test_before_connect_nothing_is_served(served: Served, first: Any) -> None:
    wire = await Wire.open(served.port)
    async with one_line(served, "before CONNECT"):
        wire.say(first)
        assert await wire.ended() == []


async def test_a_first_command_of_a_megabyte(served: Served) -> None:
    wire = await Wire.open(served.port)
    async with one_line(served, "connection closed"):
        wire.say(CommandConnect(client_version="x" * MIB))
        await wire.ended()


async def test_a_client_with_a_long_name(served: Served) -> None:
    wire = await Wire.open(served.port)
    wire.say(CommandConnect(client_version="x\n" * 20_000, protocol_version=21))
    await wire.hear(CommandType.CONNECTED)
    async with one_line(served, "SEND of an unknown producer"):
        wire.send(entry())
        await wire.ended()


# --- names ---

HUGE = "n" * 300_000
BAD_NAMES = [
    "",
    "a\0b",
    HUGE,
    "persistent://",
    "persistent://a/b",
    "persistent://a/b/c/d/e",
    "http://public/default/t",
    "persistent://public/default/" + HUGE,
    "persistent://public/default/a\0b",
    "t-partition-99999999999",
    "\ud7ff\uffff",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: ascii(name[:30]))
async def test_bad_names_of_topics(served: Served, name: str) -> None:
    """Each gets an answer, and the connection goes on."""
    wire = await served.wire()
    for ask, answer in (
        (CommandLookupTopic(topic=name), CommandType.LOOKUP_RESPONSE),
        (CommandProducer(topic=name, producer_id=1), None),
        (subscribing(name), None),
        (CommandGetTopicsOfNamespace(namespace=name), None),
    ):
        answers = (
            (answer,)
            if answer
            else (
                ERROR,
                OK,
                CommandType.PRODUCER_SUCCESS,
                CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE,
            )
        )
        async with not_a_word(served):
            heard = await wire.ask(ask, *answers)
            if heard.DESCRIPTOR.name == "CommandError":
                assert heard.error not in (ServerError.UNKNOWN_ERROR, ServerError.SERVICE_NOT_READY)
                assert len(heard.message) < 1_000
    await wire.ping()


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"\xc3\x28", b"ok\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"]
)
async def test_a_name_that_is_no_utf_8_ends_the_connection_or_is_refused(
    served: Served, name: bytes
) -> None:
    wire = await served.wire()
    wire.feed(lookup_of(name))
    with contextlib.suppress(asyncio.IncompleteReadError, OSError):
        heard = await wire.hear(CommandType.LOOKUP_RESPONSE, ERROR)
        assert heard.error


TEXTS = {"NUL": "a\0b", "huge": HUGE, "control": "a\n\x1b[31m"}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize(
    "field", ["subscription", "consumer_name", "subscription_properties", "metadata"]
)
async def test_bad_names_of_consumers(served: Served, field: str, text: str) -> None:
    wire = await served.wire()
    value: Any = text
    if field in ("subscription_properties", "metadata"):
        value = [KeyValue(key=text, value=text)]
    async with not_a_word(served):
        heard = await wire.ask(subscribing(new_topic(), **{field: value}), OK, ERROR)
        if heard.DESCRIPTOR.name == "CommandError":
            assert heard.error == ServerError.NOT_ALLOWED_ERROR, heard
    await wire.ping()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("field", ["producer_name", "metadata", "initial_subscription_name"])
async def test_bad_names_of_producers(served: Served, field: str, text: str) -> None:
    wire = await served.wire()
    value: Any = [KeyValue(key=text, value=text)] if field == "metadata" else text
    wanted = CommandProducer(topic=new_topic(), producer_id=0, **{field: value})
    async with not_a_word(served):
        heard = await wire.ask(wanted, CommandType.PRODUCER_SUCCESS, ERROR)
        if heard.DESCRIPTOR.name == "CommandError":
            assert heard.error == ServerError.NOT_ALLOWED_ERROR, heard
    await wire.ping()


# --- ids ---


async def test_an_id_of_a_producer_twice(served: Served) -> None:
    topic = new_topic()
    wire = await producing(served, topic)
    again = await wire.ask(
        CommandProducer(topic=new_topic(), producer_id=0), CommandType.PRODUCER_SUCCESS, ERROR
    )
    assert again.DESCRIPTOR.name == "CommandError"
    wire.send(entry())
    await wire.hear(CommandType.SEND_RECEIPT)


async def test_an_id_of_a_consumer_twice(served: Served) -> None:
    wire = await consuming(served, new_topic())
    again = await wire.ask(subscribing(new_topic()), OK, ERROR)
    assert again.error == ServerError.NOT_ALLOWED_ERROR
    # Both at once: none is made twice.
    topic = new_topic()
    first, second = (subscribing(topic, consumer_id=7, request_id=each) for each in (801, 802))
    wire.say(first)
    wire.say(second)
    heard = [await wire.hear(OK, ERROR) for _ in range(2)]
    assert {each.request_id for each in heard} == {801, 802}
    await wire.ping()


async def test_ids_that_nobody_has(served: Served) -> None:
    wire = await served.wire()
    async with not_a_word(served):
        wire.say(CommandFlow(consumer_id=9, message_permits=10))
        wire.say(CommandRedeliverUnacknowledgedMessages(consumer_id=9))
        wire.say(CommandAck(consumer_id=9, ack_type=AckType.INDIVIDUAL))
        asked = CommandAck(consumer_id=2**64 - 1, ack_type=AckType.INDIVIDUAL)
        assert (await wire.ask(asked, CommandType.ACK_RESPONSE)).error
        for each in (CommandCloseProducer(producer_id=9), CommandCloseConsumer(consumer_id=9)):
            await wire.ask(each, OK, ERROR)
        assert (await wire.ask(CommandSeek(consumer_id=9), OK, ERROR)).error
        await wire.ping()


# --- what consumers say ---


async def test_permits_beyond_what_fits(served: Served) -> None:
    topic = new_topic()
    wire = await consuming(served, topic)
    async with not_a_word(served):
        for permits in (2**31 - 1, 2**31, 2**32 - 1, 2**32 - 1, 1, 0):
            wire.say(CommandFlow(consumer_id=0, message_permits=permits))
        producer = await producing(served, topic)
        for number in range(20):
            producer.send(entry(b"%d" % number), sequence_id=number)
        for number in range(20):
            found = await wire.hear(CommandType.MESSAGE)
            assert found.message_id.entry_id == number


async def test_an_ack_set_of_100_000_words(served: Served) -> None:
    topic = new_topic()
    wire = await consuming(served, topic)
    wire.say(CommandFlow(consumer_id=0, message_permits=10))
    producer = await producing(served, topic)
    producer.send(entry())
    found = (await wire.hear(CommandType.MESSAGE)).message_id
    for words in ([-1] * 100_000, [0] * 100_000, [2**63 - 1, -(2**63)] * 50_000):
        ack = CommandAck(consumer_id=0, ack_type=AckType.INDIVIDUAL)
        ack.message_id.append(
            MessageIdData(ledger_id=found.ledger_id, entry_id=found.entry_id, ack_set=words)
        )
        async with not_a_word(served):
            assert not (await wire.ask(ack, CommandType.ACK_RESPONSE)).HasField("error")
    await wire.ping()


async def test_acknowledgements_of_what_is_not_there(served: Served) -> None:
    topic = new_topic()
    wire = await consuming(served, topic)
    extremes = (0, 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1)
    for kind in (AckType.INDIVIDUAL, AckType.CUMULATIVE):
        ack = CommandAck(consumer_id=0, ack_type=kind)
        for ledger_id in extremes:
            for entry_id in extremes:
                ack.message_id.append(
                    MessageIdData(ledger_id=ledger_id, entry_id=entry_id, batch_index=-(2**31))
                )
        async with not_a_word(served):
            await wire.ask(ack, CommandType.ACK_RESPONSE)
    await wire.ping()


async def test_80_000_acknowledgements_in_one(served: Served) -> None:
    wire = await consuming(served, new_topic())
    ack = CommandAck(consumer_id=0, ack_type=AckType.INDIVIDUAL)
    for number in range(80_000):
        ack.message_id.append(MessageIdData(ledger_id=2**40, entry_id=3 * number))
    async with not_a_word(served):
        await wire.ask(ack, CommandType.ACK_RESPONSE)
    await wire.ping()


@pytest.mark.parametrize(
    "ranges", [[(5, 1)], [(-1, 70_000)], [(0, 2**31 - 1)], [(0, 10), (5, 20)], []], ids=str
)
async def test_ranges_of_hashes_that_make_no_sense(
    served: Served, ranges: list[tuple[int, int]]
) -> None:
    wire = await served.wire()
    meta = KeySharedMeta(key_shared_mode=1)
    for start, end in ranges:
        meta.hash_ranges.add(start=start, end=end)
    wanted = subscribing(new_topic(), sub_type=SubType.KEY_SHARED, key_shared_meta=meta)
    async with not_a_word(served):
        heard = await wire.ask(wanted, OK, ERROR)
        assert heard.DESCRIPTOR.name == "CommandError"
    await wire.ping()


async def test_one_that_takes_permits_and_never_reads(served: Served) -> None:
    """Its backlog stays where it is, but for what fits into buffers."""
    topic = new_topic()
    producer = await producing(served, topic)
    payload = random.Random(1).randbytes(256 * 1024)
    count = 240  # 60 MiB, for 4 who read nothing
    for number in range(count):
        producer.send(entry(payload), sequence_id=number)
        if number % 20 == 19:
            for _ in range(20):
                await producer.hear(CommandType.SEND_RECEIPT)
    before = served.memory_mib()
    silent = []
    for number in range(4):
        wire = await consuming(served, topic, subscription=f"s{number}")
        wire.stop_reading()
        wire.say(CommandFlow(consumer_id=0, message_permits=2**31 - 1))
        await wire.drain()
        silent.append(wire)
    await asyncio.sleep(1.0)
    assert served.memory_mib("VmHWM") - before < 50
    # Whoever reads after all gets all.
    silent[0].resume_reading()
    for number in range(count):
        assert (await silent[0].hear(CommandType.MESSAGE)).message_id.entry_id == number
    for each in silent:
        each.close()


async def test_many_consumers_of_one_subscription(served: Served) -> None:
    topic = new_topic()
    wires = [await served.wire() for _ in range(10)]
    own = MANY_CONSUMERS // len(wires)

    async def subscribe(wire: Wire) -> None:
        for number in range(own):
            wire.say(subscribing(topic, consumer_id=number, request_id=number))
            assert (await wire.hear(OK, ERROR)).DESCRIPTOR.name == "CommandSuccess"
            wire.say(CommandFlow(consumer_id=number, message_permits=1))

    await asyncio.gather(*map(subscribe, wires))
    producer = await producing(served, topic)
    for number in range(MANY_CONSUMERS):
        producer.send(entry(), sequence_id=number)
        if number % 500 == 499:
            await asyncio.sleep(0)

    async def take(wire: Wire) -> set[int]:
        return {(await wire.hear(CommandType.MESSAGE)).consumer_id for _ in range(own)}

    for found in await asyncio.gather(*map(take, wires)):
        assert len(found) == own, "each takes one message"
    for each in wires:
        each.close()


# --- what producers say ---


async def test_a_wrong_checksum(served: Served) -> None:
    wire = await producing(served, new_topic())
    broken = bytearray(entry())
    broken[-1] ^= 1
    async with not_a_word(served):
        wire.send(bytes(broken), sequence_id=0)
        assert (await wire.hear(CommandType.SEND_ERROR)).error == ServerError.CHECKSUM_ERROR
        wire.send(entry(), sequence_id=0)
        await wire.hear(CommandType.SEND_RECEIPT)


BOMB = 2**28


@functools.cache
def bomb(size: int) -> bytes:
    """So many zeros, as zlib writes them: a thousandth."""
    packer = zlib.compressobj(1)
    pieces = [packer.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join(pieces) + packer.flush()


ZLIB, LZ4 = 2, 1
LIES = {
    "more messages than there are": lambda: (entry(num_messages_in_batch=50), 50),
    "no messages": lambda: (entry(num_messages_in_batch=0), 0),
    "messages below zero": lambda: (entry(num_messages_in_batch=-5), -5),
    "2^31 messages": lambda: (entry(num_messages_in_batch=2**31 - 1), 2**31 - 1),
    "another count than the command": lambda: (entry(num_messages_in_batch=3), 7),
    "unknown codec": lambda: (entry(compression=77, uncompressed_size=7), 1),
    "not compressed": lambda: (entry(compression=ZLIB, uncompressed_size=7), 1),
    "4 GiB in seven bytes": lambda: (entry(compression=LZ4, uncompressed_size=2**32 - 1), 1),
    "a bomb that says so": lambda: (
        entry(bomb(BOMB), compression=ZLIB, uncompressed_size=BOMB),
        1,
    ),
    "a bomb that lies": lambda: (entry(bomb(BOMB), compression=ZLIB, uncompressed_size=10), 1),
    "a batch that is a bomb": lambda: (
        entry(bomb(BOMB), compression=ZLIB, uncompressed_size=BOMB, num_messages_in_batch=9),
        9,
    ),
    "a chunk beyond the last": lambda: (
        entry(uuid="u", chunk_id=7, num_chunks_from_msg=2, total_chunk_msg_size=-1),
        1,
    ),
    "times of the end": lambda: (
        entry(publish_time=2**64 - 1, event_time=2**63, deliver_at_time=-(2**63)),
        1,
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_metadata_that_lies(served: Served, lie: Callable[[], tuple[bytes, int]]) -> None:
    """Refused; or stored, given to Pulsar's consumers as it is, and passed over by Kafka's."""
    topic = new_topic()
    block, count = await asyncio.to_thread(lie)
    consumers = []
    for kind in (SubType.SHARED, SubType.KEY_SHARED, SubType.EXCLUSIVE):
        wire = await consuming(served, topic, subscription=f"s{kind}", sub_type=kind)
        wire.say(CommandFlow(consumer_id=0, message_permits=1_000))
        consumers.append(wire)
    wire = await producing(served, topic)
    wire.send(block, num_messages=count)
    heard = await wire.hear(CommandType.SEND_RECEIPT, CommandType.SEND_ERROR)
    is_stored = heard.DESCRIPTOR.name == "CommandSendReceipt"
    if is_stored:
        for each in consumers:
            assert (await each.hear(CommandType.MESSAGE)).message_id.entry_id == 0
    else:
        assert heard.error in (ServerError.NOT_ALLOWED_ERROR, ServerError.CHECKSUM_ERROR)
    # What comes behind it reaches everybody, also by way of Kafka.
    wire.send(entry(b"behind"), sequence_id=5)
    behind = await wire.hear(CommandType.SEND_RECEIPT)
    for each in consumers:
        found = await each.hear(CommandType.MESSAGE)
        assert found.message_id.entry_id == behind.message_id.entry_id
    values = await asyncio.to_thread(kafka_values, served, topic, behind.message_id.entry_id)
    assert values[-1] == b"behind"
    for each in (wire, *consumers):
        each.close()


def kafka_values(served: Served, topic: str, last: int) -> list[bytes | None]:
    """Up to and with the offset, as a Kafka consumer gets them; what it cannot read is an error."""
    consumer = Consumer({"bootstrap.servers": served.gateway.bootstrap, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes | None] = []
    deadline = time.monotonic() + 20
    try:
        while True:
            message = consumer.poll(0.5)
            assert time.monotonic() < deadline, f"only {found}"
            if message is None or message.error() is not None:
                continue
            found.append(message.value())
            if message.offset() == last:
                return found
    finally:
        consumer.close()


# --- real commands, mutated ---


def mutated(frame: bytes, edits: list[tuple[int, int]]) -> bytes:
    """Some bytes of it are others; the size in front is told truly, so that it is looked at."""
    changed = bytearray(frame)
    for place, value in edits:
        changed[place % len(changed)] = value
    return struct.pack(">I", len(changed)) + bytes(changed)


EDITS = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=4)


@settings(
    max_examples=1_000 if ARE_ALL_RUN else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(said=st.lists(st.tuples(st.sampled_from(FRAMES), EDITS), min_size=1, max_size=8))
def test_mutated_commands_of_real_clients(
    served: Served, said: list[tuple[bytes, list[tuple[int, int]]]]
) -> None:
    """Every one is answered, passed over, or ends the connection; and never by a bug."""

    async def talk() -> None:
        wire = await served.wire()
        for frame, edits in said:
            wire.feed(mutated(frame, edits))
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            await wire.ping()
        wire.close()

    since = len(served.gateway.log())
    asyncio.run(closing_all(talk()))
    assert not [line for line in served.said(since) if "[error" in line]

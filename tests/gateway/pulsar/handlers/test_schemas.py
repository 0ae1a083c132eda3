"""Schemas in PRODUCER, SUBSCRIBE, GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from core.ports.log import StoreUnavailable
from core.schema.values import CompatibilityStrategy, SchemaPolicy, SchemaType
from core.topic.rules import NewTopic
from gateway.pulsar.commands import CommandType, ServerError, SubType
from gateway.pulsar.commands_pb2 import (
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandProducer,
    CommandSubscribe,
    KeyValue,
    Schema,
)
from tests.core.schema.avro_schemas import data_of, record
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

INCOMPATIBLE = ServerError.INCOMPATIBLE_SCHEMA
BYTES = [Schema(name="", type=number, schema_data=b"") for number in (0, -1)]
AUTO_CONSUME = Schema(name="auto", type=21, schema_data=b"")  # the wire's number
STRING = Schema(name="String", type=SchemaType.STRING, schema_data=b"")


def avro(*fields: Any, kind: int = SchemaType.AVRO, **more: Any) -> Schema:
    data = data_of(record(*fields, **more))
    return Schema(name="R", type=kind, schema_data=data, properties=[KeyValue(key="a", value="b")])


def version(number: int) -> bytes:
    return struct.pack(">q", number)


FIRST = avro("a")
SECOND = avro("a", ("b", "int", 0))
INCOMPATIBLE_ONE = avro("c")


@pytest.fixture
async def client(broker: Broker) -> Conversation:
    return await broker.client()


async def produced(client: Conversation, schema: Schema | None, topic: str = "t") -> bytes:
    """The version that a producer is told, which then goes."""
    success = await client.produce_to(topic, **({} if schema is None else {"schema": schema}))
    assert success.HasField("schema_version")  # Java wants one
    await client.ask(CommandCloseProducer(producer_id=0), CommandType.SUCCESS)
    return bytes(success.schema_version)


async def refused_producer(client: Conversation, schema: Schema, topic: str = "t") -> str:
    wanted = CommandProducer(topic=topic, producer_id=0, schema=schema)
    error = await client.ask(wanted, CommandType.ERROR)
    assert error.error == INCOMPATIBLE
    return str(error.message)


def subscription(schema: Schema | None, topic: str = "t") -> CommandSubscribe:
    given = {} if schema is None else {"schema": schema}
    return CommandSubscribe(
        topic=topic, subscription="s", sub_type=SubType.SHARED, consumer_id=1, **given
    )


async def consumed(client: Conversation, schema: Schema | None, topic: str = "t") -> None:
    await client.ask(subscription(schema, topic), CommandType.SUCCESS)
    await client.ask(CommandCloseConsumer(consumer_id=1), CommandType.SUCCESS)


async def refused_consumer(client: Conversation, schema: Schema, topic: str = "t") -> str:
    error = await client.ask(subscription(schema, topic), CommandType.ERROR)
    assert error.error == INCOMPATIBLE
    return str(error.message)


async def got(client: Conversation, number: int | None = None, topic: str = "t") -> Any:
    given = {} if number is None else {"schema_version": version(number)}
    return await client.ask(CommandGetSchema(topic=topic, **given), CommandType.GET_SCHEMA_RESPONSE)


async def is_without(client: Conversation, number: int | None = None, topic: str = "t") -> bool:
    answer = await got(client, number, topic)
    return bool(answer.error_code == ServerError.TOPIC_NOT_FOUND)


async def test_producers_register_what_is_new(client: Conversation) -> None:
    assert await produced(client, FIRST) == version(0)
    assert await produced(client, FIRST) == version(0)
    assert await produced(client, avro("a", doc="d")) == version(0)
    assert await produced(client, SECOND) == version(1)
    assert await produced(client, FIRST) == version(0)  # what was registered stays so
    assert "field 'c' without a default" in await refused_producer(client, INCOMPATIBLE_ONE)
    reason = await refused_producer(client, avro("a", kind=SchemaType.JSON))
    assert "exists schema type AVRO, new schema type JSON" in reason


async def test_a_repeated_question_has_the_same_answer(client: Conversation) -> None:
    for _ in range(2):
        success = await client.produce_to("persistent://public/default/t", schema=FIRST)
        assert success.schema_version == version(0)


async def test_bytes_have_no_schema(client: Conversation) -> None:
    for schema in (None, *BYTES):
        assert await produced(client, schema) == b""
        await consumed(client, schema)
    assert await is_without(client)
    assert await produced(client, FIRST) == version(0)
    for schema in (None, *BYTES):  # not enforced
        assert await produced(client, schema) == b""
        await consumed(client, schema)


async def test_a_schema_is_given_as_it_came(client: Conversation) -> None:
    await produced(client, FIRST)
    await produced(client, SECOND)
    for number, schema in ((0, FIRST), (1, SECOND), (None, SECOND)):
        answer = await got(client, number)
        assert not answer.HasField("error_code")
        expected = Schema()
        expected.CopyFrom(schema)
        expected.name = "public/default/t"
        assert answer.schema == expected
        assert answer.schema_version == version(1 if number is None else number)
    for number in (2, -1, 2**63 - 1, -(2**63)):
        assert await is_without(client, number)
    assert await is_without(client, topic="other")
    empty = CommandGetSchema(topic="t", schema_version=b"")
    answer = await client.ask(empty, CommandType.GET_SCHEMA_RESPONSE)
    assert answer.schema_version == version(1)


@pytest.mark.parametrize(
    ("topic", "given", "code"),
    [
        ("t", b"1234567", ServerError.METADATA_ERROR),
        ("a/b", b"", ServerError.INVALID_TOPIC_NAME),
        ("non-persistent://a/b/c", b"", ServerError.NOT_ALLOWED_ERROR),
    ],
)
async def test_what_cannot_be_asked_for(
    client: Conversation, topic: str, given: bytes, code: ServerError
) -> None:
    asked = CommandGetSchema(topic=topic, schema_version=given)
    answer = await client.ask(asked, CommandType.GET_SCHEMA_RESPONSE)
    assert (answer.error_code, bool(answer.error_message)) == (code, True)


async def test_all_partitions_have_one(broker: Broker, client: Conversation) -> None:
    await broker.runtime.topics.create([NewTopic("p", 3)])
    assert await produced(client, FIRST, "p-partition-0") == version(0)
    assert await produced(client, SECOND, "p-partition-2") == version(1)
    assert await produced(client, FIRST, "p-partition-1") == version(0)
    assert (await got(client, topic="p-partition-1")).schema.name == "public/default/p"
    assert (await got(client, topic="p")).schema_version == version(1)
    await refused_consumer(client, INCOMPATIBLE_ONE, "p-partition-1")


async def test_a_consumer_brings_the_first(client: Conversation) -> None:
    await consumed(client, FIRST)
    assert (await got(client)).schema_version == version(0)
    await consumed(client, SECOND)  # reads what the first has written
    assert (await got(client)).schema_version == version(0)
    assert await produced(client, SECOND) == version(1)


async def test_a_consumer_brings_it_to_what_kafka_has_written(client: Conversation) -> None:
    await client.produce_to("t")
    client.send(entry_of())
    await client.hear(CommandType.SEND_RECEIPT)
    await consumed(client, STRING)
    assert (await got(client)).schema.type == SchemaType.STRING


async def test_a_consumer_has_to_read_the_latest(broker: Broker, client: Conversation) -> None:
    await produced(client, FIRST)
    await produced(client, SECOND)
    await consumed(client, avro())  # not FULL, but readers need not be
    await consumed(client, FIRST)
    assert "cannot read" in await refused_consumer(client, INCOMPATIBLE_ONE)
    await refused_consumer(client, STRING)
    broker.runtime.schemas.policy_of = lambda _: SchemaPolicy(
        CompatibilityStrategy.ALWAYS_COMPATIBLE
    )
    await consumed(client, STRING)
    assert (await got(client)).schema_version == version(1)


async def test_whoever_consumes_anything_registers_nothing(client: Conversation) -> None:
    await consumed(client, AUTO_CONSUME)
    assert await is_without(client)
    await produced(client, FIRST)
    await consumed(client, AUTO_CONSUME)
    reason = await refused_producer(client, AUTO_CONSUME)
    assert "client-side schema type" in reason


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (Schema(name="x", type=22, schema_data=b""), "Unknown schema type: 22"),
        (Schema(name="x", type=2**31 - 1, schema_data=b""), "Unknown schema type"),
        (Schema(name="x", type=SchemaType.AVRO, schema_data=b"{"), "Invalid schema definition"),
        (Schema(name="x", type=SchemaType.AVRO, schema_data=b"[" * 2**17), "Invalid schema"),
        (Schema(name="x", type=SchemaType.INT8, schema_data=b"x"), "length should be zero"),
        (Schema(name="x", type=SchemaType.KEY_VALUE, schema_data=b"x"), "key is missing"),
        (Schema(name="x", type=1, schema_data=b"x" * (2**20 + 1)), "are the limit"),
        (avro(("a", "x" * 100_000)), "there is no type 'xxx"),
    ],
)
async def test_bad_input(client: Conversation, schema: Schema, why: str) -> None:
    for refused in (refused_producer, refused_consumer):
        reason = await refused(client, schema)
        assert why in reason
        assert len(reason) <= 1_000
    wanted = CommandGetOrCreateSchema(topic="t", schema=schema)
    answer = await client.ask(wanted, CommandType.GET_OR_CREATE_SCHEMA_RESPONSE)
    assert (answer.error_code, why in answer.error_message) == (INCOMPATIBLE, True)
    assert await is_without(client)


async def test_a_producer_brings_another_later(client: Conversation) -> None:
    async def create(schema: Schema, topic: str = "t") -> Any:
        wanted = CommandGetOrCreateSchema(topic=topic, schema=schema)
        return await client.ask(wanted, CommandType.GET_OR_CREATE_SCHEMA_RESPONSE)

    assert (await create(FIRST)).error_code == ServerError.TOPIC_NOT_FOUND
    assert (await create(FIRST, "a/b")).error_code == ServerError.INVALID_TOPIC_NAME
    assert await produced(client, None) == b""
    for schema, number in ((FIRST, 0), (SECOND, 1), (FIRST, 0)):
        answer = await create(schema)
        assert (answer.HasField("error_code"), answer.schema_version) == (False, version(number))
    answer = await create(BYTES[0])
    assert (answer.HasField("schema_version"), answer.schema_version) == (True, b"")
    answer = await create(INCOMPATIBLE_ONE)
    assert (answer.error_code, answer.HasField("schema_version")) == (INCOMPATIBLE, False)


async def test_an_enforced_schema_keeps_bytes_out(broker: Broker, client: Conversation) -> None:
    broker.runtime.schemas.policy_of = lambda _: SchemaPolicy(is_enforced=True)
    assert await produced(client, None) == b""
    assert await produced(client, FIRST) == version(0)
    wanted = CommandProducer(topic="t", producer_id=0)
    error = await client.ask(wanted, CommandType.ERROR)
    assert (error.error, "SchemaValidationEnforced" in error.message) == (INCOMPATIBLE, True)
    await consumed(client, None)


async def test_nobody_registers_where_updates_are_off(broker: Broker, client: Conversation) -> None:
    await produced(client, FIRST)
    broker.runtime.schemas.policy_of = lambda _: SchemaPolicy(allows_auto_update=False)
    assert await produced(client, FIRST) == version(0)
    assert "auto updating is disabled" in await refused_producer(client, SECOND)
    assert "auto updating is disabled" in await refused_producer(client, FIRST, "other")
    await consumed(client, SECOND)


async def test_one_that_is_closed_before_it_is_made_is_none(client: Conversation) -> None:
    client.say(CommandProducer(topic="t", producer_id=0, request_id=1, schema=FIRST))
    client.say(CommandCloseProducer(producer_id=0, request_id=2))
    assert (await client.hear(CommandType.SUCCESS)).request_id == 2
    assert (await client.hear(CommandType.ERROR)).request_id == 1
    assert await produced(client, FIRST) == version(0)


async def test_many_at_once_cost_one_transaction(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.runtime.topics.create([NewTopic("p", 8)])
    clients = [await broker.client() for _ in range(8)]
    changes = []
    store = broker.runtime.schemas._store
    change = store.change

    def counted(*arguments: Any) -> Any:
        changes.append(arguments)
        return change(*arguments)

    monkeypatch.setattr(store, "change", counted)
    answers = await asyncio.gather(
        *(produced(each, FIRST, f"p-partition-{at}") for at, each in enumerate(clients))
    )
    assert answers == [version(0)] * 8
    assert len(changes) < 8


async def test_the_database_is_away(
    broker: Broker, client: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("gone")

    await produced(client, None)
    monkeypatch.setattr(broker.runtime.schemas._store, "load", away)
    monkeypatch.setattr(broker.runtime.schemas, "heads", away)
    for asked in (
        CommandProducer(topic="t", producer_id=0, schema=FIRST),
        subscription(FIRST),
        CommandGetSchema(topic="t"),
        CommandGetOrCreateSchema(topic="t", schema=FIRST),
    ):
        error = await client.ask(asked, CommandType.ERROR)
        assert error.error == ServerError.SERVICE_NOT_READY
    monkeypatch.undo()
    assert await produced(client, FIRST) == version(0)

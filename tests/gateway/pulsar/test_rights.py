"""Rights at Pulsar's door: each command with and without them, and rights that go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from core.namespace.values import Tenant
from core.security.acl_changes import AclBindingFilter
from core.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType
from core.security.operations import Requirement, Without
from core.security.principal import Caller, Principal
from core.security.pulsar_operations import COMMANDS
from core.topic.rules import NewTopic
from gateway.pulsar.api import load_handlers
from gateway.pulsar.commands import CommandType, ServerError, SubType
from gateway.pulsar.commands_pb2 import (
    CommandAddPartitionToTxn,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandNewTxn,
    CommandPartitionedTopicMetadata,
    CommandProducer,
    CommandSubscribe,
    CommandTcClientConnectRequest,
    CommandWatchTopicList,
    Schema,
)
from gateway.runtime.rights import rights_of
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.conversing import Conversation, entry_of

ALICE, PROXY = Principal("alice"), Principal("proxy")
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
}
TOPIC, HERE = "flights", "persistent://public/default/"
GROUP: Final = "pulsar-subscription:flights:0:mine"
NAMED: Final = "pulsar-subscription:persistent://public/default/:mine"
Refusals = list[tuple[str, str]]


class Guarded:
    """A broker with an authorizer; `calls` come as alice, by a proxy if one is named."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.acls = broker.runtime.acls
        self.refused: Refusals = []
        self.proxy: Principal | None = None
        broker.front_end.rights_of = self._rights_of
        self.acls.watch(broker.front_end.on_rights_changed)

    def _rights_of(self, caller: Caller) -> Any:
        as_whom = Caller(ALICE, caller.host, self.proxy)
        return rights_of(self.acls, lambda *told: self.refused.append(told), as_whom)

    async def grant(self, *bindings: AclBinding) -> None:
        answers = await self.acls.create(bindings, principal=ALICE, peer="here")
        assert answers == [None] * len(bindings)

    async def take(self, binding: AclBinding) -> None:
        exactly = AclBindingFilter(
            binding.resource_type,
            binding.name,
            binding.pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission,
        )
        [gone] = await self.acls.delete([exactly], principal=ALICE, peer="here")
        assert gone == [binding]


def rule(
    operation: Operation,
    name: str = TOPIC,
    kind: ResourceType = ResourceType.TOPIC,
    *,
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
    who: Principal = ALICE,
) -> AclBinding:
    return AclBinding(kind, name, pattern, str(who), "*", operation, permission)


@pytest.fixture
async def at(make_broker: Any) -> AsyncIterator[Guarded]:
    broker: Broker = await make_broker(AUTHORIZER)
    await broker.runtime.acls.load()
    await broker.runtime.topics.create([NewTopic(TOPIC, 1), NewTopic("trains", 1)])
    yield Guarded(broker)


def request_of(command: str) -> tuple[Any, CommandType, CommandType]:
    """What a client asks, what it is answered, and what it is answered where it may not."""
    topic = HERE + TOPIC
    schema = Schema(name="", schema_data=b"", type=1)  # a string's
    kind = CommandType
    asked: dict[str, tuple[Any, CommandType, CommandType]] = {
        "LOOKUP": (
            CommandLookupTopic(topic=topic),
            kind.LOOKUP_RESPONSE,
            kind.LOOKUP_RESPONSE,
        ),
        "PARTITIONED_METADATA": (
            CommandPartitionedTopicMetadata(topic=topic),
            kind.PARTITIONED_METADATA_RESPONSE,
            kind.PARTITIONED_METADATA_RESPONSE,
        ),
        "PRODUCER": (
            CommandProducer(topic=topic, producer_id=0),
            kind.PRODUCER_SUCCESS,
            kind.ERROR,
        ),
        "SUBSCRIBE": (subscribing(), kind.SUCCESS, kind.ERROR),
        "GET_SCHEMA": (
            CommandGetSchema(topic=topic),
            kind.GET_SCHEMA_RESPONSE,
            kind.GET_SCHEMA_RESPONSE,
        ),
        "GET_OR_CREATE_SCHEMA": (
            CommandGetOrCreateSchema(topic=topic, schema=schema),
            kind.GET_OR_CREATE_SCHEMA_RESPONSE,
            kind.GET_OR_CREATE_SCHEMA_RESPONSE,
        ),
    }
    return asked[command]


def subscribing(name: str = "mine") -> CommandSubscribe:
    return CommandSubscribe(
        topic=HERE + TOPIC, subscription=name, consumer_id=0, sub_type=SubType.SHARED
    )


def code_of(answer: Any) -> int:
    """0 where it is no refusal."""
    if "error_code" in answer.DESCRIPTOR.fields_by_name:
        return answer.error_code if answer.HasField("error_code") else 0
    has_error = "error" in answer.DESCRIPTOR.fields_by_name and answer.HasField("error")
    return answer.error if has_error else 0


SINGLE: Final = [
    "LOOKUP",
    "PARTITIONED_METADATA",
    "PRODUCER",
    "SUBSCRIBE",
    "GET_SCHEMA",
    "GET_OR_CREATE_SCHEMA",
]


def test_every_command_has_a_row_and_each_that_asks_a_test() -> None:
    assert COMMANDS.keys() == {each.type.name for each in load_handlers().table()}
    asking = {
        name for name, row in COMMANDS.items() if any(r.without is Without.WHOLE for r in row)
    }
    assert asking == {*SINGLE, "ADD_PARTITION_TO_TXN"}


def operations_of(requirement: Requirement) -> set[Operation]:
    """Those that grant it."""
    [right] = requirement.rights
    implying = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    return {right.operation} | (implying if right.operation is Operation.DESCRIBE else set())


@pytest.mark.parametrize("command", SINGLE)
async def test_it_takes_the_right_of_the_table(at: Guarded, command: str) -> None:
    """Each operation alone, in each way in which a topic can be named; without, the same whether
    the topic is there or not."""
    message, _, refused = request_of(command)
    client = await at.broker.client()
    with capture_logs() as logs:
        told = await client.ask(message, refused)
    assert code_of(told) == ServerError.AUTHORIZATION_ERROR
    [line] = [each for each in logs if each["event"] == "refused"]
    assert (line["principal"], line["request"]) == ("User:alice", command)
    message.topic = HERE + "nowhere"
    again = await client.ask(message, refused)
    message.topic = HERE + TOPIC
    again.request_id = told.request_id
    assert again == told
    wanted = operations_of(COMMANDS[command][0])
    names = (
        (TOPIC, PatternType.LITERAL),
        (TOPIC[:3], PatternType.PREFIXED),
        (HERE, PatternType.PREFIXED),
        (HERE + TOPIC, PatternType.LITERAL),
        ("*", PatternType.LITERAL),
    )
    for number, operation in enumerate(sorted({Operation.READ, Operation.WRITE, *wanted})):
        name, pattern = names[number % len(names)]
        given = rule(operation, name, pattern=pattern)
        await at.grant(given)
        other = await at.broker.client()
        message, answered, refused = request_of(command)
        answer = await other.ask(message, answered if operation in wanted else refused)
        assert (code_of(answer) != ServerError.AUTHORIZATION_ERROR) == (operation in wanted)
        other.transport.close()
        await at.take(given)


async def test_a_deny_goes_before(at: Guarded) -> None:
    await at.grant(
        rule(Operation.ALL, "*"),
        rule(Operation.WRITE, HERE, pattern=PatternType.PREFIXED, permission=Permission.DENY),
    )
    client = await at.broker.client()
    message, _, refused = request_of("PRODUCER")
    assert code_of(await client.ask(message, refused)) == ServerError.AUTHORIZATION_ERROR
    message, answered, _ = request_of("SUBSCRIBE")
    assert code_of(await client.ask(message, answered)) == 0


async def test_a_proxy_and_its_client_both_have_to_have_it(at: Guarded) -> None:
    at.proxy = PROXY
    message, _, refused = request_of("PRODUCER")
    await at.grant(rule(Operation.WRITE))
    client = await at.broker.client()
    assert code_of(await client.ask(message, refused)) == ServerError.AUTHORIZATION_ERROR
    await at.grant(rule(Operation.WRITE, who=PROXY))
    await client.ask(message, CommandType.PRODUCER_SUCCESS)


async def test_a_first_subscription_is_for_those_who_may_read(at: Guarded) -> None:
    await at.grant(rule(Operation.WRITE))
    client = await at.broker.client()
    wanted = CommandProducer(topic=HERE + TOPIC, producer_id=0, initial_subscription_name="first")
    assert code_of(await client.ask(wanted, CommandType.ERROR)) == ServerError.AUTHORIZATION_ERROR
    first = f"pulsar-subscription:{HERE}:first"
    bob = rule(Operation.READ, first, ResourceType.GROUP, who=Principal("bob"))
    await at.grant(rule(Operation.READ), bob)
    assert code_of(await client.ask(wanted, CommandType.ERROR)) == ServerError.AUTHORIZATION_ERROR
    await at.take(bob)
    await client.ask(wanted, CommandType.PRODUCER_SUCCESS)


async def test_a_subscription_that_is_named_is_for_those_who_are(at: Guarded) -> None:
    """Pulsar's permission of subscriptions: without one, who may read may use any."""
    await at.grant(rule(Operation.READ))
    bob = rule(Operation.READ, NAMED, ResourceType.GROUP, who=Principal("bob"))
    await at.grant(bob)
    client = await at.broker.client()
    told = await client.ask(subscribing(), CommandType.ERROR)
    assert code_of(told) == ServerError.AUTHORIZATION_ERROR
    other = subscribing("other")
    await client.ask(other, CommandType.SUCCESS)
    await at.grant(rule(Operation.READ, NAMED, ResourceType.GROUP))
    await (await at.broker.client()).ask(subscribing(), CommandType.SUCCESS)
    await at.take(bob)
    deny = Permission.DENY
    await at.grant(rule(Operation.READ, GROUP, ResourceType.GROUP, permission=deny))
    told = await (await at.broker.client()).ask(subscribing(), CommandType.ERROR)
    assert code_of(told) == ServerError.AUTHORIZATION_ERROR


async def test_lists_leave_out_what_one_may_not_know(at: Guarded) -> None:
    client = await at.broker.client()

    async def listed() -> list[str]:
        command = CommandGetTopicsOfNamespace(namespace="public/default")
        answer = await client.ask(command, CommandType.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        return [each.removeprefix(HERE) for each in answer.topics]

    assert await listed() == []
    watched = CommandWatchTopicList(
        watcher_id=7, namespace="public/default", topics_pattern=HERE + ".*"
    )
    answer = await client.ask(watched, CommandType.WATCH_TOPIC_LIST_SUCCESS)
    assert list(answer.topic) == []
    await at.grant(rule(Operation.DESCRIBE))
    update = await client.hear(CommandType.WATCH_TOPIC_UPDATE)
    assert list(update.new_topics) == [HERE + TOPIC]
    assert await listed() == [TOPIC]
    await at.take(rule(Operation.DESCRIBE))
    update = await client.hear(CommandType.WATCH_TOPIC_UPDATE)
    assert list(update.deleted_topics) == [HERE + TOPIC]
    assert at.refused == []


async def test_rights_that_go_close_producers_and_consumers(at: Guarded) -> None:
    write, read = rule(Operation.WRITE), rule(Operation.READ)
    await at.grant(write, read)
    client = await at.broker.client()
    await client.produce_to(HERE + TOPIC)
    await client.ask(subscribing(), CommandType.SUCCESS)
    client.send(entry_of())
    await client.hear(CommandType.SEND_RECEIPT)
    await at.take(write)
    await client.hear(CommandType.CLOSE_PRODUCER)
    client.send(entry_of(), sequence_id=1)  # what it had sent before it heard of it is dropped
    assert len(await at.broker.lines(TOPIC)) == 1
    await at.take(read)
    await client.hear(CommandType.CLOSE_CONSUMER)
    assert client.connection._session.attached == []


@pytest.mark.parametrize("command", ["PRODUCER", "SUBSCRIBE"])
async def test_a_right_that_goes_meanwhile_lets_nobody_in(
    at: Guarded, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the question and the answer there is the database."""
    right = rule(Operation.WRITE if command == "PRODUCER" else Operation.READ)
    await at.grant(right)
    subscriptions = at.broker.runtime.subscriptions
    name = "claim" if command == "PRODUCER" else "find"
    found = getattr(subscriptions, name)

    async def taken_away(partition_id: int) -> Any:
        answer = await found(partition_id)
        monkeypatch.undo()
        await at.take(right)
        return answer

    monkeypatch.setattr(subscriptions, name, taken_away)
    client = await at.broker.client()
    asked, _, refused = request_of(command)
    assert code_of(await client.ask(asked, refused)) == ServerError.AUTHORIZATION_ERROR
    assert client.connection._session.attached == []


async def test_a_change_that_takes_nothing_closes_nothing(at: Guarded) -> None:
    await at.grant(rule(Operation.WRITE))
    client = await at.broker.client()
    await client.produce_to(HERE + TOPIC)
    await at.grant(rule(Operation.ALL, "trains"))
    client.send(entry_of())
    await client.hear(CommandType.SEND_RECEIPT)


async def test_admins_of_a_tenant_need_no_rule(at: Guarded) -> None:
    namespaces = at.broker.runtime.namespaces
    looking = asyncio.create_task(at.acls.run_admins())
    message, _, refused = request_of("PRODUCER")
    client = await at.broker.client()
    assert code_of(await client.ask(message, refused)) == ServerError.AUTHORIZATION_ERROR
    await namespaces.put_tenant(Tenant("public", ("alice",), ("standalone",)), is_new=False)
    async with asyncio.timeout(20):
        while not at.acls.rules.authorize(
            ALICE, "h", Operation.WRITE, ResourceType.TOPIC, TOPIC
        ).is_allowed:
            await asyncio.sleep(0.05)
    await client.ask(message, CommandType.PRODUCER_SUCCESS)
    assert list(await at.acls.describe(ANY)) == []  # no row has come
    await namespaces.put_tenant(Tenant("public", (), ("standalone",)), is_new=False)
    await client.hear(CommandType.CLOSE_PRODUCER)
    looking.cancel()


ANY: Final = AclBindingFilter(
    ResourceType.ANY,
    None,
    PatternType.ANY,
    None,
    None,
    Operation.ANY,
    Permission.ANY,
)


async def transaction(client: Conversation) -> Any:
    await client.ask(CommandTcClientConnectRequest(tc_id=0), CommandType.TC_CLIENT_CONNECT_RESPONSE)
    return await client.ask(
        CommandNewTxn(tc_id=0, txn_ttl_seconds=60_000), CommandType.NEW_TXN_RESPONSE
    )


async def test_partitions_join_a_transaction_of_who_may_write_them(at: Guarded) -> None:
    """Else anybody could hold back what others read."""
    client = await at.broker.client()
    txn = await transaction(client)
    join = CommandAddPartitionToTxn(
        txnid_most_bits=txn.txnid_most_bits,
        txnid_least_bits=txn.txnid_least_bits,
        partitions=[HERE + TOPIC],
    )
    ask = partial(client.ask, join, CommandType.ADD_PARTITION_TO_TXN_RESPONSE)
    assert code_of(await ask()) == ServerError.AUTHORIZATION_ERROR
    await at.grant(rule(Operation.WRITE))
    assert code_of(await ask()) == 0


async def test_the_coordinators_topic_is_for_everybody(at: Guarded) -> None:
    client = await at.broker.client()
    topic = "persistent://pulsar/system/transaction_coordinator_assign"
    answer = await client.ask(
        CommandPartitionedTopicMetadata(topic=topic), CommandType.PARTITIONED_METADATA_RESPONSE
    )
    assert answer.partitions > 0
    answer = await client.ask(
        CommandLookupTopic(topic=f"{topic}-partition-0"), CommandType.LOOKUP_RESPONSE
    )
    assert code_of(answer) == 0
    for wanted in (
        CommandProducer(topic=topic, producer_id=0),
        CommandSubscribe(topic=topic, subscription="s", sub_type=SubType.EXCLUSIVE, consumer_id=0),
    ):
        told = await client.ask(wanted, CommandType.ERROR)
        assert code_of(told) == ServerError.AUTHORIZATION_ERROR

"""Stock clients under ACLs, given and taken by Kafka's own tool: their own errors, and no hang.

What the tool says is held against what it says of an Apache Kafka 4.1.1 with StandardAuthorizer.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from compat.java import tools
from tests.captures.logins import started_kafka
from tests.compat.clients import refusal, values
from tests.compat.conftest import make_client
from tests.compat.groups import BROKER_SETTINGS
from tests.compat.test_logins import settings_of
from tests.conftest import free_port
from tests.databases import Copies
from tests.entrance import PASSWORD, USER, Entrance, java_properties, own_entrance

ACLS = "org.apache.kafka.tools.AclCommand"
pytestmark = pytest.mark.java
AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    settings = [f"{name}={value}" for name, value in BROKER_SETTINGS.items()]
    settings += [AUTHORIZER, "super.users=User:ANONYMOUS", "auto.create.topics.enable=false"]
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory, *settings) as found:
        yield found


@pytest.fixture
def topic(at: Entrance, topic_name: str) -> str:
    at.admin.create_topics([NewTopic(topic_name, 1)])[topic_name].result(20)
    return topic_name


def as_alice(at: Entrance, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": at.plain,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        **more,
    }


@pytest.fixture(scope="module")
def run() -> Iterator[tools.RunTool]:
    with tools.tool_shell(jvm=tools.SHORT_LIVED) as found:
        yield found


@pytest.fixture
def kafka_acls(at: Entrance, run: tools.RunTool) -> Callable[..., str]:
    """Runs the tool at the listener that asks nobody; its output."""
    return lambda *words: run(ACLS, "--bootstrap-server", at.open, *words).stdout


def written(at: Entrance, topic: str, **settings: Any) -> KafkaError | None:
    """How a record of alice's ends; None for success."""
    ends: list[KafkaError | None] = []
    producer = Producer(as_alice(at, **{"message.timeout.ms": 8000, **settings}))
    producer.produce(topic, b"value", on_delivery=lambda error, _: ends.append(error))
    producer.flush(20)
    [end] = ends
    return end


def eventually(check: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_given_and_taken_by_kafka_acls(
    at: Entrance, topic: str, kafka_acls: Callable[..., str]
) -> None:
    error = written(at, topic)
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    who = ("--allow-principal", f"User:{USER}")
    group = f"{topic}-group"
    kafka_acls("--add", *who, "--producer", "--topic", topic)
    kafka_acls("--add", *who, "--consumer", "--topic", topic, "--group", group)
    assert written(at, topic) is None
    shown = kafka_acls("--list", "--topic", topic)
    assert f"principal=User:{USER}, host=*, operation=WRITE, permissionType=ALLOW" in shown
    consumer = Consumer(as_alice(at, **{"group.id": group, "auto.offset.reset": "earliest"}))
    consumer.subscribe([topic])
    record = consumer.poll(20)
    assert record is not None and record.error() is None
    assert record.value() == b"value"
    remove = ("--remove", "--force", "--topic", topic)
    kafka_acls(*remove, "--operation", "read", *who)
    assert written(at, topic) is None

    def is_told() -> bool:
        polled = consumer.poll(1)
        error = None if polled is None else polled.error()
        return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    eventually(is_told)
    consumer.close()
    kafka_acls(*remove)
    error = written(at, topic)
    assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_role_of_the_database_is_given_rights_by_kafka_acls(
    at: Entrance, topic: str, kafka_acls: Callable[..., str]
) -> None:
    def may(operation: str, resource_type: str = "TOPIC") -> Any:
        asked = "SELECT penstock.may('app', %s, %s, %s)"
        ((found,),) = psql.execute(asked, [operation, resource_type, topic])
        return found

    with psycopg.connect(at.gateway.database_url or "", autocommit=True) as psql:
        assert (may("WRITE"), may("DESCRIBE"), may("READ")) == (False, False, False)
        kafka_acls("--add", "--allow-principal", "Role:app", "--producer", "--topic", topic)
        assert (may("WRITE"), may("DESCRIBE"), may("READ")) == (True, True, False)
        shown = kafka_acls("--list", "--principal", "Role:app")
        assert "principal=Role:app, host=*, operation=WRITE, permissionType=ALLOW" in shown
        rows = psql.execute("SELECT operation FROM v_acl WHERE principal = 'Role:app'").fetchall()
        assert {operation for (operation,) in rows} == {"WRITE", "DESCRIBE", "CREATE"}
        # Kafka's clients are users, and no such role.
        error = written(at, topic)
        assert error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        kafka_acls("--remove", "--force", "--topic", topic)
        assert may("WRITE") is False


def test_a_transaction_needs_its_id(at: Entrance, topic: str) -> None:
    producer = Producer(as_alice(at, **{"transactional.id": f"{topic}-id"}))
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(20)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    given = [
        _allow(ResourceType.TRANSACTIONAL_ID, f"{topic}-", AclOperation.WRITE),
        _allow(ResourceType.TOPIC, topic, AclOperation.WRITE),
    ]
    for each in at.admin.create_acls(given).values():
        each.result(20)
    producer = Producer(as_alice(at, **{"transactional.id": f"{topic}-id"}))
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(20)


def test_who_has_no_right_sees_and_changes_nothing(
    at: Entrance, topic: str, run: tools.RunTool, tmp_path: Path
) -> None:
    alice = AdminClient(as_alice(at))
    assert topic not in alice.list_topics(timeout=20).topics
    for future in (
        alice.create_topics([NewTopic(f"{topic}-2", 1)])[f"{topic}-2"],
        alice.delete_topics([topic])[topic],
    ):
        with pytest.raises(KafkaException) as refused:
            future.result(20)
        assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert topic in at.admin.list_topics(timeout=20).topics
    file = tmp_path / "alice.properties"
    at.put("bob", "builder")
    lines = java_properties(at, "SCRAM-SHA-256", "builder", "bob").items()
    file.write_text("".join(f"{name}={value}\n" for name, value in lines))
    as_bob = ("--bootstrap-server", at.plain, "--command-config", str(file), "--list")
    with pytest.raises(RuntimeError, match="ClusterAuthorizationException"):
        run(ACLS, *as_bob)
    log = at.gateway.log()
    for who, what in (
        (USER, f"request=DeleteTopics resource=TOPIC:{topic}"),
        ("bob", "request=DescribeAcls resource=CLUSTER:kafka-cluster"),
    ):
        [line, *_] = [each for each in log.splitlines() if what in each]
        assert f"principal=User:{who}" in line
        assert "rule=DefaultDeny" in line


def _allow(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind,
        name,
        ResourcePatternType.PREFIXED,
        f"User:{USER}",
        "127.0.0.1",
        operation,
        AclPermissionType.ALLOW,
    )


_ADD, _REMOVE = ("--add",), ("--remove", "--force")
SCRIPT = [
    (*_ADD, "--allow-principal", "User:x", "--operation", "read", "--topic", "acl-a"),
    (*_ADD, "--allow-principal", "User:x", "--operation", "read", "--topic", "acl-a"),
    (*_ADD, "--allow-principal", "User:y", "--producer", "--topic", "acl-a", "--idempotent"),
    (*_ADD, "--allow-principal", "User:y", "--consumer", "--topic", "acl-a", "--group", "acl-g"),
    (
        *(*_ADD, "--allow-principal", "User:CN=a\\,b,O=ü", "--producer", "--topic", "acl-"),
        *("--transactional-id", "acl-t", "--resource-pattern-type", "prefixed"),
    ),
    (*_ADD, "--deny-principal", "User:z", "--deny-host", "10.0.0.1", "--topic", "*"),
    # Kafka takes any kind of principal.
    (*_ADD, "--allow-principal", "Role:app", "--producer", "--topic", "acl-a"),
    (*_ADD, "--deny-principal", "Role:*", "--operation", "read", "--topic", "acl-a"),
    (*_ADD, "--allow-principal", "User:x", "--operation", "create", "--cluster"),
    (*_ADD, "--allow-principal", "User:x", "--operation", "fly", "--topic", "acl-a"),
    (*_ADD, "--allow-principal", "User:x", "--operation", "write", "--group", "acl-g"),
    (*_ADD, "--allow-principal", "x", "--operation", "read", "--topic", "acl-a"),
    ("--list", "--topic", "acl-a"),
    ("--list", "--topic", "acl-a", "--resource-pattern-type", "match"),
    ("--list", "--principal", "User:y"),
    ("--list", "--principal", "Role:app"),
    (*_REMOVE, "--allow-principal", "User:x", "--operation", "read", "--topic", "acl-a"),
    (*_REMOVE, "--topic", "acl-a", "--resource-pattern-type", "match"),
    ("--list",),
    (*_REMOVE, "--group", "acl-g"),
    (*_REMOVE, "--cluster"),
    ("--list",),
]


def test_kafka_acls_says_the_same_as_with_apache_kafka(at: Entrance, run: tools.RunTool) -> None:
    """Line by line; the tool prints sets, whose order differs from run to run."""

    def said(bootstrap: str, words: tuple[str, ...]) -> tuple[int, list[str]]:
        ran = run(ACLS, "--bootstrap-server", bootstrap, *words, check=False)
        return ran.returncode, sorted(ran.stdout.splitlines())

    anything: Any = None
    filters = AclBindingFilter(
        ResourceType.ANY,
        anything,
        ResourcePatternType.ANY,
        anything,
        anything,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    at.admin.delete_acls([filters])[filters].result(20)
    plain, secure, proxied = (free_port() for _ in range(3))
    with started_kafka(plain, secure, proxied):
        for words in SCRIPT:
            here = said(at.open, words)
            there = said(f"127.0.0.1:{plain}", words)
            for _ in range(20):
                # Kafka's broker hears of what its controller has changed a moment later. Changes,
                # too, end with a list, and are the same when they are done again.
                if here == there:
                    break
                there = said(f"127.0.0.1:{plain}", words)
            assert here == there, words


# --- other tools, by somebody who may do little ---

TOPICS = "org.apache.kafka.tools.TopicCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"
AS_BOB = [
    (TOPICS, "--list"),
    (TOPICS, "--describe"),
    (TOPICS, "--describe", "--topic", "tool-seen"),
    (TOPICS, "--describe", "--topic", "tool-hidden"),
    (TOPICS, "--describe", "--topic", "tool-nowhere"),
    (TOPICS, "--create", "--topic", "tool-new", "--partitions", "1"),
    (TOPICS, "--create", "--topic", "tool-other", "--partitions", "1"),
    (TOPICS, "--alter", "--topic", "tool-seen", "--partitions", "2"),
    (TOPICS, "--delete", "--topic", "tool-seen"),
    (TOPICS, "--delete", "--topic", "tool-hidden"),
    (GROUPS, "--list"),
    (GROUPS, "--describe", "--group", "tool-group"),
    (GROUPS, "--describe", "--group", "tool-secret"),
    (GROUPS, "--delete", "--group", "tool-group"),
    (GROUPS, "--delete", "--group", "tool-secret"),
    (CONFIGS, "--describe", "--entity-type", "topics", "--entity-name", "tool-seen"),
    (CONFIGS, "--describe", "--entity-type", "users", "--entity-name", "bob"),
    (
        *(CONFIGS, "--alter", "--entity-type", "topics", "--entity-name", "tool-seen"),
        *("--add-config", "retention.ms=1000"),
    ),
    (
        *(CONFIGS, "--alter", "--entity-type", "users", "--entity-name", "bob"),
        *("--add-config", "producer_byte_rate=1000"),
    ),
]


def _told(output: str) -> list[str]:
    """Without Java's stack, and without what differs from broker to broker."""
    output = re.sub(r"TopicId: \S+|\d\d:\d\d:\d\d\.\d{3}|127.0.0.1:\d+", "…", output)
    lines = (" ".join(each.split()) for each in output.splitlines())
    return sorted(each for each in lines if not each.startswith(("at ", "... ", "(")))


def _furnish(admin: AdminClient) -> None:
    """What is there, and what bob may see of it."""
    names = ("tool-seen", "tool-hidden")
    for made in admin.create_topics([NewTopic(each, 1) for each in names]).values():
        made.result(20)
    for kind, name, operation in (
        (ResourceType.TOPIC, "tool-seen", AclOperation.DESCRIBE),
        (ResourceType.TOPIC, "tool-new", AclOperation.CREATE),
        (ResourceType.GROUP, "tool-group", AclOperation.DESCRIBE),
    ):
        given = AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            "User:bob",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([given])[given].result(20)
    upsertion = UserScramCredentialUpsertion(
        "bob", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096), b"builder"
    )
    admin.alter_user_scram_credentials([upsertion])["bob"].result(20)


@pytest.mark.variant  # it takes most of a minute
def test_tools_say_the_same_to_whoever_may_do_little_as_with_apache_kafka(
    at: Entrance, run: tools.RunTool, tmp_path: Path
) -> None:
    """Line by line."""
    plain, secure = free_port(), free_port()
    file = tmp_path / "bob.properties"
    lines = java_properties(at, "SCRAM-SHA-256", "builder", "bob").items()
    file.write_text("".join(f"{name}={value}\n" for name, value in lines))
    with started_kafka(plain, secure, secure, allow__everyone__if__no__acl__found="false"):
        _furnish(at.admin)
        _furnish(AdminClient({"bootstrap.servers": f"127.0.0.1:{plain}"}))
        time.sleep(1)  # Kafka's broker hears of it from its controller
        said = []
        for bootstrap in (at.plain, f"127.0.0.1:{secure}"):
            where = ("--bootstrap-server", bootstrap, "--command-config", str(file))
            ran = [run(tool, *where, *words, check=False) for tool, *words in AS_BOB]
            said.append([(each.returncode, _told(each.stdout)) for each in ran])
    for words, ours, theirs in zip(AS_BOB, *said, strict=True):
        assert ours == theirs, words


# --- every client says what it lacks ---


def _give(at: Entrance, kind: ResourceType, name: str, operation: AclOperation) -> None:
    made = _allow(kind, name, operation)
    at.admin.create_acls([made])[made].result(20)


def _first_read(reader: Any) -> list[str]:
    deadline = time.monotonic() + 20
    while not (found := reader.poll()):
        assert time.monotonic() < deadline, "it hangs"
    return values(found)


def _plainly(name: str) -> str:
    """An error's name without what differs from client to client."""
    name = name.lower().replace("_", "")
    for end in ("exception", "error", "failed"):
        name = name.removesuffix(end)
    return name


SPEAK_CONSUMER = ("confluent", "java")  # KIP-848's protocol


@pytest.mark.parametrize(
    ("name", "protocol"),
    [(each, "classic") for each in ("aiokafka", "kafka-python", *SPEAK_CONSUMER)]
    + [(each, "consumer") for each in SPEAK_CONSUMER],
)
def test_a_client_says_what_it_lacks(
    at: Entrance, request: pytest.FixtureRequest, topic: str, name: str, protocol: str
) -> None:
    """One right after the other is given, until all is well."""
    settings = settings_of(name, "SCRAM-SHA-256", PASSWORD)
    said = []
    with contextlib.closing(make_client(name, request, at.plain)) as client:

        def written() -> None:
            producer = client.producer(f"{topic}-id", **settings)
            producer.begin()
            producer.send(topic, "one")
            producer.flush()
            producer.commit()
            producer.close()

        said.append(refusal(client, written))
        _give(at, ResourceType.TRANSACTIONAL_ID, topic, AclOperation.WRITE)
        said.append(refusal(client, written))
        _give(at, ResourceType.TOPIC, topic, AclOperation.WRITE)
        written()
        more = settings | ({"group.protocol": protocol} if protocol != "classic" else {})

        def read() -> None:
            with contextlib.closing(
                client.reader(topic, None, group=f"{topic}-group", **more)
            ) as reader:
                assert _first_read(reader) == ["one"]

        said.append(refusal(client, read))
        _give(at, ResourceType.GROUP, topic, AclOperation.READ)
        said.append(refusal(client, read))
        _give(at, ResourceType.TOPIC, topic, AclOperation.READ)
        read()
    lacking = ["transactionalid", "topic", "group", "topic"]
    assert [_plainly(each) for each in said] == [f"{each}authorization" for each in lacking]

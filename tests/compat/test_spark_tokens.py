"""Spark's stock source and sink with a delegation token, as it has them on a cluster (KIP-48)."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from gateway.kafka.codec import CreateDelegationTokenRequest, ExpireDelegationTokenRequest
from tests.compat.groups import BROKER_SETTINGS
from tests.compat.spark import batch, produce
from tests.databases import Copies
from tests.entrance import PASSWORD, Entrance, own_entrance
from tests.gateway.kafka.handlers.logging_in import Peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
AUTHORIZER = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CLUSTER = "spark.kafka.clusters.penstock"


@pytest.fixture(scope="module")
def at(
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    settings = [f"{name}={value}" for name, value in BROKER_SETTINGS.items()]
    settings += ["delegation.token.secret.key=a key for tests", AUTHORIZER]
    settings += ["super.users=User:ANONYMOUS"]
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory, *settings) as found:
        yield found


def asked(at: Entrance, request: Any, version: int) -> Any:
    """The answer to alice, who has logged in by her password."""

    async def ask() -> Any:
        host, port = at.plain.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        one = Peer(reader, writer)
        try:
            assert (await one.scram("alice", PASSWORD)).error_code == 0
            answer = await one.ask(request, version)
        finally:
            writer.close()
        assert answer.error_code == 0
        return answer

    return asyncio.run(ask())


@pytest.fixture
def token(spark: SparkSession, at: Entrance) -> bytes:
    """Its secret. Spark has it among its credentials, where its own provider would put it."""
    made = asked(at, CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    secret = bytes(made.hmac)
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    service = hadoop.io.Text("kafka.server.delegation.token.penstock")
    user = hadoop.security.UserGroupInformation.getCurrentUser()
    user.addToken(
        service,
        hadoop.security.token.Token(
            bytearray(made.token_id.encode()),
            bytearray(b64encode(secret)),
            hadoop.io.Text("KAFKA_DELEGATION_TOKEN"),
            service,
        ),
    )
    conf = jvm.org.apache.spark.SparkEnv.get().conf()
    settings = {
        "auth.bootstrap.servers": at.plain,
        "target.bootstrap.servers.regex": re.escape(at.plain),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.token.mechanism": "SCRAM-SHA-512",
    }
    for name, value in settings.items():
        conf.set(f"{CLUSTER}.{name}", value)
    # They stay, as the token does, which nothing takes away: each read looks its cluster up.
    return secret


def give(at: Entrance, names: str) -> None:
    """Alice everything on topics whose names begin so."""
    acl = AclBinding(
        ResourceType.TOPIC,
        names,
        ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    at.admin.create_acls([acl])[acl].result(20)


def test_spark_reads_and_writes_by_a_token_until_it_has_ended(
    spark: SparkSession, at: Entrance, token: bytes, topic_name: str
) -> None:
    """No option names a login; each task finds the token."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    names = [topic_name, f"{topic_name}-copy", f"not-{topic_name}"]
    for made in at.admin.create_topics([NewTopic(each, 2) for each in names]).values():
        made.result(20)
    give(at, topic_name)
    produce(at.open, topic_name, ["a", "b", "c"])
    writing = batch(spark, at.plain, {"subscribe": topic_name}).select("value").write
    writing = writing.format("kafka").option("kafka.bootstrap.servers", at.plain)
    writing.option("topic", names[1]).save()
    found = batch(spark, at.open, {"subscribe": names[1]}).select("value").collect()
    assert sorted(bytes(row.value) for row in found) == [b"a", b"b", b"c"]
    failures = PySparkException, Py4JJavaError
    with pytest.raises(failures, match="TopicAuthorizationException"):
        batch(spark, at.plain, {"subscribe": names[2]}).collect()
    asked(at, ExpireDelegationTokenRequest(hmac=token, expiry_time_period_ms=-1), 2)
    with pytest.raises(failures, match="SaslAuthenticationException"):
        batch(spark, at.plain, {"subscribe": topic_name}).collect()

"""Rights of Pulsar's stock clients, given by Pulsar's admin classes and by Kafka's: one list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import jwt
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from compat.pulsar.drivers import Call, Refused
from tests.compat.pulsar.administering import Admin
from tests.compat.pulsar.clients import Client, refusal
from tests.compat.pulsar.conftest import JAVA, MakeClient
from tests.conftest import Gateway, free_port, gateways
from tests.databases import Copies

SECRET: Final = bytes(range(32))
NAMESPACE: Final = "public/default"
PLUGIN: Final = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
REFUSED: Final = {
    "java": {"AuthorizationException"},
    "go": {"*errors.errorString", "AuthorizationError"},  # where it looks up, where it subscribes
    "python": {"AuthorizationError"},
}
pytestmark = pytest.mark.java


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker that goes by ACLs at each door. Kafka's asks nobody who he is. tokens: a directory
    for them."""

    tokens: Path
    gateway: Gateway
    url: str
    http_url: str
    kafka: AdminClient

    def login(self, role: str) -> dict[str, str]:
        path = self.tokens / f"{role}.token"
        path.write_text(token_of(role))
        return {"method": "token", "token_file": str(path)}


def token_of(role: str) -> str:
    return jwt.encode({"sub": role}, SECRET)


@pytest.fixture(scope="module")
def at(
    copies: Copies, template_database: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("guarded")
    key = directory / "secret.key"
    key.write_bytes(SECRET)
    port, http_port = free_port(), free_port()
    with copies.taken(template_database) as url, gateways(directory) as start:
        gateway = start(
            *("--pulsar-listen", f"127.0.0.1:{port}"),
            *("--http-listen", f"127.0.0.1:{http_port}"),
            "--override=authenticationEnabled=true",
            "--override=authenticationProviders=token",
            f"--override=tokenSecretKey={key.as_uri()}",
            "--override=superUserRoles=admin",
            "--override=super.users=User:ANONYMOUS",
            f"--override=authorizer.class.name={AUTHORIZER}",
            database_url=url,
        )
        yield Guarded(
            directory,
            gateway,
            f"pulsar://127.0.0.1:{port}",
            f"http://127.0.0.1:{http_port}",
            AdminClient({"bootstrap.servers": gateway.bootstrap}),
        )


@pytest.fixture
def admin(at: Guarded, java: Call) -> Iterator[Admin]:
    login = (PLUGIN, f"token:{token_of('admin')}")
    with closing(Admin(java, at.http_url, login=login)) as made:
        yield made


@pytest.mark.parametrize("name", [JAVA, "go", "python"])
def test_a_client_may_do_what_it_was_given_and_no_more(
    at: Guarded, admin: Admin, make_client: MakeClient, topic: str, name: str
) -> None:
    client = make_client(name, at.url, login=at.login(name), operation_timeout_ms=3_000)
    assert refusal(lambda: client.producer(topic)) in REFUSED[name]
    admin.namespaces("grantPermissionOnNamespace", NAMESPACE, name, ["produce"])
    client.send(topic, b"one")
    assert refusal(lambda: client.consumer(topic, is_earliest=True)) in REFUSED[name]
    admin.topics("grantPermission", topic, name, ["consume"])
    found = admin.topics("getPermissions", topic)
    assert set(found[name]) == {"consume", "produce"}
    consumer = client.consumer(topic, is_earliest=True)
    assert [each.value for each in consumer.take(1)] == [b"one"]
    admin.namespaces("revokePermissionsOnNamespace", NAMESPACE, name)
    assert refusal(lambda: client.producer(topic)) in REFUSED[name]
    admin.topics("revokePermissions", topic, name)
    assert refusal(lambda: client.consumer(topic, "other")) in REFUSED[name]
    log = at.gateway.log()
    assert f"principal=User:{name} request=PARTITIONED_METADATA" in log


def test_what_either_tool_gives_holds_at_both_doors(
    at: Guarded, admin: Admin, make_client: MakeClient, topic: str
) -> None:
    """Here Kafka's clients are anonymous, who may do everything: so ACLs are asked for another."""
    acl = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        "User:both",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    at.kafka.create_acls([acl])[acl].result(20)
    client: Client = make_client("python", at.url, login=at.login("both"))
    client.send(topic, b"one")
    assert client.consumer(topic, is_earliest=True).take(1)[0].value == b"one"
    assert set(admin.topics("getPermissions", topic)["both"]) == {"consume", "produce"}


def test_what_an_administrator_of_a_tenant_may(at: Guarded, admin: Admin, java: Call) -> None:
    info = {"adminRoles": ["tia"], "allowedClusters": ["standalone"]}
    admin.tenants("createTenant", "t", info)
    with closing(Admin(java, at.http_url, login=(PLUGIN, f"token:{token_of('tia')}"))) as tia:
        tia.namespaces("createNamespace", "t/n")
        tia.namespaces("grantPermissionOnNamespace", "t/n", "bob", ["consume"])
        assert tia.namespaces("getPermissions", "t/n") == {"bob": ["consume"]}
        tia.namespaces("grantPermissionOnSubscription", "t/n", "s", ["bob"])
        assert tia.namespaces("getPermissionOnSubscription", "t/n") == {"s": ["bob"]}
        tia.namespaces("setNamespaceMessageTTL", "t/n", 100)
        tia.topics("createNonPartitionedTopic", "t/n/x")
        for part, *asked in (
            (tia.namespaces, "createNamespace", "public/mine"),
            (tia.namespaces, "getPolicies", NAMESPACE),
            (tia.tenants, "createTenant", "u", info),
            (tia.topics, "createNonPartitionedTopic", "public/default/x"),
        ):
            with pytest.raises(Refused) as raised:
                part(*asked)
            assert (raised.value.name, raised.value.status) == ("NotAuthorizedException", 403)

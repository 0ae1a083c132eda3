"""Starts an Apache Kafka that asks who comes, and stores what stock clients say to log in.

    python -m tests.captures.logins [--replace]

Beside the clients of each age (kafka-python's `api_version`), what none of them sends is made by
kafka-python's encoder: SaslHandshake v0 (its bare tokens are no requests), and each version of the
APIs of users (KIP-554), ACLs and quotas (KIP-546). Knows Kafka's settings and the recorder; the
passwords are no secrets.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from bench.brokers import wait_until_ready
from bench.peer.kafka import server_properties
from bench.processes import free_port, stop_process
from compat.java.tools import java_command, java_tool
from core.security.verifier import ScramMechanism
from gateway.kafka import codec
from tests.captures import record
from tests.captures.every_version import LOGIN_KEYS, ask, framed

BROKER = "Apache Kafka 4.1.1"
USER, PASSWORD = "alice", "wonderland"
MODULE = "org.apache.kafka.common.security"


def settings(plain: int, secure: int, proxied: int, controller: int) -> dict[str, str]:
    """Of a Kafka with one listener more, which advertises the recorder's address."""
    jaas = f'{MODULE}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT"
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},"
        f"SECURE://127.0.0.1:{secure}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plain},SECURE://127.0.0.1:{proxied}",
        "listener.security.protocol.map": protocols,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.secure.plain.sasl.jaas.config": jaas,
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule "
        "required;",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule "
        "required;",
        "connections.max.reauth.ms": "60000",
        "delegation.token.secret.key": "a key for captures",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
    }


@contextmanager
def started_kafka(plain: int, secure: int, proxied: int, **more: str) -> Iterator[None]:
    """One that asks on its second listener; users are made by the first. more: settings, with two
    underscores for a dot."""
    controller = free_port()
    with tempfile.TemporaryDirectory() as home:
        file, log = Path(home, "server.properties"), Path(home, "server.log")
        of_this = settings(plain, secure, proxied, controller)
        of_this |= {name.replace("__", "."): value for name, value in more.items()}
        lines = "".join(f"{name}={value}\n" for name, value in of_this.items())
        # Of two lines about one property the later counts.
        file.write_text(server_properties(plain, controller, Path(home, "log")) + lines)
        cluster_id = "cGVuc3RvY2stYmVuY2gtMQ"
        java_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", file)
        with log.open("w") as output:
            process = subprocess.Popen(
                java_command("kafka.Kafka", file),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        try:
            wait_until_ready(f"127.0.0.1:{plain}", process, patience_s=60)
            yield
        finally:
            stop_process(process)


def log_in_with_each_client(bootstrap: str) -> None:
    """kafka-python as it speaks to brokers of each age, and librdkafka."""
    for version in ((1, 0), (2, 0), (2, 5), None):
        common: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "client_id": f"kafka-python {installed('kafka-python')}",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        if version is not None:
            common["api_version"] = version
        with (
            suppress(KafkaError),
            closing(KafkaAdminClient(**common, sasl_mechanism="PLAIN")) as admin,
        ):
            admin.list_topics()
    conf = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    conf |= {"sasl.username": USER, "sasl.password": PASSWORD, "bootstrap.servers": bootstrap}
    client = AdminClient(conf)
    client.list_topics(timeout=10)
    client.describe_user_scram_credentials([USER])[USER].result(10)


def upsertion(name: str) -> Any:
    """A request that makes a user with the password."""
    mechanism = ScramMechanism.SHA_256
    salted = mechanism.salted_password(PASSWORD, b"0123456789abcdef", 4096)
    Upsertion = codec.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    made = Upsertion(
        name=name, mechanism=1, iterations=4096, salt=b"0123456789abcdef", salted_password=salted
    )
    return codec.AlterUserScramCredentialsRequest(deletions=[], upsertions=[made])


def of_quotas() -> Sequence[Any]:
    """A user's quota is set, beside one that cannot be; quotas of users are described."""
    Entry = codec.AlterClientQuotasRequest.EntryData
    entity = [
        Entry.EntityData(entity_type="user", entity_name=USER),
        Entry.EntityData(entity_type="client-id", entity_name=None),
    ]
    set_and_removed = [
        Entry.OpData(key="producer_byte_rate", value=1024.0, remove=False),
        Entry.OpData(key="request_percentage", value=0.0, remove=True),
    ]
    nobody = [Entry.EntityData(entity_type="user", entity_name="")]
    entries = [Entry(entity=entity, ops=set_and_removed), Entry(entity=nobody, ops=[])]
    Component = codec.DescribeClientQuotasRequest.ComponentData
    wanted = [
        Component(entity_type="user", match_type=0, match=USER),
        Component(entity_type="client-id", match_type=1, match=None),
    ]
    return (
        codec.AlterClientQuotasRequest(entries=entries, validate_only=False),
        codec.DescribeClientQuotasRequest(components=wanted, strict=True),
    )


def of_acls() -> Sequence[Any]:
    """An ACL is made, described and deleted; and one that cannot be is refused."""
    entry = {"principal": f"User:{USER}", "host": "*", "operation": 3, "permission_type": 3}
    pattern = {"resource_type": 2, "resource_name": "flights", "resource_pattern_type": 4}
    Creation, Filter = codec.CreateAclsRequest.AclCreation, codec.DeleteAclsRequest.DeleteAclsFilter
    meant = {
        "resource_type_filter": 2,
        "resource_name_filter": "flights-1",
        "pattern_type_filter": 2,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    made = [Creation(**pattern, **entry), Creation(**pattern, **entry | {"principal": "alice"})]
    return (
        codec.CreateAclsRequest(creations=made),
        codec.DescribeAclsRequest(**meant),
        codec.DeleteAclsRequest(filters=[Filter(**meant)]),
    )


def of_tokens(connection: socket.socket, version: int) -> None:
    """A delegation token is made, described, renewed and ended."""
    Renewer = codec.CreateDelegationTokenRequest.CreatableRenewers
    bob = Renewer(principal_type="User", principal_name="bob")
    asked = codec.CreateDelegationTokenRequest(renewers=[bob], max_lifetime_ms=-1)
    answer = record.read_response(38, version, ask(connection, framed(asked, version, 20)))
    ask(connection, framed(codec.DescribeDelegationTokenRequest(owners=None), version, 21))
    renewed = codec.RenewDelegationTokenRequest(hmac=answer.hmac, renew_period_ms=60_000)
    ended = codec.ExpireDelegationTokenRequest(hmac=answer.hmac, expiry_time_period_ms=-1)
    for number, request in enumerate((renewed, ended), start=22):
        ask(connection, framed(request, min(version, 2), number))


def make_user(bootstrap: str) -> None:
    with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
        answer = ask(connection, framed(upsertion(USER), 0, 1))
    response = record.describe_response(51, 0, answer)
    assert not record.failed(response), response


def made_by_the_encoder(bootstrap: str) -> None:
    """SaslHandshake v0 and v1, a login by PLAIN in each version, a user made and described."""
    for version in range(2):
        with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
            handshake = codec.SaslHandshakeRequest(mechanism="PLAIN")
            ask(connection, framed(handshake, version, 1))
    for version in range(3):
        with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
            ask(connection, framed(codec.SaslHandshakeRequest(mechanism="PLAIN"), 1, 1))
            token = codec.SaslAuthenticateRequest(auth_bytes=f"\0{USER}\0{PASSWORD}".encode())
            ask(connection, framed(token, version, 2))
            ask(connection, framed(upsertion("bob"), 0, 3))
            ask(connection, framed(codec.DescribeUserScramCredentialsRequest(users=None), 0, 4))
            for older in range(2):
                for request in of_quotas():
                    ask(connection, framed(request, older, 5))
            for each in range(1, 4):
                for number, request in enumerate(of_acls(), start=6):
                    ask(connection, framed(request, each, number))
                of_tokens(connection, each)


async def recorded(secure: int, proxied: int) -> record.Recorder:
    recorder = record.Recorder("127.0.0.1", secure)
    server = await asyncio.start_server(recorder.relay, "127.0.0.1", proxied)
    async with server:
        bootstrap = f"127.0.0.1:{proxied}"
        await asyncio.to_thread(log_in_with_each_client, bootstrap)
        await asyncio.to_thread(made_by_the_encoder, bootstrap)
        for task in recorder.connections:
            task.cancel()
    return recorder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.captures.logins")
    parser.add_argument("--replace", action="store_true", help="also captures that exist")
    replace = parser.parse_args().replace
    plain, secure, proxied = (free_port() for _ in range(3))
    with started_kafka(plain, secure, proxied):
        make_user(f"127.0.0.1:{plain}")
        recorder = asyncio.run(recorded(secure, proxied))
    for (key, _), exchange in sorted(recorder.best.items()):
        if key in LOGIN_KEYS:
            stored = record.store(exchange, BROKER, replace)
            name = exchange.message.name
            sys.stdout.write(f"{name} v{exchange.api_version}: {exchange.client}, {stored}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

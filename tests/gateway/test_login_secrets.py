"""No password, and nothing that is made of one, is in what a broker writes or serves."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import urllib.request
from base64 import b64encode

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import StartGateway, free_port

PASSWORD = "Marked4711Password"
WRONG = "Marked4712Password"
MARK = "Marked471"
SALT = b"marked-salt-0123456"


def secrets_of(password: str) -> list[str]:
    """All that is made of a password, in the forms in which it could be shown."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    found = [SALT, salted, client_key, server_key, hashlib.sha256(client_key).digest()]
    shown = [MARK, SALT.decode()]
    for each in found:
        shown += [b64encode(each).decode(), each.hex(), repr(each)[2:-1]]
    return shown


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_nothing_tells_a_secret(
    start_gateway: StartGateway, server: EmbeddedPostgres, log_format: str
) -> None:
    opened, asks, metrics = (free_port() for _ in range(3))
    made = start_gateway(
        f"--override=listeners=PLAINTEXT://127.0.0.1:{opened},SASL_PLAINTEXT://127.0.0.1:{asks}",
        "--override=sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256",
        *("--log-level", "debug", "--log-format", log_format),
        *("--metrics-listen", f"127.0.0.1:{metrics}"),
        database_url=server.url,
        port=opened,
        environment={"PYTHONASYNCIODEBUG": "1"},
        loaded=False,  # Python reads the variable
    )
    admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})

    def put(password: str, user: str = "alice", within_s: float = 30) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        wanted = UserScramCredentialUpsertion(user, info, password.encode(), SALT)
        made_or_not = admin.alter_user_scram_credentials([wanted], request_timeout=within_s)
        made_or_not[user].result(40)

    def log_in(mechanism: str, password: str) -> AdminClient:
        settings = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        settings |= {"sasl.username": "alice", "sasl.password": password, "log_level": 0}
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{asks}", **settings})
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=5 if password == PASSWORD else 1)
        return client

    put(PASSWORD)
    clients = [log_in(each, PASSWORD) for each in ("PLAIN", "SCRAM-SHA-256")]
    for each in ("PLAIN", "SCRAM-SHA-256"):
        log_in(each, WRONG)
    texts = [str(admin.describe_user_scram_credentials(["alice"])["alice"].result(20))]
    [described] = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    texts += [f"{name}={each.value}" for name, each in described.result(20).items()]
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=30) as answer:
        texts.append(answer.read().decode())
    assert 'penstock_logins_total{listener="SASL_PLAINTEXT",mechanism="PLAIN"' in texts[-1]
    # A statement with a verifier fails by a rule of the table; then the table is gone.
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER TABLE scram_credential ADD CHECK (user_name <> 'eve')")
        with pytest.raises((KafkaException, TimeoutError)):
            put(PASSWORD, "eve", 3)
        connection.execute("ALTER TABLE scram_credential RENAME TO elsewhere")
    made.process.wait(60)
    del clients
    log = made.log()
    traceback = "Traceback" if log_format == "console" else '"frames"'
    lines = ("login_refused", "logged_in", "user_changed", "request failed", traceback)
    assert [each for each in (*lines, "background_work_failed") if each not in log] == []
    for text in (log, *texts):
        assert [each for each in secrets_of(PASSWORD) if each in text] == []

"""The commands that ask a broker, and the sink, by tokens of an issuer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.connection import METADATA, metadata_request
from penstock.spark import staging, wire
from penstock.spark.staging import SinkError, cluster_of
from tests.cli.test_login import written
from tests.cli.test_main import penstock
from tests.databases import Copies
from tests.entrance import Entrance, own_entrance
from tests.issuer import AUDIENCE, ISSUER, SECRET, Issuer, serving
from tests.penstock.spark.test_staging import columns, options, stage, tokens

BAD = {"expired": {"exp": int(time.time()) - 3600}}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with serving(Issuer(of_clients=BAD)) as made:
        yield made


@pytest.fixture(scope="module")
def at(
    issuer: Issuer,
    copies: Copies,
    template_database: str,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Entrance]:
    settings = (
        "sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"sasl.oauthbearer.jwks.endpoint.url={issuer.url}/jwks",
        f"sasl.oauthbearer.expected.issuer={ISSUER}",
        f"sasl.oauthbearer.expected.audience={AUDIENCE}",
    )
    directory = tmp_path_factory.mktemp("gateway")
    with own_entrance(copies, template_database, certificate, directory, *settings) as found:
        yield found


@pytest.fixture
def known(at: Entrance, issuer: Issuer) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"{issuer.url}/token",
        "sasl.oauthbearer.client.credentials.client.id": "robot",
        "sasl.oauthbearer.client.credentials.client.secret": SECRET,
        "ssl.truststore.location": str(at.certificate),
    }


@pytest.mark.parametrize("how", ["issuer", "file"])
def test_every_command_logs_in(
    at: Entrance, issuer: Issuer, known: dict[str, str], tmp_path: Path, how: str
) -> None:
    if how == "file":
        (tmp_path / "token").write_text(issuer.token())
        known["sasl.oauthbearer.token.endpoint.url"] = (tmp_path / "token").as_uri()
    server = ("--bootstrap-server", at.secure, "--command-config", written(tmp_path, known))
    assert penstock("topics", "create", how, *server).stdout == f"Created {how}\n"
    done = penstock("produce", how, "one", "two", *server)
    assert done.returncode == 0, done.stderr
    assert penstock("consume", how, *server).stdout.split() == ["one", "two"]
    for command in (("groups", "list"), ("txn", "list"), ("check", "--ready")):
        done = penstock(*command, *server)
        assert (done.returncode, done.stderr) == (0, ""), command


@pytest.mark.parametrize("command", [("topics", "list"), ("consume", "t")], ids=" ".join)
def test_what_is_wrong_is_one_line(
    at: Entrance, issuer: Issuer, known: dict[str, str], tmp_path: Path, command: tuple[str, ...]
) -> None:
    prefix = "sasl.oauthbearer.client.credentials.client."
    url = {"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/"}
    for changed, said in (
        ({f"{prefix}secret": "wrong"}, "gives no token: invalid_client."),
        ({f"{prefix}id": "expired"}, f"{at.secure} does not let 'expired' in: SASL_AUTH"),
        (url, "There is no token to log in with: [Errno 111] Connection refused."),
    ):
        file = written(tmp_path, known | changed)
        done = penstock(*command, "--bootstrap-server", at.secure, "--command-config", file)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert said in line
        assert SECRET not in line


def test_the_sink_logs_in_again_with_new_tokens(
    at: Entrance, issuer: Issuer, known: dict[str, str], tmp_path: Path
) -> None:
    server = ("--bootstrap-server", at.secure, "--command-config", written(tmp_path, known))
    assert penstock("topics", "create", "sunk", *server).returncode == 0
    known["sasl.oauthbearer.client.credentials.client.id"] = "sink"
    given = options(at.secure, "sunk", **{f"kafka.{name}": known[name] for name in known})
    issuer.tokens_for_s = 5  # in whole seconds, so 4 at least: a login may take a second here
    try:
        cluster = cluster_of(given)
        staged = stage(columns(range(10)), given, cluster)
        assert staging.publish(cluster, "query", "", 0, tokens(staged)).is_new
        with cluster.connect() as connection:
            for _ in range(4):  # its time is over meanwhile
                request = metadata_request(["sunk"], may_create=False)
                answer = wire.read_metadata(connection.ask(METADATA, request))
                assert "sunk" in answer.partitions
                time.sleep(2)
    finally:
        issuer.tokens_for_s = 300
    known["sasl.oauthbearer.client.credentials.client.id"] = "expired"
    wrong = options(at.secure, "sunk", **{f"kafka.{name}": known[name] for name in known})
    with pytest.raises(SinkError, match=f"{at.secure} does not let 'expired' in: SASL_AUTH"):
        stage(columns(range(1)), wrong, cluster_of(wrong))

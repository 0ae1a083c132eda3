"""The commands that ask a broker, and the sink, where a certificate is wanted of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.spark import staging
from penstock.spark.staging import SinkError, cluster_of
from tests.certificates import Authority
from tests.cli.test_login import written
from tests.cli.test_main import penstock
from tests.conftest import free_port, gateways
from tests.databases import Copies
from tests.penstock.spark.test_staging import columns, options, stage, tokens


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def address(
    copies: Copies,
    template_database: str,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[str]:
    """That of a broker that wants certificates; clients that it does not know may do nothing."""
    port, of_no_certificate = free_port(), free_port()
    server = authority.write("server.pem", "CN=broker", host="localhost")
    with (
        copies.taken(template_database) as url,
        gateways(tmp_path_factory.mktemp("gateway")) as start,
    ):
        start(
            *("--tls-cert", server, "--tls-key", server),
            *("--tls-client-ca", authority.write_own()),
            f"--override=listeners=SSL://localhost:{port},"
            f"PLAINTEXT://127.0.0.1:{of_no_certificate}",
            "--override=ssl.client.auth=required",
            "--override=authorizer.class.name="
            "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "--override=super.users=User:CN=alice,O=Rivers;User:ANONYMOUS",
            database_url=url,
            port=of_no_certificate,
        )
        yield f"localhost:{port}"


@pytest.fixture
def known(authority: Authority) -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.write_own()),
        "ssl.keystore.location": str(authority.write("alice.pem", "CN=alice,O=Rivers")),
        "ssl.keystore.type": "PEM",
    }


def test_every_command_shows_its_certificate(
    address: str, known: dict[str, str], tmp_path: Path
) -> None:
    server = ("--bootstrap-server", address, "--command-config", written(tmp_path, known))
    assert penstock("topics", "create", "t", *server).stdout == "Created t\n"
    done = penstock("produce", "t", "one", "two", *server)
    assert done.returncode == 0, done.stderr
    assert penstock("consume", "t", *server).stdout.split() == ["one", "two"]
    for command in (("groups", "list"), ("txn", "list"), ("check", "--ready")):
        done = penstock(*command, *server)
        assert (done.returncode, done.stderr) == (0, ""), command


@pytest.mark.parametrize("command", [("topics", "list"), ("consume", "t"), ("txn", "list")])
@pytest.mark.parametrize("wrong", ["none", "another's"])
def test_what_is_wrong_is_one_line(
    address: str,
    known: dict[str, str],
    tmp_path: Path,
    wrong: str,
    command: tuple[str, ...],
) -> None:
    del known["ssl.keystore.location"]
    if wrong != "none":
        other = Authority.made(tmp_path, "CN=Other").write("other.pem", "CN=alice,O=Rivers")
        known["ssl.keystore.location"] = str(other)
    server = ("--bootstrap-server", address, "--command-config", written(tmp_path, known))
    done = penstock(*command, *server)
    alert = "certificate required" if wrong == "none" else "unknown ca"
    assert (done.returncode, done.stderr) == (
        1,
        f"The broker at {address} wants a certificate that it trusts ({alert}): name one by "
        "--command-config, as ssl.keystore.location.\n",
    )


def test_a_file_that_is_no_certificate_is_named(known: dict[str, str], tmp_path: Path) -> None:
    known["ssl.keystore.location"] = str(tmp_path / "none.pem")
    done = penstock("topics", "list", "--command-config", written(tmp_path, known))
    assert done.returncode == 2
    assert done.stderr.startswith("ssl.keystore.location is a key and its certificates in PEM")
    assert len(done.stderr.splitlines()) == 1


def test_the_sink_shows_its_certificate(
    address: str, known: dict[str, str], tmp_path: Path
) -> None:
    server = ("--bootstrap-server", address, "--command-config", written(tmp_path, known))
    assert penstock("topics", "create", "sunk", *server).returncode == 0
    given = options(address, "sunk", **{f"kafka.{name}": known[name] for name in known})
    cluster = cluster_of(given)
    staged = stage(columns(range(10)), given, cluster)
    assert staging.publish(cluster, "query", "", 0, tokens(staged)).is_new
    del known["ssl.keystore.location"]
    given = {f"kafka.{name}": known[name] for name in known} | {"delivery.timeout.ms": "300"}
    nobody = options(address, "sunk", **given)
    with pytest.raises(SinkError, match=r"(?i)certificate.required"):
        stage(columns(range(1)), nobody, cluster_of(nobody))

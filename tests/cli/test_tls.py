"""The commands that ask a broker, by TLS: what is trusted, and what is said where it is not."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.test_main import READY_WITHIN_S, penstock, refused, wait_for
from tests.conftest import Gateway, StartGateway, free_port


@pytest.fixture
def broker(database_url: str, certificate: Path, start_gateway: StartGateway) -> Gateway:
    """One whose certificate is its own authority's, for localhost."""
    port = free_port()
    started = start_gateway(
        *("--tls-cert", certificate, "--tls-key", certificate),
        *("--advertise", f"localhost:{port}"),
        database_url=database_url,
        port=port,
        wait=False,
    )
    wait_for("A line to try", started, READY_WITHIN_S)
    return started


@pytest.fixture
def server(broker: Gateway) -> tuple[str, str]:
    return "--bootstrap-server", f"localhost:{broker.port}"


def test_every_group_of_commands_asks_by_tls(server: tuple[str, str], certificate: Path) -> None:
    options = (*server, "--tls-ca", certificate)
    assert penstock("topics", "create", "by-tls", *options).stdout.split() == ["Created", "by-tls"]
    listed = json.loads(penstock("topics", "list", "--json", *options).stdout)
    assert listed == [{"name": "by-tls", "partitions": 1}]
    for command in (
        *(("groups", "list"), ("txn", "list"), ("txn", "blocking")),
        ("groups", "reset-offsets", "nobody", "--topic", "by-tls", "--to-latest"),
    ):
        done = penstock(*command, *options)
        assert (done.returncode, done.stderr) == (0, ""), command


def test_untrusted_certificate_is_refused(server: tuple[str, str]) -> None:
    done = penstock("topics", "list", "--tls", *server)
    assert done.returncode == 1
    assert done.stderr == (
        f"The broker at {server[1]} has a certificate that is not trusted (self-signed "
        "certificate): name what it is signed with by --tls-ca.\n"
    )


def test_certificate_for_another_host_is_refused(broker: Gateway, certificate: Path) -> None:
    server = ("--bootstrap-server", f"127.0.0.1:{broker.port}")
    done = penstock("topics", "list", "--tls-ca", certificate, *server)
    assert done.returncode == 1
    assert "not trusted (IP address mismatch" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_tls_is_hinted_at(server: tuple[str, str]) -> None:
    done = penstock("groups", "list", *server)
    assert done.returncode == 1
    assert done.stderr == (f"The broker at {server[1]} speaks TLS: add --tls, or --tls-ca FILE.\n")


def test_broker_without_tls_is_named(gateway: Gateway, certificate: Path) -> None:
    server = ("--bootstrap-server", gateway.bootstrap)
    done = penstock("txn", "list", "--tls-ca", certificate, *server)
    assert done.returncode == 1
    assert done.stderr == (
        f"The broker at {gateway.bootstrap} does not speak TLS: leave out --tls and --tls-ca.\n"
    )


def test_one_of_several_addresses_is_enough(server: tuple[str, str], certificate: Path) -> None:
    option, address = server
    addresses = f"localhost:{free_port()},{address}"
    done = penstock("topics", "list", "--tls-ca", certificate, option, addresses)
    assert (done.returncode, done.stderr) == (0, "")


def test_closed_port_is_reported(certificate: Path) -> None:
    bootstrap = f"localhost:{free_port()}"
    done = penstock("topics", "list", "--tls-ca", certificate, "--bootstrap-server", bootstrap)
    assert done.returncode == 1
    assert done.stderr.startswith(f"No broker answers at {bootstrap}: start one")


def test_silence(certificate: Path) -> None:
    with silent() as bootstrap:
        server = ("--bootstrap-server", bootstrap)
        for tls in ((), ("--tls-ca", certificate)):
            done = penstock("topics", "list", *tls, *server)
            assert done.returncode == 1
            assert done.stderr.startswith(f"Something listens at {bootstrap}, but does not answer")


@contextmanager
def silent() -> Iterator[str]:
    """An address where connections are taken and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_certificates_that_cannot_be_had(tmp_path: Path, text: str | None) -> None:
    wrong = tmp_path / "wrong.pem"
    if text is not None:
        wrong.write_text(text)
    sentence = refused("topics", "list", "--tls-ca", wrong)
    assert sentence.startswith(f"The certificates in {wrong} cannot be read (")
    assert sentence.endswith("): name a PEM file.")

"""What the commands that speak to a broker share: the client, sentences for its errors, JSON.

Knows kafka-python's admin client and a terminal; nothing of the server. Works with any Kafka.
Exit codes: 0 done, 1 the broker refused or did not answer, 2 a wrong argument.
"""

import functools
import inspect
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from cli.check import Presence, any_certificate, presence
from cli.errors import sentence_of
from penstock.connecting import Connecting, PropertyError, connecting, read_properties
from penstock.connecting import Tls as TrustedTls
from penstock.connection import why_not_let_in

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

DEFAULT_PORT = "9092"
DEFAULT_BOOTSTRAP = f"localhost:{DEFAULT_PORT}"
ANSWER_TIMEOUT_MS = 30_000
BOOTSTRAP_TIMEOUT_MS = 5_000
PATIENCE_S = 15.0
PROBE_TIMEOUT_S = 5.0
RETRY_INTERVAL_S = 0.5
_VERSIONS_REQUEST = b"\0\0\0\x0a\0\x12\0\0\0\0\0\0\xff\xff"  # ApiVersions v0
EARLIEST, LATEST = -2, -1  # ListOffsets' timestamps for both ends of a log

Bootstrap = Annotated[
    str, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="A broker to ask.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

Found = TypeVar("Found")

Tls = Annotated[bool, typer.Option("--tls", help="Ask by TLS, and trust whom this machine trusts.")]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Ask by TLS, and trust only what these certificates (PEM) have signed, or are.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Connect as this file says: security.protocol, sasl.mechanism, sasl.jaas.config, "
        "ssl.truststore.location and ssl.keystore.location (PEM), as for Kafka's own tools.",
    ),
]
_CONNECTING = {
    "tls": (Tls, False),
    "tls_ca": (TlsCa, None),
    "command_config": (CommandConfig, None),
}
_PLAINLY = Connecting()
_connecting: ContextVar[Connecting] = ContextVar("_connecting", default=_PLAINLY)


def broker_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command that asks a broker: it has the options of TLS and of a login as well, which are the
    client's business and not its own."""

    @functools.wraps(command)
    def ask(
        *, tls: bool, tls_ca: Path | None, command_config: Path | None, **arguments: Any
    ) -> None:
        before = _connecting.set(
            told(command_config, is_tls=tls or tls_ca is not None, authorities=tls_ca)
        )
        try:
            command(**arguments)
        finally:
            _connecting.reset(before)

    own = inspect.signature(command)
    further = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _CONNECTING.items()
    ]
    # What typer reads.
    ask.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), *further]
    )
    kinds = {name: kind for name, (kind, _) in _CONNECTING.items()}
    ask.__annotations__ = {**command.__annotations__, **kinds}
    return ask


def told(file: Path | None, *, is_tls: bool, authorities: Path | None = None) -> Connecting:
    """How to connect; ends the command where that is not clear. authorities: a file in PEM; None:
    the machine's own."""
    if file is None:
        ca_file = None if authorities is None else str(authorities)
        return Connecting(TrustedTls(ca_file, check_hostname=True) if is_tls else None)
    if is_tls:
        fail("Leave out --tls and --tls-ca: the file of --command-config says how to connect.", 2)
    try:
        return connecting(read_properties(file))
    except PropertyError as wrong:
        fail(str(wrong), 2)


def context_of(given: Connecting) -> ssl.SSLContext | None:
    """None for plain text; ends the command where the certificates cannot be read."""
    tls = given.tls
    if tls is None:
        return None
    try:
        return tls.context()
    except PropertyError as wrong:
        if tls.shows is not None or tls.ca_file is None:
            fail(str(wrong), 2)
        error = wrong.__cause__
        reason = getattr(error, "strerror", None) or str(error)
        fail(f"The certificates in {tls.ca_file} cannot be read ({reason}): name a PEM file.", 2)


def fail(sentence: str, exit_code: int = 1) -> NoReturn:
    """Say what is wrong and end."""
    complain(sentence)
    raise typer.Exit(exit_code)


def complain(sentence: str) -> None:
    """Say what is wrong and go on."""
    Console(stderr=True).print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)


def print_json(value: object) -> None:
    """For machines."""
    typer.echo(json.dumps(value, indent=2))


_NUMBERS = {
    *("Partition", "Committed", "End", "Lag", "Epoch", "Old offset", "New offset"),
    *(
        "Producer",
        "Coordinator",
        "Age s",
        "Left s",
        "Timeout s",
        "Since offset",
        "Waiting",
        "Offset",
    ),
    *("Acknowledged", "Ranges", "Backlog"),
}


# On a terminal; rich leaves colours out of pipes, and where NO_COLOR is set.
STATE_STYLES = {
    **dict.fromkeys(("Stable", "CompleteCommit"), "green"),
    **dict.fromkeys(("PreparingRebalance", "CompletingRebalance"), "yellow"),
    **dict.fromkeys(("Assigning", "Reconciling", "Ongoing"), "yellow"),
    **dict.fromkeys(("PrepareCommit", "PrepareAbort", "PrepareEpochFence"), "yellow"),
    "Dead": "red",
    **dict.fromkeys(("Empty", "CompleteAbort"), "cyan"),
}


def print_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Numbers to the right. Nothing is cut off, however narrow the terminal."""
    table = Table(box=None, pad_edge=False)
    for head in heads:
        justify: JustifyMethod = "right" if head in _NUMBERS else "left"
        table.add_column(head, justify=justify, overflow="fold")
    styles = [STATE_STYLES if column.header == "State" else {} for column in table.columns]
    for row in rows:
        cells = zip(map(shown, row), styles, strict=True)
        table.add_row(*(Text(cell, style=style.get(cell, "")) for cell, style in cells))
    Console().print(table)


def shown(value: object) -> str:
    """A cell's text."""
    return "-" if value is None else str(value)


@contextmanager
def admin_client(bootstrap: str) -> Iterator["KafkaAdminClient"]:
    """A connected client; what goes wrong on the way is one sentence."""
    from kafka.errors import KafkaError

    with _connected(bootstrap) as client:
        try:
            yield client
        except KafkaError as error:
            fail(sentence_of(bootstrap, error))
        except RuntimeError as error:  # kafka-python's, where Metadata names no controller
            if "controller" not in str(error):
                raise
            fail(sentence_of(bootstrap, error))


def ask_patiently(bootstrap: str, question: "Callable[[KafkaAdminClient], Found]") -> Found:
    """The answer to a question; asked again while the broker says that it is for the moment only.

    A group's coordinator may be on its way to another broker. Each time with a new client, since
    kafka-python's remembers who the coordinator was.
    """
    from kafka.errors import KafkaError

    deadline = time.monotonic() + PATIENCE_S
    while True:
        with _connected(bootstrap) as client:
            try:
                return question(client)
            except KafkaError as error:
                if not error.retriable or time.monotonic() > deadline:
                    fail(sentence_of(bootstrap, error))
        time.sleep(RETRY_INTERVAL_S)


def send(client: "KafkaAdminClient", request: Any, broker_id: int | None) -> Any:
    """A message that kafka-python's admin client has no method for; None: to any broker."""
    return client._manager.run(client._manager.send, request, broker_id)


@contextmanager
def _connected(bootstrap: str) -> Iterator["KafkaAdminClient"]:
    from kafka import KafkaAdminClient

    options = connection_options(bootstrap)
    with bootstrapping(bootstrap):
        client = KafkaAdminClient(request_timeout_ms=ANSWER_TIMEOUT_MS, **options)
    try:
        yield client
    finally:
        client.close()


def connection_options(bootstrap: str) -> dict[str, Any]:
    """What every client of kafka-python is told; ends the command where TLS cannot be spoken."""
    # The client reports each failed connection; we say once what it comes to.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    given = _connecting.get()
    tls = context_of(given)
    # By TLS it would wait for ever where nothing is said (3.0.12), and never tells what is wrong.
    if tls is not None and (reason := _why_not(bootstrap, tls)):
        fail(reason)
    if given.login is not None:
        with suppress(ValueError):  # of an address; the client says so
            places = [_place(each.strip()) for each in bootstrap.split(",")]
            if reason := why_not_let_in(places, PROBE_TIMEOUT_S, tls, given.login):
                fail(reason)
    return {
        "bootstrap_servers": bootstrap,
        "client_id": "penstock-cli",
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        **given.for_kafka_python(tls),
    }


@contextmanager
def bootstrapping(bootstrap: str) -> Iterator[None]:
    """A client is made in it; why none can be made is one sentence."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError:
        given = _connecting.get()
        for address in [] if given.login else bootstrap.split(","):
            found = presence(address, timeout_s=PROBE_TIMEOUT_S, tls=context_of(given))
            if found is Presence.ASKS_FOR_LOGIN:
                fail(f"The broker at {address} asks for a login: name one by --command-config.")
            if given.tls or found is not Presence.ABSENT:
                continue
            found = presence(address, timeout_s=PROBE_TIMEOUT_S, tls=any_certificate())
            if found is Presence.ANSWERS:
                fail(f"The broker at {address} speaks TLS: add --tls, or --tls-ca FILE.")
            if found is Presence.ASKS_FOR_LOGIN:
                fail(
                    f"The broker at {address} speaks TLS, and asks for a login: name both by "
                    "--command-config."
                )
        fail(_unanswered(bootstrap))


def _unanswered(bootstrap: str) -> str:
    for address in bootstrap.split(","):
        with suppress(OSError, ValueError), _opened(address.strip()):
            return (
                f"Something listens at {address}, but does not answer as a broker: it is just "
                "starting, its database is away, or it is no Kafka broker; try again, or see its "
                "log."
            )
    return (
        f"No broker answers at {bootstrap}: start one with 'penstock serve', "
        "or name another with --bootstrap-server."
    )


def _why_not(bootstrap: str, tls: ssl.SSLContext) -> str | None:
    """Why none of the addresses can be asked by TLS; None where one can."""
    reasons = []
    for address in bootstrap.split(","):
        try:
            _shake_hands(address.strip(), tls)
        except ssl.SSLCertVerificationError as error:
            reasons.append(
                f"The broker at {address} has a certificate that is not trusted "
                f"({error.verify_message.rstrip('.')}): name what it is signed with by --tls-ca."
            )
        except _CertificateUnwanted as error:
            reasons.append(
                f"The broker at {address} wants a certificate that it trusts ({error}): name one "
                "by --command-config, as ssl.keystore.location."
            )
        except (ssl.SSLError, ConnectionResetError):
            reasons.append(
                f"The broker at {address} does not speak TLS: leave out --tls and --tls-ca."
            )
        except (OSError, ValueError):  # nobody is there, or nothing is said
            continue
        else:
            return None
    return reasons[0] if reasons else _unanswered(bootstrap)


def _opened(address: str) -> socket.socket:
    return socket.create_connection(_place(address), timeout=PROBE_TIMEOUT_S)


def _place(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, DEFAULT_PORT  # as the client takes it
    return host.strip("[]"), int(port)


class _CertificateUnwanted(Exception):
    """Whoever asks shows none, or another."""


def _shake_hands(address: str, tls: ssl.SSLContext) -> None:
    host = address.rpartition(":")[0] or address
    with _opened(address) as peer, tls.wrap_socket(peer, server_hostname=host.strip("[]")) as by:
        # By TLS 1.3 a client hears with the first answer only what is made of its certificate.
        try:
            by.sendall(_VERSIONS_REQUEST)
            by.recv(1)
        except ssl.SSLError as error:
            alert = (error.reason or "").replace("_", " ").lower()
            if "alert" in alert:
                raise _CertificateUnwanted(alert.partition("alert ")[2]) from error
            raise

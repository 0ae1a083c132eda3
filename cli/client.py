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

from cli.check import broker_answers
from cli.errors import sentence_of

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

DEFAULT_PORT = "9092"
DEFAULT_BOOTSTRAP = f"localhost:{DEFAULT_PORT}"
ANSWER_TIMEOUT_MS = 30_000
BOOTSTRAP_TIMEOUT_MS = 5_000
PATIENCE_S = 15.0
PROBE_TIMEOUT_S = 5.0
RETRY_INTERVAL_S = 0.5
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
_tls: ContextVar[ssl.SSLContext | None] = ContextVar("_tls", default=None)


def broker_command(command: Callable[..., None]) -> Callable[..., None]:
    """A command that asks a broker: it has the options of TLS as well, which are the client's
    business and not its own."""

    @functools.wraps(command)
    def ask(*, tls: bool, tls_ca: Path | None, **arguments: Any) -> None:
        before = _tls.set(_trust(tls_ca) if tls or tls_ca else None)
        try:
            command(**arguments)
        finally:
            _tls.reset(before)

    own = inspect.signature(command)
    further = [
        inspect.Parameter("tls", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Tls),
        inspect.Parameter("tls_ca", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TlsCa),
    ]
    # What typer reads.
    ask.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), *further]
    )
    ask.__annotations__ = {**command.__annotations__, "tls": Tls, "tls_ca": TlsCa}
    return ask


def _trust(authorities: Path | None) -> ssl.SSLContext:
    """authorities: a file in PEM; None: the machine's own."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:  # ssl.SSLError as well
        reason = error.strerror or str(error)
        fail(f"The certificates in {authorities} cannot be read ({reason}): name a PEM file.", 2)


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
    tls = _tls.get()
    # By TLS it would wait for ever where nothing is said (3.0.12), and never tells what is wrong.
    if tls is not None and (reason := _why_not(bootstrap, tls)):
        fail(reason)
    return {
        "bootstrap_servers": bootstrap,
        "client_id": "penstock-cli",
        "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        "security_protocol": "SSL" if tls else "PLAINTEXT",
        "ssl_context": tls,
    }


@contextmanager
def bootstrapping(bootstrap: str) -> Iterator[None]:
    """A client is made in it; why none can be made is one sentence."""
    from kafka.errors import KafkaError

    try:
        yield
    except KafkaError:
        for address in [] if _tls.get() else bootstrap.split(","):
            if broker_answers(address, timeout_s=PROBE_TIMEOUT_S, tls=True):
                fail(f"The broker at {address} speaks TLS: add --tls, or --tls-ca FILE.")
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
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, DEFAULT_PORT  # as the client takes it
    return socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_S)


def _shake_hands(address: str, tls: ssl.SSLContext) -> None:
    host = address.rpartition(":")[0] or address
    with _opened(address) as peer, tls.wrap_socket(peer, server_hostname=host.strip("[]")):
        pass

"""What the commands that speak to a broker share: the client, sentences for its errors, JSON.

Knows kafka-python's admin client and a terminal; nothing of the server. Works with any Kafka.
Exit codes: 0 done, 1 the broker refused or did not answer, 2 a wrong argument.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

DEFAULT_BOOTSTRAP = "localhost:9092"
ANSWER_TIMEOUT_MS = 30_000
BOOTSTRAP_TIMEOUT_MS = 5_000
PATIENCE_S = 15.0
RETRY_INTERVAL_S = 0.5
EARLIEST, LATEST = -2, -1  # ListOffsets' timestamps for both ends of a log

Bootstrap = Annotated[
    str, typer.Option("--bootstrap-server", metavar="HOST:PORT", help="A broker to ask.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

Found = TypeVar("Found")


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


def sentence(code: int, message: str | None = None) -> str:
    """Kafka's name of an error with the broker's words, else Kafka's own."""
    from kafka.errors import for_code

    error = for_code(code)
    name = getattr(error, "message", error.__name__)
    words = message or getattr(error, "description", "")
    return f"{name}: {words}" if words else str(name)


_NUMBERS = {
    *("Partition", "Committed", "End", "Lag", "Epoch", "Old offset", "New offset"),
    *("Producer", "Coordinator", "Age s", "Left s", "Timeout s", "Since offset", "Waiting"),
}


def print_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Numbers to the right. Nothing is cut off, however narrow the terminal."""
    table = Table(box=None, pad_edge=False)
    for head in heads:
        justify: JustifyMethod = "right" if head in _NUMBERS else "left"
        table.add_column(head, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
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
            fail(_refused(bootstrap, error))
        except RuntimeError as error:  # kafka-python's, where Metadata names no controller
            if "controller" not in str(error):
                raise
            fail(f"The broker at {bootstrap} knows no controller; is its database away? Try again.")


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
                    fail(_refused(bootstrap, error))
        time.sleep(RETRY_INTERVAL_S)


def _refused(bootstrap: str, error: Exception) -> str:
    return f"The broker at {bootstrap} refused: {str(error).rstrip('.')}."


def send(client: "KafkaAdminClient", request: Any, broker_id: int) -> Any:
    """A message that kafka-python's admin client has no method for, to one broker."""
    return client._manager.run(client._manager.send, request, broker_id)


@contextmanager
def _connected(bootstrap: str) -> Iterator["KafkaAdminClient"]:
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    # The client reports each failed connection; we say once what it comes to.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    try:
        client = KafkaAdminClient(
            bootstrap_servers=bootstrap,
            client_id="penstock-cli",
            bootstrap_timeout_ms=BOOTSTRAP_TIMEOUT_MS,
            request_timeout_ms=ANSWER_TIMEOUT_MS,
        )
    except KafkaError:
        fail(
            f"No broker answers at {bootstrap}: start one with 'penstock serve', "
            "or name another with --bootstrap-server."
        )
    try:
        yield client
    finally:
        client.close()

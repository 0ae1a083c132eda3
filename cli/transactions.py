"""`penstock txn`: list, describe, abort, and which transactions hold back readers.

Knows flags and tables; what is asked of a broker is asked through kafka-python's admin client, so
all of it works with any Kafka from 3.0 on. Penstock shows transactions of Pulsar's by ids such as
`pulsar:(3,1234)`, made of their TxnID. Exit codes: 0 done, 1 the broker refused, did not answer or
does not know an id, 2 a wrong argument.
"""

import re
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from cli.client import (
    DEFAULT_BOOTSTRAP,
    LATEST,
    AsJson,
    Bootstrap,
    ask_patiently,
    broker_command,
    complain,
    fail,
    print_json,
    print_table,
    send,
)
from cli.errors import sentence
from cli.group_reads import raise_if_retriable

if TYPE_CHECKING:
    from kafka import KafkaAdminClient
    from kafka.admin import TransactionDescription

transactions = typer.Typer(
    help="List, describe and abort transactions of any Kafka broker; which ones hold readers up. "
    "Penstock's list has Pulsar's open ones, too, as pulsar:(3,1234).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)
_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_INVALID_REGULAR_EXPRESSION: Final = 128  # has no name in kafka-python yet
_OFFSETS_TOPIC: Final = "__consumer_offsets"
_PULSAR: Final = re.compile(r"pulsar:\([0-9]+,([0-9]+)\)")

Ids = Annotated[list[str], typer.Argument(metavar="TRANSACTIONAL_ID", help="One or more.")]


# --- list ---


@transactions.command("list")
@broker_command
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option(help="Only ids in this state; may be repeated.")
    ] = None,
    longer_than: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Only what is open for longer.")
    ] = None,
    pattern: Annotated[
        str | None, typer.Option(help="Only ids that match this regular expression as a whole.")
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their producer and state."""
    by_lower_case = {each.lower(): each for each in STATES}
    for each in state or []:
        if each.lower() not in by_lower_case:
            fail(f"--state: '{each}' is none of {', '.join(STATES)}.", 2)
    filters = {
        "state_filters": [by_lower_case[each.lower()] for each in state or []] or None,
        "duration_filter_ms": None if longer_than is None else int(longer_than * 1000),
        "transactional_id_pattern": pattern,
    }

    def ask(client: "KafkaAdminClient") -> list[dict[str, Any]]:
        from kafka.errors import KafkaError

        try:
            return _listed(client, **filters)
        except KafkaError as error:
            if getattr(error, "errno", None) == _INVALID_REGULAR_EXPRESSION:
                fail(f"--pattern: '{pattern}' is no regular expression in RE2's syntax.", 2)
            raise

    rows = ask_patiently(bootstrap_server, ask)
    if as_json:
        print_json(rows)
    elif not rows:
        Console().print("There are no such transactional ids.")
    else:
        heads = ("Transactional id", "State", "Producer", "Coordinator")
        print_table(heads, [list(row.values()) for row in rows])


def _listed(client: "KafkaAdminClient", **filters: Any) -> list[dict[str, Any]]:
    rows = [
        {
            "transactional_id": each.transactional_id,
            "state": each.state.value,
            "producer_id": each.producer_id,
            "coordinator": broker_id,
        }
        for broker_id, found in client.list_transactions(**filters).items()
        for each in found
    ]
    return sorted(rows, key=lambda row: str(row["transactional_id"]))


# --- describe ---


@transactions.command()
@broker_command
def describe(
    ids: Ids, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show transactional ids: producer, state, age, time left, partitions."""

    def ask(client: "KafkaAdminClient") -> list[dict[str, Any]]:
        return [_described(each, _find(client, each)) for each in dict.fromkeys(ids)]

    rows = ask_patiently(bootstrap_server, ask)
    known = [row for row in rows if row["error"] is None]
    if as_json:
        print_json(rows)
    elif known:
        heads = "Transactional id,State,Producer,Epoch,Age s,Left s,Timeout s,Partitions,Offsets"
        print_table(heads.split(","), [_described_cells(row) for row in known])
    _end_if_any_failed(rows)


def _find(client: "KafkaAdminClient", transactional_id: str) -> "TransactionDescription | None":
    from kafka.errors import TransactionalIdNotFoundError

    try:
        found = client.describe_transactions([transactional_id])
    except TransactionalIdNotFoundError:
        return None
    return found.get(transactional_id)


def _described(name: str, found: "TransactionDescription | None") -> dict[str, Any]:
    if found is None:
        return {"transactional_id": name, "error": "there is no such transactional id."}
    is_open = found.state.value in _OPEN and found.transaction_start_time_ms >= 0
    age_ms = int(time.time() * 1000) - found.transaction_start_time_ms if is_open else None
    partitions: dict[str, list[int]] = {}
    for topic, number in sorted(found.topic_partitions):
        partitions.setdefault(topic, []).append(number)
    has_offsets = partitions.pop(_OFFSETS_TOPIC, None) is not None
    return {
        "transactional_id": name,
        "error": None,
        "state": found.state.value,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "coordinator": found.coordinator_id,
        "timeout_ms": found.transaction_timeout_ms,
        "age_ms": age_ms,
        "timeout_left_ms": None if age_ms is None else found.transaction_timeout_ms - age_ms,
        "partitions": partitions,
        "has_offsets": has_offsets,
    }


def _described_cells(row: dict[str, Any]) -> list[object]:
    places = (f"{topic}:{','.join(map(str, n))}" for topic, n in row["partitions"].items())
    return [
        row["transactional_id"],
        row["state"],
        row["producer_id"],
        row["producer_epoch"],
        _seconds(row["age_ms"]),
        _seconds(row["timeout_left_ms"]),
        _seconds(row["timeout_ms"]),
        " ".join(places),
        "yes" if row["has_offsets"] else "",
    ]


def _seconds(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds / 1000:.1f}"


def _end_if_any_failed(rows: Iterable[dict[str, Any]]) -> None:
    failed = [row for row in rows if row["error"] is not None]
    for row in failed:
        complain(f"{row['transactional_id']}: {row['error']}")
    if failed:
        raise typer.Exit(1)


# --- abort ---


@transactions.command()
@broker_command
def abort(
    ids: Ids, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Abort what is open under transactional ids, and fence its producer.

    As a new producer with the same id would (InitProducerId). Ids with nothing open are left alone.
    Of Pulsar's, messages and acknowledgements are undone.
    """
    rows = [_aborted(bootstrap_server, each) for each in dict.fromkeys(ids)]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            if row["error"] is None:
                said = "Aborted" if row["aborted"] else "Nothing is open under"
                line = f"{said} {row['transactional_id']}"
                Console().print(line, markup=False, highlight=False, soft_wrap=True)
    _end_if_any_failed(rows)


def _aborted(bootstrap: str, name: str) -> dict[str, Any]:
    was_open = False

    def ask(client: "KafkaAdminClient") -> tuple[bool, str | None]:
        nonlocal was_open
        found = _find(client, name)
        if found is None:
            return False, "there is no such transactional id."
        if found.state.value not in _OPEN:
            return was_open, None  # open before, and the answer was lost or had to be waited for
        was_open = True
        answer = send(client, _abort_request(name, found), found.coordinator_id)
        raise_if_retriable(answer.error_code)
        return True, sentence(answer.error_code) if answer.error_code else None

    is_aborted, error = ask_patiently(bootstrap, ask)
    return {"transactional_id": name, "aborted": is_aborted and error is None, "error": error}


def _abort_request(name: str, found: "TransactionDescription") -> Any:
    from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

    # A producer of Kafka's may have such an id, but not this producer id with it.
    pulsars = _PULSAR.fullmatch(name)
    if pulsars is not None and int(pulsars[1]) == found.producer_id:
        return EndTxnRequest(
            transactional_id=name,
            producer_id=found.producer_id,
            producer_epoch=found.producer_epoch,
            committed=False,
        )
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=found.transaction_timeout_ms,
        producer_id=-1,
        producer_epoch=-1,
    )


# --- blocking ---


@transactions.command()
@broker_command
def blocking(bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show which open transaction holds back readers of committed data, and where.

    Waiting: offsets behind the last stable offset. The database says more: SELECT * FROM
    v_open_transaction_blocking.
    """
    rows = ask_patiently(bootstrap_server, blocking_transactions)
    if as_json:
        print_json(rows)
    elif not rows:
        Console().print("No open transaction holds anybody back.")
    else:
        heads = ("Topic", "Partition", "Transactional id", "Producer", "Since offset", "Waiting")
        cells = [
            (
                row["topic"],
                row["partition"],
                row["transactional_id"],
                row["producer_id"],
                row["first_offset"],
                row["waiting"],
                _seconds(row["age_ms"]),
                _seconds(row["timeout_left_ms"]),
            )
            for row in rows
        ]
        print_table((*heads, "Age s", "Left s"), cells)


def blocking_transactions(client: "KafkaAdminClient") -> list[dict[str, Any]]:
    """Partition by partition: whose open transaction begins at the last stable offset."""
    open_ids = [row["transactional_id"] for row in _listed(client, state_filters=list(_OPEN))]
    described = {name: _find(client, name) for name in open_ids}
    names = {
        found.producer_id: (name, _described(name, found))
        for name, found in described.items()
        if found is not None
    }
    places = sorted(
        {
            place
            for found in described.values()
            if found is not None
            for place in found.topic_partitions
            if place.topic != _OFFSETS_TOPIC
        }
    )
    if not places:
        return []
    stable, end = (_ends(client, places, is_committed=each) for each in (True, False))
    rows = []
    for place, state in client.describe_producers(places).items():
        for producer in state.active_producers:
            if producer.current_transaction_start_offset != stable[place]:
                continue
            name, about = names.get(producer.producer_id, (None, {}))
            rows.append(
                {
                    "topic": place.topic,
                    "partition": place.partition,
                    "transactional_id": name,
                    "producer_id": producer.producer_id,
                    "first_offset": stable[place],
                    "waiting": end[place] - stable[place],
                    "age_ms": about.get("age_ms"),
                    "timeout_left_ms": about.get("timeout_left_ms"),
                }
            )
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def _ends(
    client: "KafkaAdminClient", places: Sequence[Any], *, is_committed: bool
) -> dict[Any, int]:
    level = _READ_COMMITTED if is_committed else _READ_UNCOMMITTED
    found = client.list_partition_offsets(dict.fromkeys(places, LATEST), isolation_level=level)
    return {place: each.offset for place, each in found.items()}

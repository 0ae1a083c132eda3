"""`penstock subscriptions reset|skip|delete`: flags, checks, and what is shown.

Clients of Pulsar's REST (`pulsar_rest`). Reset and skip change nothing without --execute, like
`groups reset-offsets`; consumers that are there are disconnected and come again. Exit codes: 0
done, 1 refused, or no such subscription, 2 a wrong argument, or no HTTP.
"""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from cli.client import AsJson, fail, print_json, print_table
from cli.errors import suggestion
from cli.pulsar_rest import (
    DEFAULT_URL,
    Rest,
    RestRefused,
    RestUnreachable,
    subscription_path,
    topic_path,
)
from cli.rest_login import RestLogin, read_rest_login
from cli.serve import ConfigFile, settings_of
from core.group.offset_reset import parse_datetime, parse_duration
from penstock.connecting import PropertyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.pulsar.names import TopicName

Name = Annotated[str, typer.Argument(metavar="SUBSCRIPTION")]
Topic = Annotated[
    str,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="Its topic, or one partition (TOPIC-partition-0), by Pulsar's name or the log's.",
    ),
]
AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        metavar="URL",
        help=f"Where a broker serves HTTP; default {DEFAULT_URL}, or what the settings say.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        help="Log in as this file says: authPlugin and authParams, as Pulsar's client.conf has "
        "them, or sasl.jaas.config, as for Kafka's tools.",
    ),
]
Execute = Annotated[
    bool, typer.Option("--execute/--dry-run", help="Do it, or only show it (the default).")
]

_ID: Final = re.compile(r"([0-9]+):([0-9]+)(?::(-?[0-9]+))?(?::-?[0-9]+)?")
_EARLIEST: Final = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
_LATEST: Final = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}


@dataclass(frozen=True, slots=True)
class Move:
    """A partition's subscription. backlog: messages not acknowledged, before. new_position: the
    message that is to be the first one, LEDGER:ENTRY, or "the end"."""

    topic: str
    backlog: int
    new_position: str


def _said(command: Callable[..., None]) -> Callable[..., None]:
    """Ends it with a sentence where the broker refuses, or there is none."""

    @wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        try:
            command(*arguments, **named)
        except (RestUnreachable, PropertyError) as error:
            fail(str(error), 2)
        except RestRefused as error:
            fail(f"{str(error).rstrip('.')}.")

    return run


@_said
def reset(
    name: Name,
    topic: Topic,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|ID|TIME",
            help="Where to: a message's id LEDGER:ENTRY[:PARTITION], the first message from "
            "2026-01-31T12:00:00 (UTC) on, or of the last P1DT2H.",
        ),
    ],
    execute: Execute = False,
    admin_url: AdminUrl = None,
    command_config: CommandConfig = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Begin anew at another message; consumers are disconnected, and come again.

    Without --execute it is only shown.
    """
    way = _way(to)
    rest, whole = _rest(admin_url, config, command_config), _topic(topic)
    if isinstance(way, dict) and (partition := way["partitionIndex"]) >= 0 > whole.partition:
        whole = replace(whole, partition=partition)
    found = _backlogs(rest, whole, name)
    if isinstance(way, dict) and way not in (_EARLIEST, _LATEST) and len(found) > 1:
        fail(f"{whole} is partitioned: write the id as LEDGER:ENTRY:PARTITION.", 2)
    moves = [
        Move(str(each), backlog, _position(rest, each, way)) for each, backlog in found.items()
    ]
    if execute:
        end = ("resetcursor",) if isinstance(way, dict) else ("resetcursor", str(way))
        body = way if isinstance(way, dict) else None
        rest.ask("POST", (*subscription_path(whole, name), *end), body=body)
    _report(name, moves, execute=execute, as_json=as_json)


@_said
def skip(
    name: Name,
    topic: Topic,
    messages: Annotated[
        int | None, typer.Option("--messages", min=1, help="So many, of one partition.")
    ] = None,
    skip_all: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    execute: Execute = False,
    admin_url: AdminUrl = None,
    command_config: CommandConfig = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge the next messages, or all, without anybody having got them.

    Without --execute it is only shown.
    """
    if (messages is None) == (not skip_all):
        fail("Say how many, with just one of --messages, --all.", 2)
    rest, whole = _rest(admin_url, config, command_config), _topic(topic)
    found = _backlogs(rest, whole, name)
    if messages is not None and len(found) > 1:
        fail(f"{whole} is partitioned: name one, --topic {topic}-partition-0.", 2)
    moves = [
        Move(str(each), backlog, "the end" if skip_all else f"{min(messages or 0, backlog)} later")
        for each, backlog in found.items()
    ]
    if execute:
        end = ("skip_all",) if skip_all else ("skip", str(messages))
        rest.ask("POST", (*subscription_path(whole, name), *end))
    _report(name, moves, execute=execute, as_json=as_json)


@_said
def delete(
    name: Name,
    topic: Topic,
    force: Annotated[
        bool, typer.Option("--force", help="Also while it has consumers, who are disconnected.")
    ] = False,
    admin_url: AdminUrl = None,
    command_config: CommandConfig = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Delete a subscription, with all that it has acknowledged."""
    rest, whole = _rest(admin_url, config, command_config), _topic(topic)
    _backlogs(rest, whole, name)
    query = "force=true" if force else ""
    rest.ask("DELETE", subscription_path(whole, name), query)
    if as_json:
        print_json({"subscription": name, "topic": str(whole), "deleted": True})
    else:
        Console().print(f"Deleted {name} of {whole}", markup=False, highlight=False)


def _rest(admin_url: str | None, config: ConfigFile, command_config: Path | None) -> Rest:
    from gateway.config import HTTP

    settings = settings_of(config)
    login = RestLogin() if command_config is None else read_rest_login(command_config)
    if admin_url is not None:
        if not admin_url.startswith(("http://", "https://")):
            fail(f"--admin-url: '{admin_url}' is not http://HOST:PORT or https://HOST:PORT.", 2)
        return Rest(admin_url, settings.tls_cert, login)
    if (listens := settings.listen_on(HTTP)) is None:
        return Rest(DEFAULT_URL, login=login)
    at = settings.advertised(HTTP, listens.port)
    host = f"[{at.host}]" if ":" in at.host else at.host
    scheme = "http" if settings.tls_cert is None else "https"
    return Rest(f"{scheme}://{host}:{at.port}", settings.tls_cert, login)


def _topic(text: str) -> TopicName:
    """By Pulsar's name, full or short, or by the log's, as `subscriptions list` has it."""
    from core.errors import Refusal
    from gateway.pulsar.names import parse_topic_name, pulsar_topic_name

    name = None if "/" in text else pulsar_topic_name(text)
    found = parse_topic_name(text) if name is None else name
    if isinstance(found, Refusal):
        fail(f"--topic: {found.message}.", 2)
    return found


def _way(to: str) -> dict[str, int] | int:
    """A message's id as REST has it, or a time in ms."""
    if to in ("earliest", "latest"):
        return _EARLIEST if to == "earliest" else _LATEST
    if (found := _ID.fullmatch(to)) is not None:
        ledger, entry, partition = found.groups()
        return {
            "ledgerId": int(ledger),
            "entryId": int(entry),
            "partitionIndex": -1 if partition is None else int(partition),
        }
    try:
        if to[:1] in ("P", "p"):
            return max(round((time.time() - parse_duration(to).total_seconds()) * 1000), 0)
        return max(parse_datetime(to), 0)
    except (ValueError, OverflowError):
        fail(
            f"--to: '{to}' cannot be read; write earliest, latest, an id as 12:345, or a time as "
            "2026-01-31T12:00:00 or P1DT2H.",
            2,
        )


def _backlogs(rest: Rest, whole: TopicName, name: str) -> dict[TopicName, int]:
    """The partitions that have the subscription, and what it has not acknowledged there."""
    count = rest.ask("GET", (*topic_path(whole), "partitions"))["partitions"]
    if whole.partition >= 0 or not count:
        stats = {whole: rest.ask("GET", (*topic_path(whole), "stats"))}
    else:
        of_all = rest.ask("GET", (*topic_path(whole), "partitioned-stats"), "perPartition=true")
        stats = {
            replace(whole, partition=number): of_all["partitions"][f"{whole}-partition-{number}"]
            for number in range(count)
        }
    found = {
        each: one["subscriptions"][name]["msgBacklog"]
        for each, one in stats.items()
        if name in one["subscriptions"]
    }
    if not found:
        known = sorted({each for one in stats.values() for each in one["subscriptions"]})
        fail(f"There is no subscription {name} of {whole}.{suggestion(name, known)}")
    return found


def _position(rest: Rest, partition: TopicName, way: dict[str, int] | int) -> str:
    """Of the message that is to be the first one."""
    if way == _LATEST:
        return "the end"
    if isinstance(way, dict) and way != _EARLIEST:
        return f"{way['ledgerId']}:{way['entryId']}"
    at = 0 if isinstance(way, dict) else way
    found = rest.ask("GET", (*topic_path(partition), "messageid", str(at)))
    return f"{found['ledgerId']}:{found['entryId']}"


def _report(name: str, moves: list[Move], *, execute: bool, as_json: bool) -> None:
    if as_json:
        rows = [asdict(each) for each in moves]
        print_json({"subscription": name, "executed": execute, "partitions": rows})
        return
    rows_of_table = [(each.topic, each.backlog, each.new_position) for each in moves]
    print_table(("Topic", "Backlog", "New position"), rows_of_table)
    if not execute:
        Console().print("Nothing was changed: add --execute to do it.")

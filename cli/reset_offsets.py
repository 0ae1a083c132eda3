"""`penstock groups reset-offsets`: flags, checks, and what is shown.

Where to is `core.group.offset_reset`; who the group is, `group_reads`. Refuses while the group has
members, and changes nothing without --execute, like kafka-consumer-groups.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cli.client import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    ask_patiently,
    broker_command,
    complain,
    fail,
    print_json,
    print_table,
)
from cli.errors import sentence
from cli.group_reads import committed, describe, ends, partition_counts
from cli.topic_reads import suggested_topic
from core.group.offset_reset import (
    NewOffset,
    Target,
    Way,
    new_offsets,
    parse_datetime,
    parse_duration,
)

if TYPE_CHECKING:
    from kafka import KafkaAdminClient, TopicPartition


@broker_command
def reset_offsets(
    name: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="TOPIC[:0,1]", help="A topic, or some partitions; may be repeated."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To what is committed, else the end.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="By so many offsets; negative is back.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="To the first record from 2026-01-31T12:00:00 (UTC) on."),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(metavar="PnDTnHnMnS", help="To the first record of the last P1DT2H."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Do it, or only show it (the default).")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move a group's committed offsets; only while it has no members.

    Without --execute the new offsets are only shown.
    """
    target = _target(
        {
            Way.EARLIEST: to_earliest or None,
            Way.LATEST: to_latest or None,
            Way.CURRENT: to_current or None,
            Way.OFFSET: to_offset,
            Way.SHIFT: shift_by,
            Way.DATETIME: to_datetime,
            Way.DURATION: by_duration,
        }
    )
    if bool(topic) == all_topics:
        fail("Name topics with --topic, or all of them with --all-topics.", 2)
    wanted = dict(_topic_option(each) for each in topic or [])

    def ask(client: "KafkaAdminClient") -> list[NewOffset]:
        return _decide(client, name, wanted, target)

    decided = ask_patiently(bootstrap_server, ask)
    errors = _commit(bootstrap_server, name, decided) if execute and decided else {}
    _report(name, decided, errors, execute=execute, as_json=as_json)


def _target(given: dict[Way, Any]) -> Target:
    chosen = [(way, value) for way, value in given.items() if value is not None]
    if len(chosen) != 1:
        ways = ", ".join(f"--{way.value}" for way in Way)
        fail(f"Say where to, with just one of {ways}.", 2)
    ((way, value),) = chosen
    try:
        match way:
            case Way.DATETIME:
                return Target(way, parse_datetime(value))
            case Way.DURATION:
                ago = parse_duration(value)
                return Target(way, round((time.time() - ago.total_seconds()) * 1000))
    except (ValueError, OverflowError):
        example = "2026-01-31T12:00:00" if way is Way.DATETIME else "P1DT2H30M"
        fail(f"--{way.value}: '{value}' cannot be read; write for example {example}.", 2)
    return Target(way, int(value))


def _topic_option(text: str) -> tuple[str, list[int] | None]:
    name, colon, numbers = text.partition(":")
    if not colon:
        return name, None
    if not all(number.isascii() and number.isdigit() for number in numbers.split(",")):
        fail(f"--topic: '{text}' is not TOPIC or TOPIC:0,1.", 2)
    return name, [int(number) for number in numbers.split(",")]


def _decide(
    client: "KafkaAdminClient", name: str, wanted: dict[str, list[int] | None], target: Target
) -> list[NewOffset]:
    group = describe(client, [name])[name]
    if group.error is not None:
        fail(f"{name}: {group.error}")
    if not group.is_inactive:
        fail(
            f"Offsets can only be reset while a group has no members; {name} is {group.state} "
            f"with {len(group.members)}: stop them first."
        )
    old = {where: each.offset for where, each in committed(client, name).items()}
    partitions = _partitions(client, wanted, set(old))
    by_time = {}
    if target.way in {Way.DATETIME, Way.DURATION}:
        found = client.list_partition_offsets(dict.fromkeys(partitions, target.number))
        by_time = {where: each.offset for where, each in found.items()}
    try:
        return new_offsets(target, partitions, old, ends(client, partitions), by_time)
    except ValueError as error:
        fail(f"{error}.")


def _partitions(
    client: "KafkaAdminClient",
    wanted: dict[str, list[int] | None],
    already: set["TopicPartition"],
) -> list["TopicPartition"]:
    """Those that are to be reset, all of which exist."""
    from kafka import TopicPartition

    counts = partition_counts(client, wanted or {where.topic for where in already})
    if not wanted:
        return [where for where in already if where.partition < counts.get(where.topic, 0)]
    for topic, numbers in wanted.items():
        if topic not in counts:
            fail(f"There is no topic {topic}.{suggested_topic(client, topic)}")
        for number in numbers or ():
            if number >= counts[topic]:
                fail(f"There is no partition {number} of {topic}: it has {counts[topic]}.")
    return [
        TopicPartition(topic, number)
        for topic, numbers in wanted.items()
        for number in (range(counts[topic]) if numbers is None else sorted(set(numbers)))
    ]


def _commit(bootstrap: str, name: str, decided: Sequence[NewOffset]) -> dict["TopicPartition", str]:
    """Commits as somebody who is no member; answers what went wrong where."""
    from kafka import TopicPartition
    from kafka.errors import NoError
    from kafka.structs import OffsetAndMetadata

    offsets = {
        TopicPartition(each.topic, each.partition): OffsetAndMetadata(each.new_offset, "", None)
        for each in decided
    }

    def commit(client: "KafkaAdminClient") -> dict["TopicPartition", Any]:
        answered: dict[TopicPartition, Any] = client.alter_group_offsets(name, offsets)
        for error in answered.values():
            if getattr(error, "retriable", False):
                raise error()
        return answered

    answered = ask_patiently(bootstrap, commit)
    return {
        where: sentence(error.errno) for where, error in answered.items() if error is not NoError
    }


def _report(
    name: str,
    decided: Sequence[NewOffset],
    errors: dict["TopicPartition", str],
    *,
    execute: bool,
    as_json: bool,
) -> None:
    from kafka import TopicPartition

    if as_json:
        rows = [
            {**asdict(each), "error": errors.get(TopicPartition(each.topic, each.partition))}
            for each in decided
        ]
        print_json({"group_id": name, "executed": execute, "partitions": rows})
    elif not decided:
        Console().print(f"{name} has committed nothing.", markup=False, highlight=False)
    else:
        print_table(
            ("Topic", "Partition", "Old offset", "New offset", ""),
            [
                (each.topic, each.partition, each.old_offset, each.new_offset, each.note or "")
                for each in decided
            ],
        )
        if not execute:
            Console().print("Nothing was changed: add --execute to do it.")
    for where, error in errors.items():
        complain(f"{where.topic}-{where.partition}: {error}")
    if errors:
        raise typer.Exit(1)

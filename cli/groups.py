"""`penstock groups`: list, describe, lag, why, reset-offsets and delete.

Knows flags and tables; what is asked of a broker is `group_reads`, and resetting has a file of its
own. Works with any Kafka. Exit codes: 0 done, 1 the broker refused or did not answer, 2 a wrong
argument.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from cli.client import (
    DEFAULT_BOOTSTRAP,
    STATE_STYLES,
    AsJson,
    Bootstrap,
    ask_patiently,
    broker_command,
    complain,
    fail,
    print_json,
    print_table,
    send,
    shown,
)
from cli.errors import sentence, suggestion
from cli.group_reads import (
    as_json as group_json,
)
from cli.group_reads import (
    by_coordinator,
    raise_if_retriable,
    with_progress,
)
from cli.group_reads import describe as describe_groups
from cli.reset_offsets import reset_offsets
from cli.transactions import blocking_transactions
from core.group.progress import Group, GroupView, HeldPartition, Waiting
from core.group.why import Finding, findings

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

groups = typer.Typer(
    help="List, describe and delete groups of any Kafka broker; their lag; reset their offsets.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Assigning",
    "Reconciling",
)
TYPES = ("classic", "consumer", "share", "streams")

Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="One or more.")]


# --- list ---


@groups.command("list")
@broker_command
def list_groups(
    state: Annotated[
        list[str] | None, typer.Option(help="Only groups in this state; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only groups of this type, classic or consumer."),
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List groups with their type and state."""
    states = _known("--state", state or [], STATES)
    types = _known("--type", kind or [], TYPES)
    found = ask_patiently(bootstrap_server, lambda client: client.list_groups())
    rows = [
        {
            "group_id": each["group_id"],
            "type": each.get("group_type", ""),
            "state": each.get("group_state", ""),
            "protocol_type": each["protocol_type"],
        }
        for each in sorted(found, key=lambda each: str(each["group_id"]))
    ]
    rows = [
        row
        for row in rows
        if (not states or row["state"] in states) and (not types or row["type"] in types)
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        Console().print("There are no such groups." if states or types else "There are no groups.")
    else:
        print_table(("Group", "Type", "State", "Protocol"), [list(row.values()) for row in rows])


def _known(option: str, given: Sequence[str], known: Sequence[str]) -> set[str]:
    by_lower_case = {each.lower(): each for each in known}
    for each in given:
        if each.lower() not in by_lower_case:
            fail(f"{option}: '{each}' is none of {', '.join(known)}.", 2)
    return {by_lower_case[each.lower()] for each in given}


# --- describe, lag ---


@groups.command()
@broker_command
def describe(
    names: Names, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Show groups: state, members with their partitions, offsets and lag."""
    views = ask_patiently(bootstrap_server, lambda client: _views(client, names))
    if as_json:
        print_json([group_json(view) for view in views])
    else:
        for view in views:
            _print_group(view)
    _end_if_any_failed(bootstrap_server, views, unknown_is_failure=True)


@groups.command()
@broker_command
def lag(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]", help="By default all groups.")
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show how far groups are behind, partition by partition.

    Counts offsets, as every Kafka client does: the markers of transactions are among them. For the
    records that are really left to read: SELECT * FROM penstock.v_group_lag.
    """

    def ask(client: "KafkaAdminClient") -> list[GroupView]:
        wanted = names or sorted(each["group_id"] for each in client.list_groups())
        return _views(client, wanted)

    views = ask_patiently(bootstrap_server, ask)
    if as_json:
        print_json(
            [
                {
                    key: group_json(view).get(key)
                    for key in ("group_id", "error", "lag", "partitions")
                }
                for view in views
            ]
        )
    else:
        _print_lag(views)
    _end_if_any_failed(bootstrap_server, views, unknown_is_failure=bool(names))


def _views(client: "KafkaAdminClient", names: Iterable[str]) -> list[GroupView]:
    described = describe_groups(client, list(dict.fromkeys(names)))
    return [with_progress(client, group) for group in described.values()]


def _is_unknown(view: GroupView) -> bool:
    return view.group.error is None and not view.group.type and not view.progress


def _end_if_any_failed(
    bootstrap: str, views: Iterable[GroupView], *, unknown_is_failure: bool
) -> None:
    failed = [view.group for view in views if view.group.error is not None]
    for group in failed:
        complain(f"{group.group_id}: {group.error}")
    unknown = [view.group for view in views if unknown_is_failure and _is_unknown(view)]
    known = ask_patiently(bootstrap, lambda client: client.list_groups()) if unknown else []
    for group in unknown:
        near = suggestion(group.group_id, (each["group_id"] for each in known))
        complain(f"{group.group_id}: there is no such group.{near}")
    if failed or unknown:
        raise typer.Exit(1)


def _print_group(view: GroupView) -> None:
    group = view.group
    if group.error is not None or _is_unknown(view):
        return
    _print_about(view)
    _print_members(group)
    if view.progress:
        print_table(
            ("Topic", "Partition", "Committed", "End", "Lag", "Client", "Host"),
            [
                (
                    each.topic,
                    each.partition,
                    each.committed_offset,
                    each.end_offset,
                    each.lag,
                    each.client_id,
                    each.host,
                )
                for each in view.progress
            ],
        )


def _print_about(view: GroupView) -> None:
    group = view.group
    about = [f"{group.type} group, {group.state}"]
    if group.assignor:
        about.append(f"assignor {group.assignor}")
    if group.epoch is not None:
        about.append(f"epoch {group.epoch}")
    about.append(f"coordinator {group.coordinator}")
    about.append(f"lag {shown(view.lag)}")
    line = Text(f"{group.group_id}  ({', '.join(about)})")
    line.highlight_words([group.state], STATE_STYLES.get(group.state, ""))
    Console().print(line, soft_wrap=True)


def _print_members(group: Group) -> None:
    if not group.members:
        Console().print("  no members", highlight=False)
        return
    rows = []
    for member in group.members:
        target = "" if member.target in (None, member.partitions) else _places(member.target)
        rows.append(
            (
                member.member_id,
                member.instance_id,
                member.client_id,
                member.host,
                member.epoch,
                _places(member.partitions),
                target,
            )
        )
    heads = ("Member", "Instance", "Client", "Host", "Epoch", "Partitions", "Moving to")
    shown = [i for i in range(len(heads)) if i in {0, 5} or any(row[i] for row in rows)]
    print_table([heads[i] for i in shown], [[row[i] for i in shown] for row in rows])


def _places(partitions: Any) -> str:
    parts = (
        f"{topic}:{','.join(str(number) for number in numbers)}"
        for topic, numbers in (partitions or {}).items()
    )
    return " ".join(parts)


def _print_lag(views: Sequence[GroupView]) -> None:
    rows = [
        (
            view.group.group_id,
            each.topic,
            each.partition,
            each.committed_offset,
            each.end_offset,
            each.lag,
            each.client_id,
        )
        for view in views
        for each in view.progress
    ]
    if not rows:
        Console().print("Nothing is committed or assigned.")
        return
    print_table(("Group", "Topic", "Partition", "Committed", "End", "Lag", "Client"), rows)


groups.command("reset-offsets")(reset_offsets)


# --- why ---


@groups.command()
@broker_command
def why(
    name: Annotated[str, typer.Argument(metavar="GROUP")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The broker's data, whose database knows more."),
    ] = None,
    database_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The same, for a database of your own.")
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Say in words why a group does not go on: who is waited for, and what holds it back.

    Kafka's classic protocol does not tell clients which member is waited for. Penstock's database
    knows it: add the broker's --data or --database-url.
    """
    view, held = ask_patiently(bootstrap_server, lambda client: _why(client, name))
    _end_if_any_failed(bootstrap_server, [view], unknown_is_failure=True)
    found = findings(view, held, _waiting(name, data, database_url))
    if as_json:
        state = {"group_id": name, "state": view.group.state, "lag": view.lag}
        told = [{"kind": each.kind, "text": _with_cure(each)} for each in found]
        print_json({**state, "findings": told})
        return
    _print_about(view)
    for each in found:
        Console().print(f"- {_with_cure(each)}", markup=False, highlight=False, soft_wrap=True)


def _with_cure(finding: Finding) -> str:
    """Its sentences, and the command that helps."""
    text = finding.text
    if finding.lacks:
        return f"{text} To know more, add --data or --database-url, as the broker has it."
    if finding.held is not None:
        name = finding.held.transactional_id or "ID"
        return f"{text} To end the transaction: 'penstock txn abort {name}'."
    if finding.kind == "beyond_end":
        return f"{text} ('penstock groups reset-offsets')"
    return text


def _why(client: "KafkaAdminClient", name: str) -> tuple[GroupView, list[HeldPartition]]:
    from kafka.errors import UnsupportedVersionError

    (view,) = _views(client, [name])
    if not view.progress:
        return view, []
    try:
        return view, [_held(row) for row in blocking_transactions(client)]
    except UnsupportedVersionError:  # a Kafka before 3.0 does not tell of transactions
        return view, []


def _held(row: dict[str, Any]) -> HeldPartition:
    return HeldPartition(
        row["topic"],
        row["partition"],
        row["transactional_id"],
        row["producer_id"],
        row["first_offset"],
        row["waiting"],
        None if row["age_ms"] is None else row["age_ms"] / 1000,
        None if row["timeout_left_ms"] is None else row["timeout_left_ms"] / 1000,
    )


def _waiting(name: str, data: "Path | None", database_url: str | None) -> Waiting | None:
    """Of the database, where one is named; ends the command where that cannot be asked."""
    from core.ports.log import StoreUnavailable
    from storage.groups.waiting import read_waiting
    from storage.server.embedded import EmbeddedPostgresError, running_url

    try:
        if database_url is None:
            if data is None:
                return None
            database_url = running_url(data)
        waiting = read_waiting(database_url, name)
    except EmbeddedPostgresError as error:
        fail(str(error), 2)
    except StoreUnavailable as error:
        fail(f"The database cannot be used ({error}): check --data and --database-url.", 2)
    if waiting is None:
        complain(f"The database has no group {name}: is it this broker's?")
    return waiting


# --- delete ---


@groups.command()
@broker_command
def delete(
    names: Names, bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Delete groups without members, with all their offsets."""
    from kafka.protocol.admin import DeleteGroupsRequest

    def ask(client: "KafkaAdminClient") -> dict[str, int]:
        codes: dict[str, int] = {}
        for broker_id, group_ids in by_coordinator(client, names).items():
            answer = send(client, DeleteGroupsRequest(groups_names=group_ids), broker_id)
            codes |= {each.group_id: each.error_code for each in answer.results}
        for code in codes.values():
            # Deleting is done again, too: what is gone by then is not found, and that is told.
            raise_if_retriable(code)
        return codes

    codes = ask_patiently(bootstrap_server, ask)
    results = [
        {"group_id": name, "error": sentence(codes[name]) if codes[name] else None}
        for name in dict.fromkeys(names)
    ]
    if as_json:
        print_json(results)
    else:
        for each in results:
            if each["error"] is None:
                Console().print(f"Deleted {each['group_id']}", markup=False, highlight=False)
            else:
                complain(f"{each['group_id']}: {each['error']}")
    if any(each["error"] is not None for each in results):
        raise typer.Exit(1)

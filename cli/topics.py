"""`penstock topics`: create, list, describe, alter and delete topics, as any Kafka client would.

Knows kafka-python's admin client and a terminal; nothing of the server. Works with any Kafka.
Exit codes: 0 done, 1 the broker refused or did not answer, 2 a wrong argument.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from cli.client import (
    DEFAULT_BOOTSTRAP,
    EARLIEST,
    LATEST,
    AsJson,
    Bootstrap,
    admin_client,
    broker_command,
    complain,
    fail,
    print_json,
    print_table,
    send,
)
from cli.errors import raise_if_unable, sentence
from cli.topic_reads import (
    UNKNOWN_TOPIC_OR_PARTITION,
    existing_partitions,
    newest_records,
    suggested_topic,
)
from core.config.definitions import NOT_COMPACTED

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_TOPIC_ALREADY_EXISTS: Final = 36
_SHOWN_MAX: Final = 60  # characters of a key or a value

topics = typer.Typer(
    help="Create, list, describe, alter and delete topics of any Kafka broker.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Names = Annotated[list[str], typer.Argument(metavar="TOPIC", help="One or more.")]


def _finish(
    results: list[dict[str, Any]],
    done: str,
    *,
    as_json: bool,
    other: Mapping[str, str] | None = None,
) -> None:
    """Reports topic by topic; exit code 1 if any was refused.

    done: the word for what happened; other: the word for topics where it is another one.
    """
    words = other or {}
    if as_json:
        print_json(results)
    else:
        for result in results:
            if result["error"] is None:
                word = words.get(result["name"], done)
                Console().print(f"{word} {result['name']}", markup=False, highlight=False)
            else:
                complain(f"{result['name']}: {result['error']}")
    if any(result["error"] is not None for result in results):
        raise typer.Exit(1)


@topics.command()
@broker_command
def create(
    names: Names,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many; by default the broker's num.partitions.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="By default the broker's.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A topic property; may be repeated."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="A topic that is there already will do.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create topics."""
    wanted = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": _properties(config or []),
    }
    with admin_client(bootstrap_server) as admin:
        answer = admin.create_topics(dict.fromkeys(names, wanted), raise_errors=False)
        there = {
            topic["name"]
            for topic in answer["topics"]
            if if_not_exists and topic["error_code"] == _TOPIC_ALREADY_EXISTS
        }
        results = [
            {"name": topic["name"], "error": None} if topic["name"] in there else _result(topic)
            for topic in answer["topics"]
        ]
    if not as_json:
        _tell_of_compaction(_properties(config or []))
    _finish(results, "Created", as_json=as_json, other=dict.fromkeys(there, "Exists"))


def _properties(pairs: list[str]) -> dict[str, str]:
    configs = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            fail(f"--config: '{pair}' is not NAME=VALUE, as in retention.ms=3600000.", 2)
        configs[name.strip()] = value
    return configs


@topics.command()
@broker_command
def alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A topic property; may be repeated."),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Back to its default; may be repeated."),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="More of them; there is no way back.")
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change a topic's properties, or give it more partitions."""
    new: dict[str, str | None] = {**_properties(config or []), **dict.fromkeys(delete_config or [])}
    if not new and partitions is None:
        fail("Nothing is to be changed: give --config, --delete-config or --partitions.", 2)
    with admin_client(bootstrap_server) as admin:
        before = existing_partitions(admin, name)
        error = _alter_configs(admin, name, new) if new else None
        if error is None and partitions not in {None, before}:
            answer = admin.create_partitions({name: partitions}, raise_errors=False)
            error = _result(answer.to_dict()["results"][0])["error"]
    if not as_json:
        _tell_of_compaction(new)
    _finish([{"name": name, "error": error}], "Altered", as_json=as_json)


def _alter_configs(
    admin: "KafkaAdminClient", name: str, new: Mapping[str, str | None]
) -> str | None:
    """None where it is done, else why not. new: None is a property's default."""
    from kafka.admin import AlterConfigOp, ConfigResourceType
    from kafka.protocol.admin import IncrementalAlterConfigsRequest as Request

    Resource = Request.AlterConfigsResource
    Config = Resource.AlterableConfig
    configs = [
        Config(
            name=key,
            config_operation=AlterConfigOp.DELETE if value is None else AlterConfigOp.SET,
            value=value,
        )
        for key, value in new.items()
    ]
    resource = Resource(
        resource_type=ConfigResourceType.TOPIC.value, resource_name=name, configs=configs
    )
    answer = send(admin, Request(resources=[resource], validate_only=False), None)
    (each,) = answer.responses
    raise_if_unable(each.error_code)
    return sentence(each.error_code, each.error_message) if each.error_code else None


def _tell_of_compaction(configs: Mapping[str, str | None]) -> None:
    if "compact" in (configs.get("cleanup.policy") or ""):
        Console(soft_wrap=True).print(f"  {NOT_COMPACTED}", style="yellow", highlight=False)


@topics.command()
@broker_command
def delete(
    names: Names,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Delete topics with all their records."""
    with admin_client(bootstrap_server) as admin:
        answer = admin.delete_topics(list(names), raise_errors=False)
        results = [_suggesting(admin, topic, _result(topic)) for topic in answer["topics"]]
    _finish(results, "Deleted", as_json=as_json)


def _result(topic: Mapping[str, Any]) -> dict[str, Any]:
    code = topic["error_code"]
    raise_if_unable(code)
    error = sentence(code, topic.get("error_message")) if code else None
    return {"name": topic["name"], "error": error}


def _suggesting(
    admin: "KafkaAdminClient", topic: Mapping[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    if topic["error_code"] == UNKNOWN_TOPIC_OR_PARTITION:
        result["error"] += suggested_topic(admin, topic["name"])
    return result


@topics.command("list")
@broker_command
def list_topics(
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List topics."""
    with admin_client(bootstrap_server) as admin:
        found = sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    rows = [
        {"name": topic["name"], "partitions": len(topic["partitions"])}
        for topic in found
        if internal or not topic["is_internal"]
    ]
    if as_json:
        print_json(rows)
        return
    if not rows:
        Console().print("There are no topics.")
        return
    table = Table("Topic", box=None)
    table.add_column("Partitions", justify="right")
    for row in rows:
        table.add_row(row["name"], str(row["partitions"]))
    Console().print(table)


@topics.command()
@broker_command
def describe(
    names: Names,
    records: Annotated[
        bool, typer.Option("--records", help="The newest few records of each partition, too.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show topics: partitions with their offsets, and settings that are not defaults."""
    with admin_client(bootstrap_server) as admin:
        described = [_describe(admin, topic) for topic in admin.describe_topics(list(names))]
    if records:
        for topic in described:
            if topic["error"] is None:
                topic["records"] = newest_records(bootstrap_server, topic["name"])
    if as_json:
        print_json(described)
    else:
        for topic in described:
            _print_topic(topic)
    if any(topic["error"] is not None for topic in described):
        raise typer.Exit(1)


def _describe(admin: "KafkaAdminClient", topic: Mapping[str, Any]) -> dict[str, Any]:
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType

    name = topic["name"]
    if topic["error_code"]:
        raise_if_unable(topic["error_code"])
        return _suggesting(admin, topic, {"name": name, "error": sentence(topic["error_code"])})
    numbers = sorted(partition["partition_index"] for partition in topic["partitions"])
    ends = {
        end: admin.list_partition_offsets({TopicPartition(name, n): end for n in numbers})
        for end in (EARLIEST, LATEST)
    }
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    configs = admin.describe_configs([resource]).get("topic", {}).get(name, {})
    leaders = {each["partition_index"]: each["leader_id"] for each in topic["partitions"]}
    return {
        "name": name,
        "error": None,
        "topic_id": str(topic.get("topic_id")),
        "configs": {key: entry["value"] for key, entry in sorted(configs.items())},
        "partitions": [
            {
                "partition": number,
                "leader": leaders[number],
                "start_offset": ends[EARLIEST][TopicPartition(name, number)].offset,
                "end_offset": ends[LATEST][TopicPartition(name, number)].offset,
            }
            for number in numbers
        ],
    }


def _print_topic(topic: Mapping[str, Any]) -> None:
    if topic["error"] is not None:
        complain(f"{topic['name']}: {topic['error']}")
        return
    console = Console()
    console.print(f"{topic['name']}  (id {topic['topic_id']})", markup=False, highlight=False)
    for name, value in topic["configs"].items():
        console.print(f"  {name}={value}", markup=False, highlight=False)
    _tell_of_compaction(topic["configs"])
    table = Table(box=None)
    for heading in ("Partition", "Leader", "Start offset", "End offset", "Records"):
        table.add_column(heading, justify="right")
    for each in topic["partitions"]:
        first, last = each["start_offset"], each["end_offset"]
        cells = (each["partition"], each["leader"], first, last, last - first)
        table.add_row(*(str(cell) for cell in cells))
    console.print(table)
    if "records" in topic:
        _print_records(topic["records"])


def _print_records(records: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["partition"],
            each["offset"],
            datetime.fromtimestamp(each["timestamp"] / 1000, UTC).isoformat(" ", "milliseconds")
            if each["timestamp"] >= 0
            else None,
            _short(each, "key"),
            _short(each, "value"),
        )
        for each in records
    ]
    if rows:
        print_table(("Partition", "Offset", "Timestamp", "Key", "Value"), rows)
    else:
        Console().print("There are no records.")


def _short(record: Mapping[str, Any], name: str) -> str | None:
    """Enough of a key or a value to know it again; Base64 where it is no text."""
    text = record.get(name, record.get(f"{name}_base64"))
    if text is None:
        return None
    line = json.dumps(text, ensure_ascii=False)[1:-1]
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"

"""`penstock subscriptions`: Pulsar's subscriptions, what they have acknowledged, what is left.

Knows flags and tables; reads the broker's database, since Pulsar's protocol tells clients of no
subscription but their own. What changes them is in `subscription_moves`. Exit codes: 0 done, 1
there is no such subscription, 2 a wrong argument, or no database.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cli.client import AsJson, fail, print_json, print_table
from cli.errors import suggestion
from cli.serve import ConfigFile, DatabaseUrl, DataDirectory, settings_of
from cli.subscription_moves import delete, reset, skip

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage.subscriptions.reads import SubscriptionView

subscriptions = typer.Typer(
    help="List and describe Pulsar's subscriptions, with their backlog; move and delete them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

OfTopic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="Only those of this topic.")
]


@subscriptions.command("list")
def list_subscriptions(
    topic: OfTopic = None,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """List subscriptions: type, partitions, messages that are not acknowledged."""
    url = _url(config, data, database_url)
    rows = [_summary(list(each)) for each in _by_subscription(_read(url, topic))]
    if as_json:
        print_json(rows)
    elif not rows:
        Console().print(
            "There are no subscriptions." if topic is None else f"{topic} has no subscriptions.",
            markup=False,
            highlight=False,
        )
    else:
        heads = ("Topic", "Subscription", "Type", "Partitions", "Backlog")
        print_table(heads, [list(row.values()) for row in rows])


@subscriptions.command()
def describe(
    name: Annotated[str, typer.Argument(metavar="SUBSCRIPTION")],
    topic: OfTopic = None,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Describe a subscription by partition: where it is, what is left, which broker dispatches it.

    All below "Acknowledged" is acknowledged; "Ranges" counts the ranges above it that are, too.
    """
    url = _url(config, data, database_url)
    found = _read(url, topic, name)
    if not found:
        known = sorted({each.subscription for each in _read(url, topic)})
        of_topic = "" if topic is None else f" of {topic}"
        fail(f"There is no subscription {name}{of_topic}.{suggestion(name, known)}")
    if as_json:
        print_json([asdict(each) for each in found])
        return
    heads = (
        *("Topic", "Partition", "Type", "Acknowledged", "Ranges", "End", "Backlog"),
        "Dispatched by",
    )
    rows = [
        (
            *(each.topic, each.partition, each.type, each.mark_delete, each.ranges),
            *(each.high_watermark, each.backlog, each.owner),
        )
        for each in found
    ]
    print_table(heads, rows)


subscriptions.command()(reset)
subscriptions.command()(skip)
subscriptions.command()(delete)


def _by_subscription(rows: Iterable[SubscriptionView]) -> Iterable[Iterable[SubscriptionView]]:
    return (each for _, each in groupby(rows, lambda row: (row.topic, row.subscription)))


def _summary(rows: list[SubscriptionView]) -> dict[str, Any]:
    return {
        "topic": rows[0].topic,
        "subscription": rows[0].subscription,
        "type": rows[0].type,
        "partitions": len(rows),
        "backlog": sum(row.backlog for row in rows),
    }


def _url(config: ConfigFile, data: DataDirectory, database_url: DatabaseUrl) -> str:
    settings = settings_of(config, data=data, database_url=database_url)
    from storage.server.embedded import EmbeddedPostgresError, running_url

    try:
        return settings.database_url or running_url(settings.data_dir)
    except EmbeddedPostgresError as error:
        fail(str(error), 2)


def _read(url: str, topic: str | None, name: str | None = None) -> list[SubscriptionView]:
    from core.ports.log import StoreUnavailable
    from storage.subscriptions.reads import read_subscriptions

    try:
        return read_subscriptions(url, topic, name)
    except StoreUnavailable as error:
        fail(f"The database cannot be used ({error}): check --data and --database-url.", 2)

"""`penstock inbox`: what applications have committed in SQL, and what of it waits or was refused.

Knows flags and tables; reads the broker's database, since no protocol tells of it. Exit codes: 0
done, 2 a wrong argument, or no database.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cli.client import AsJson, fail, print_json, print_table
from cli.serve import ConfigFile, DatabaseUrl, DataDirectory, settings_of

if TYPE_CHECKING:
    from storage.inbox_reads import RefusedRow, WaitingTopic


def inbox(
    refused: Annotated[
        bool, typer.Option("--refused", help="What could not be published, the newest first.")
    ] = False,
    limit: Annotated[int, typer.Option(help="With --refused: so many rows at most.", min=1)] = 20,
    data: DataDirectory = None,
    database_url: DatabaseUrl = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Show records that applications have produced in SQL, committed, and that still wait."""
    settings = settings_of(config, data=data, database_url=database_url)
    from core.ports.log import StoreUnavailable
    from storage.inbox_reads import read_refused, read_waiting
    from storage.server.embedded import EmbeddedPostgresError, running_url

    try:
        url = settings.database_url or running_url(settings.data_dir)
        if refused:
            _show_refused(read_refused(url, limit), as_json)
        else:
            _show_waiting(read_waiting(url), as_json)
    except EmbeddedPostgresError as error:
        fail(str(error), 2)
    except StoreUnavailable as error:
        fail(f"The database cannot be used ({error}): check --data and --database-url.", 2)


def _show_waiting(rows: list[WaitingTopic], as_json: bool) -> None:
    if as_json:
        print_json([asdict(each) for each in rows])
    elif not rows:
        Console().print("Nothing waits.", highlight=False)
    else:
        print_table(
            ("Topic", "Transactions", "Records", "Bytes", "Oldest, s"),
            [(*list(asdict(each).values())[:-1], f"{each.age_s:.1f}") for each in rows],
        )


def _show_refused(rows: list[RefusedRow], as_json: bool) -> None:
    if as_json:
        print_json([asdict(each) | {"refused_at": each.refused_at.isoformat()} for each in rows])
    elif not rows:
        Console().print("Nothing was refused.", highlight=False)
    else:
        print_table(
            ("Refused at", "Topic", "Partition", "Records", "Bytes", "Reason"),
            [
                (
                    each.refused_at.isoformat(timespec="seconds"),
                    each.topic,
                    "" if each.partition is None else each.partition,
                    each.records,
                    each.bytes,
                    each.reason,
                )
                for each in rows
            ],
        )

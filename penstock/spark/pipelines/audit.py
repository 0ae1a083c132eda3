"""What happened in topics, as one HTML file: `penstock pipeline audit`.

Throughput over time, the aborted share, gaps in the offsets and why they are there, duplicates by
key; with the database's address also how large transactions were and how long they were open. Knows
where each comes from and where the report goes.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.spark.pipelines.application import run_in_session
from penstock.spark.pipelines.options import (
    Broker,
    PipelineFailed,
    broker_of,
    listed,
    parser,
    positive,
)
from penstock.spark.pipelines.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for. report: any URI that Spark can write to. database_url: with a password."""

    broker: Broker
    topics: tuple[str, ...]
    report: str
    database_url: str | None = field(default=None, repr=False)
    top: int = 20


def run(spark: SparkSession, job: Question, terminal: Terminal) -> None:
    """Reads it all and writes the report; PipelineFailed."""
    from pyspark.errors import PySparkException

    from penstock.spark.pipelines.broker import partition_ends
    from penstock.spark.pipelines.history import read_history
    from penstock.spark.pipelines.lake import write_text
    from penstock.spark.pipelines.report import Audit, html
    from penstock.spark.pipelines.transactions import read_transactions

    ends = partition_ends(job.broker, job.topics)
    offsets = sum(each.end - each.start for each in ends)
    terminal.say(f"{listed(job.topics)}: {len(ends)} partitions, {offsets:,} offsets")
    try:
        history = read_history(spark, job.broker, ends, top=job.top, doing=terminal.waiting)
    except PySparkException as failed:
        raise PipelineFailed(f"The log could not be read: {failed}") from None
    transactions = None
    if job.database_url is not None:
        with terminal.counting("Transactions") as advance:
            transactions = read_transactions(job.database_url, ends, advance)
    made = datetime.now(UTC)
    audit = Audit(tuple(job.topics), job.broker.bootstrap, made, history, transactions)
    write_text(spark, job.report, html(audit))
    terminal.say(f"Report: {job.report}")


def main(argv: Sequence[str]) -> int:
    """`penstock pipeline audit …`; the exit code."""
    made = parser("audit")
    made.add_argument(
        "--topic",
        dest="topics",
        nargs="+",
        metavar="TOPIC",
        required=True,
        help="topics to look at",
    )
    made.add_argument(
        "--report",
        metavar="FILE",
        default="audit.html",
        help="where the HTML goes (default: %(default)s)",
    )
    made.add_argument(
        "--database-url", metavar="URL", help="Penstock's database, for sizes of transactions"
    )
    made.add_argument(
        "--top",
        metavar="N",
        type=positive,
        default=20,
        help="how many gaps and keys are named (default: %(default)s)",
    )
    return run_in_session("audit", made.parse_args(argv), job_of, run)


def job_of(arguments: Namespace) -> Question:
    """Out of the command line; PipelineFailed where topics or the URL cannot be used."""
    from penstock.spark.pipelines.broker import partition_counts
    from penstock.spark.pipelines.transactions import check_database_url

    if arguments.database_url is not None:
        check_database_url(arguments.database_url)
    broker = broker_of(arguments)
    partition_counts(broker, arguments.topics)
    return Question(
        broker=broker,
        topics=tuple(arguments.topics),
        report=arguments.report,
        database_url=arguments.database_url,
        top=arguments.top,
    )


if __name__ == "__main__":  # `python -m`, or the file given to spark-submit
    sys.exit(main(sys.argv[1:]))

"""Topics to a lake: `penstock pipeline archive`.

Each committed record is written to Parquet files under `topic=…/date=…` once only, with its place,
timestamp, key, value and headers: Spark's file sink (or Delta) commits the files of a micro-batch
in its log, and the checkpoint knows which offsets they hold. Knows Spark and a path; must not know
what the records mean.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.spark.pipelines.application import run_in_session
from penstock.spark.pipelines.options import (
    Broker,
    Pace,
    PipelineFailed,
    add_lake_format,
    add_streaming_options,
    broker_of,
    listed,
    parser,
)
from penstock.spark.pipelines.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Archive:
    """What is asked for. checkpoint: None for a directory inside the lake."""

    broker: Broker
    source: tuple[str, ...]
    lake: str
    form: str = "parquet"
    checkpoint: str | None = None
    pace: Pace = field(default_factory=Pace)


def run(spark: SparkSession, job: Archive, terminal: Terminal) -> None:
    """Until it is interrupted, or with `available_now` until all is done; PipelineFailed."""
    from penstock.spark.pipelines import lake
    from penstock.spark.pipelines.streams import follow, read_stream

    checkpoint = job.checkpoint or f"{job.lake}/{lake.CHECKPOINT}"
    refuse_a_foreign_lake(spark, job, checkpoint)
    if job.form == "parquet" and (left := lake.remove_leftovers(spark, job.lake)):
        terminal.say(f"Removed {left} files that a killed run had not committed.")
    rows = lake.as_lake_rows(read_stream(spark, job.broker, job.source, job.pace))
    writer = rows.writeStream.format(job.form).partitionBy(*lake.FOLDERS)
    writer = job.pace.set(writer)
    query = writer.option("checkpointLocation", checkpoint).start(job.lake)
    terminal.say(f"{listed(job.source)} to {job.lake}: query {query.id}")
    count = follow(query, terminal)
    terminal.say(f"Done: {count:,} records archived.")


def refuse_a_foreign_lake(spark: SparkSession, job: Archive, checkpoint: str) -> None:
    """PipelineFailed if another checkpoint than this one has written the lake.

    A new checkpoint counts its micro-batches from 0 again. Spark's file sink would take those that
    it has had for done, and skip them: records would be lost. Delta would take them for another
    query's: records would be there twice.
    """
    from penstock.spark.pipelines import delta, lake

    log = lake.METADATA if job.form == "parquet" else delta.LOG
    is_new = not lake.exists(spark, f"{checkpoint}/metadata")
    if is_new and lake.exists(spark, f"{job.lake}/{log}"):
        raise PipelineFailed(
            f"{job.lake} was written with another checkpoint than {checkpoint}:"
            " give that one, or another lake."
        )


def main(argv: Sequence[str]) -> int:
    """`penstock pipeline archive …`; the exit code."""
    made = parser("archive")
    made.add_argument(
        "--from", dest="source", nargs="+", metavar="TOPIC", required=True, help="topics to read"
    )
    made.add_argument("--lake", metavar="URI", required=True, help="a directory Spark can write to")
    add_lake_format(made)
    made.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where Spark remembers how far it is (default: _checkpoint in the lake)",
    )
    add_streaming_options(made, trigger="1min")
    return run_in_session("archive", made.parse_args(argv), job_of, run)


def job_of(arguments: Namespace) -> Archive:
    """Out of the command line; PipelineFailed if there are no such topics."""
    from penstock.spark.pipelines.broker import partition_counts

    broker = broker_of(arguments)
    partition_counts(broker, arguments.source)
    return Archive(
        broker=broker,
        source=tuple(arguments.source),
        lake=arguments.lake.rstrip("/"),
        form=arguments.format,
        checkpoint=arguments.checkpoint,
        pace=Pace.of(arguments),
    )


if __name__ == "__main__":  # `python -m`, or the file given to spark-submit
    sys.exit(main(sys.argv[1:]))

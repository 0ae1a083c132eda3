"""From a lake back into a topic: `penstock pipeline replay`.

Everything chosen appears in the topic at once, or nothing does, and once only for each run id; each
partition's records come in their order. Knows Spark, the lake and the sink; must not know what the
records mean.
"""

from __future__ import annotations

import argparse
import re
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from penstock.spark.pipelines.application import run_in_session
from penstock.spark.pipelines.options import (
    Broker,
    PipelineFailed,
    add_lake_format,
    broker_of,
    listed,
    moment,
    parser,
)
from penstock.spark.pipelines.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

POSITION_HEADERS: Final = ("replay.topic", "replay.partition", "replay.offset", "replay.timestamp")


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets from `first` up to, and without, `end`. partition: None for each. end: None for
    all."""

    partition: int | None
    first: int
    end: int | None

    @classmethod
    def parse(cls, text: str) -> OffsetRange:
        """`PARTITION:FIRST-END`, of which PARTITION and END may be missing."""
        found = re.fullmatch(r"(?:(\d+):)?(\d+)-(\d+)?", text)
        if not found:
            raise argparse.ArgumentTypeError(f"'{text}' is not PARTITION:FIRST-END or FIRST-END")
        partition, first, end = (None if each is None else int(each) for each in found.groups())
        return cls(partition, first or 0, end)


@dataclass(frozen=True, slots=True)
class Replay:
    """What is asked for. source: a topic in the lake, None for the only one. since, until: of the
    records' timestamps, the latter without itself."""

    broker: Broker
    lake: str
    target: str
    run_id: str
    form: str = "parquet"
    source: str | None = None
    offsets: tuple[OffsetRange, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    by_key: bool = False
    new_timestamps: bool = False
    position_headers: bool = False


def run(spark: SparkSession, job: Replay, terminal: Terminal) -> None:
    """Writes it all, or nothing; PipelineFailed."""
    from pyspark.errors import PySparkException

    from penstock.spark.pipelines.broker import partition_counts
    from penstock.spark.pipelines.lake import exists, read_lake
    from penstock.spark.pipelines.streams import is_in_topic, write_to_topic

    if not exists(spark, job.lake):
        raise PipelineFailed(f"There is no lake at {job.lake}.")
    if is_in_topic(job.broker, job.target, job.run_id):
        terminal.say(f"Nothing written: run {job.run_id} is in {job.target} already.")
        return
    rows = chosen(read_lake(spark, job.lake, job.form), job)
    with terminal.waiting("Looking into the lake"):
        found = rows.groupBy("topic", "partition").count().collect()
    topics = sorted({row["topic"] for row in found})
    if not topics:
        terminal.say("Nothing in the lake is meant: nothing to do.")
        return
    if len(topics) > 1:
        raise PipelineFailed(f"The lake has {listed(topics)}: choose one with --from.")
    count = partition_counts(job.broker, [job.target])[job.target]
    needed = max(row["partition"] for row in found) + 1
    if not job.by_key and needed > count:
        raise PipelineFailed(
            f"The records are of {needed} partitions, {job.target} has {count}:"
            " make more, or have each record's key choose with --by-key."
        )
    total = sum(row["count"] for row in found)
    terminal.say(f"{total:,} records of {topics[0]} to {job.target}: run {job.run_id}")
    try:
        with terminal.waiting("Writing"):
            write_to_topic(records(rows, job, len(found)), job.broker, job.target, job.run_id)
    except PySparkException as failed:
        raise PipelineFailed(
            f"Not sure to be written; run it again with --run-id {job.run_id}, and it will be, and"
            f" once only.\n{failed}"
        ) from None
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"Not sure to be written; run it again with --run-id {job.run_id}, and it will be, and"
            " once only."
        ) from None
    terminal.say(f"Done: {total:,} records of run {job.run_id} are in {job.target}.")


def chosen(rows: DataFrame, job: Replay) -> DataFrame:
    """What of the lake is meant."""
    from pyspark.sql import functions as f

    if job.source is not None:
        rows = rows.where(f.col("topic") == job.source)
    if job.since is not None:
        # The date is of the timestamp: with it, whole directories need not be looked at.
        rows = rows.where(f.col("timestamp") >= f.lit(job.since))
        rows = rows.where(f.col("date") >= f.to_date(f.lit(job.since)))
    if job.until is not None:
        rows = rows.where(f.col("timestamp") < f.lit(job.until))
        rows = rows.where(f.col("date") <= f.to_date(f.lit(job.until)))
    if job.offsets:
        meant = f.lit(False)
        for each in job.offsets:
            meant = meant | _is_in(each)
        rows = rows.where(meant)
    return rows


def _is_in(offsets: OffsetRange) -> Column:
    from pyspark.sql import functions as f

    meant = f.col("offset") >= offsets.first
    if offsets.end is not None:
        meant = meant & (f.col("offset") < offsets.end)
    if offsets.partition is not None:
        meant = meant & (f.col("partition") == offsets.partition)
    return meant


def records(rows: DataFrame, job: Replay, partitions: int) -> DataFrame:
    """As the sink takes them: a task holds whole partitions, each in the order of its offsets."""
    from pyspark.sql import functions as f

    ordered = rows.repartition(partitions, "partition").sortWithinPartitions("partition", "offset")
    headers: Column = f.col("headers")
    if job.position_headers:
        at = [f.col("topic"), f.col("partition"), f.col("offset"), _milliseconds()]
        position = [
            f.struct(f.lit(name).alias("key"), each.cast("string").cast("binary").alias("value"))
            for name, each in zip(POSITION_HEADERS, at, strict=True)
        ]
        headers = f.concat(f.coalesce(headers, f.array().cast(_HEADERS)), f.array(*position))
    columns = [f.col("key"), f.col("value"), headers.alias("headers")]
    if not job.new_timestamps:
        columns.append(f.col("timestamp"))
    if not job.by_key:
        columns.append(f.col("partition"))
    return ordered.select(*columns)


_HEADERS: Final = "array<struct<key: string, value: binary>>"


def _milliseconds() -> Column:
    from pyspark.sql import functions as f

    return f.unix_millis(f.col("timestamp"))


def main(argv: Sequence[str]) -> int:
    """`penstock pipeline replay …`; the exit code."""
    made = parser("replay")
    made.add_argument("--lake", metavar="URI", required=True, help="what `archive` has written")
    add_lake_format(made)
    made.add_argument(
        "--from", dest="source", metavar="TOPIC", help="a topic in the lake (default: the only one)"
    )
    made.add_argument("--to", metavar="TOPIC", required=True, help="a topic that is there")
    made.add_argument(
        "--run-id",
        default=None,
        help="the name of this run: repeated under the same, it is not written twice",
    )
    what = made.add_argument_group("what")
    what.add_argument(
        "--offsets",
        metavar="[PARTITION:]FIRST-[END]",
        type=OffsetRange.parse,
        action="append",
        default=[],
        help="only these offsets, without END; may be repeated",
    )
    what.add_argument("--since", metavar="TIME", type=moment, help="only records from then on")
    what.add_argument("--until", metavar="TIME", type=moment, help="only records before")
    how = made.add_argument_group("how")
    how.add_argument(
        "--by-key",
        action="store_true",
        help="the partition follows from the key (default: the one it was in)",
    )
    how.add_argument("--new-timestamps", action="store_true", help="of now (default: as they were)")
    how.add_argument(
        "--position-headers",
        action="store_true",
        help=f"say where each record was, in headers {', '.join(POSITION_HEADERS)}",
    )
    return run_in_session("replay", made.parse_args(argv), job_of, run)


def job_of(arguments: argparse.Namespace) -> Replay:
    """Out of the command line; PipelineFailed if there is no such topic."""
    from penstock.spark.pipelines.broker import partition_counts

    broker = broker_of(arguments)
    partition_counts(broker, [arguments.to])
    return Replay(
        broker=broker,
        lake=arguments.lake.rstrip("/"),
        target=arguments.to,
        run_id=arguments.run_id or str(uuid.uuid4()),
        form=arguments.format,
        source=arguments.source,
        offsets=tuple(arguments.offsets),
        since=arguments.since,
        until=arguments.until,
        by_key=arguments.by_key,
        new_timestamps=arguments.new_timestamps,
        position_headers=arguments.position_headers,
    )


if __name__ == "__main__":  # `python -m`, or the file given to spark-submit
    sys.exit(main(sys.argv[1:]))

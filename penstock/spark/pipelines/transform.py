"""Consume, transform, produce at Spark's scale: `penstock pipeline transform`.

Reads what is committed in topics, puts it through an SQL query or a Python function, and writes the
rows to a topic: each micro-batch becomes visible there as a whole and once only, whatever is killed
on the way. Knows Spark and the sink; must not know what the records mean.
"""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.pipelines.application import run_in_session
from penstock.spark.pipelines.options import (
    Broker,
    Pace,
    PipelineFailed,
    WrongArgument,
    add_streaming_options,
    broker_of,
    listed,
    parser,
)
from penstock.spark.pipelines.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Function = Callable[["DataFrame"], "DataFrame"]

INPUT: Final = "input"  # the table that SQL selects from
_COLUMNS: Final = ("key", "value", "headers", "topic", "partition", "timestamp")


@dataclass(frozen=True, slots=True)
class Transform:
    """What is asked for. Either `sql` or `function` is given."""

    broker: Broker
    source: tuple[str, ...]
    target: str | None
    checkpoint: str
    sql: str | None = None
    function: Function | None = None
    output_mode: str = "append"
    pace: Pace = field(default_factory=Pace)


def run(spark: SparkSession, job: Transform, terminal: Terminal) -> None:
    """Until it is interrupted, or with `available_now` until all is done; PipelineFailed."""
    from penstock.spark.pipelines.streams import follow, read_stream, stream_to_topic

    frame = transformed(read_stream(spark, job.broker, job.source, job.pace), job)
    writer = stream_to_topic(frame, job.broker, job.target, output_mode=job.output_mode)
    writer = job.pace.set(writer)
    query = writer.option("checkpointLocation", job.checkpoint).start()
    terminal.say(f"{listed(job.source)} to {job.target or 'topics'}: query {query.id}")
    rows = follow(query, terminal)
    terminal.say(f"Done: {rows:,} rows read.")


def transformed(frame: DataFrame, job: Transform) -> DataFrame:
    """The rows to be written; PipelineFailed if they are not ones that can be."""
    from pyspark.errors import PySparkException

    try:
        if job.function is not None:
            result = job.function(frame)
        else:
            frame.createOrReplaceTempView(INPUT)
            result = frame.sparkSession.sql(job.sql or "")
    except PySparkException as refused:
        raise PipelineFailed(f"Spark refuses the transformation: {refused}") from None
    columns = getattr(result, "columns", None)
    if columns is None or not result.isStreaming:
        raise PipelineFailed("The transformation must give a DataFrame made from its input.")
    if "value" not in columns:
        raise PipelineFailed(
            f"The result must have a column 'value'; it has {listed(columns)}."
            " SELECT to_json(struct(…)) AS value makes one of many."
        )
    if unknown := [name for name in columns if name not in _COLUMNS]:
        raise PipelineFailed(
            f"The result has {listed(unknown)}: a record has {listed(_COLUMNS)}, and no more."
        )
    if job.target is None and "topic" not in columns:
        raise PipelineFailed("Without --to, the result must have a column 'topic'.")
    return result


def load_function(text: str) -> Function:
    """`module:function`, looked for where Python does and in the working directory."""
    module_name, colon, name = text.partition(":")
    if not colon or not name:
        raise WrongArgument(f"--python: '{text}' is not MODULE:FUNCTION.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function: Function = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise WrongArgument(f"--python: there is no {text}: {error}.") from None
    if not callable(function):
        raise WrongArgument(f"--python: {text} is no function.")
    return function


def main(argv: Sequence[str]) -> int:
    """`penstock pipeline transform …`; the exit code."""
    made = parser("transform")
    made.add_argument(
        "--from", dest="source", nargs="+", metavar="TOPIC", required=True, help="topics to read"
    )
    made.add_argument(
        "--to", metavar="TOPIC", help="a topic to write (default: what the column 'topic' says)"
    )
    how = made.add_mutually_exclusive_group(required=True)
    how.add_argument("--sql", help=f"SELECT … FROM {INPUT}, which has the Kafka source's columns")
    how.add_argument(
        "--python", metavar="MODULE:FUNCTION", help="from the input's DataFrame to the result's"
    )
    made.add_argument(
        "--checkpoint", metavar="DIR", required=True, help="where Spark remembers how far it is"
    )
    made.add_argument(
        "--output-mode",
        choices=("append", "update", "complete"),
        default="append",
        help="of aggregations without a watermark: update (default: %(default)s)",
    )
    add_streaming_options(made, trigger=None)
    return run_in_session("transform", made.parse_args(argv), job_of, run)


def job_of(arguments: Namespace) -> Transform:
    """Out of the command line; PipelineFailed if there are no such topics, or no such function."""
    from penstock.spark.pipelines.broker import partition_counts

    function = load_function(arguments.python) if arguments.python else None
    broker = broker_of(arguments)
    partition_counts(broker, [*arguments.source, *([arguments.to] if arguments.to else [])])
    return Transform(
        broker=broker,
        source=tuple(arguments.source),
        target=arguments.to,
        checkpoint=arguments.checkpoint,
        sql=arguments.sql,
        function=function,
        output_mode=arguments.output_mode,
        pace=Pace.of(arguments),
    )


if __name__ == "__main__":  # `python -m`, or the file given to spark-submit
    sys.exit(main(sys.argv[1:]))

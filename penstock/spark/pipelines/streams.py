"""Topics as streams: read by the stock source, written by the exactly-once sink, followed.

Knows Structured Streaming; must not know what a pipeline makes of the records.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines import interruption
from penstock.spark.pipelines.options import Broker, Pace, PipelineFailed
from penstock.spark.pipelines.terminal import Terminal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SINK: Final = "penstock"
_LOOK_EVERY_S: Final = 0.5


def read_stream(
    spark: SparkSession, broker: Broker, topics: Sequence[str], pace: Pace
) -> DataFrame:
    """What is committed in topics: key, value, topic, partition, offset, timestamp, headers …"""
    return (
        spark.readStream.format("kafka")
        .options(**broker.source_options(), **pace.source_options())
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .option("subscribe", ",".join(topics))
        .load()
    )


def follow(query: StreamingQuery, terminal: Terminal) -> int:
    """Until the query ends; a line for each micro-batch. How many rows it read; PipelineFailed.

    Ctrl-C or SIGTERM stops it: what is under way is not committed, and done again next time.
    """
    from pyspark.errors import StreamingQueryException

    shown, rows, ended = -1, 0, False
    try:
        with terminal.moving() as tell, interruption.current.asked_for() as shall_end:
            while not ended:
                if shall_end():
                    raise KeyboardInterrupt("The same command goes on where it was.")
                tell(f"batch {shown + 1} …  {rows:,} rows so far")
                ended = bool(query.awaitTermination(_LOOK_EVERY_S))  # type: ignore[arg-type]
                for progress in (json.loads(each.json) for each in query.recentProgress):
                    if progress["batchId"] > shown and progress["numInputRows"]:
                        shown = int(progress["batchId"])
                        rows += int(progress["numInputRows"])
                        terminal.say(batch_line(progress))
    except StreamingQueryException as failed:
        raise PipelineFailed(
            "The query failed. Once the reason is gone, the same command goes on where it was."
            f"\n{failed}"
        ) from None
    finally:
        query.stop()
    return rows


def batch_line(progress: Any) -> str:
    """A micro-batch in words: `batch 3: 12,000 rows in 1.5 s, 8,000 rows/s, 500 behind`."""
    count = int(progress["numInputRows"])
    seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    speed = f", {count / seconds:,.0f} rows/s" if seconds else ""
    behind = sum(offsets_behind(source) for source in progress["sources"])
    waiting = f", {behind:,} behind" if behind else ""
    return f"batch {progress['batchId']}: {count:,} rows in {seconds:.1f} s{speed}{waiting}"


def offsets_behind(source: Mapping[str, Any]) -> int:
    """How many offsets of its topics a source has not taken yet, as far as it knows."""
    end, latest = source["endOffset"], source["latestOffset"]
    if not isinstance(end, Mapping) or not isinstance(latest, Mapping):
        return 0
    return sum(
        max(0, int(offset) - int(end.get(topic, {}).get(partition, offset)))
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )


# --- the sink ---


def stream_to_topic(
    frame: DataFrame, broker: Broker, topic: str | None, *, output_mode: str
) -> DataStreamWriter:
    """A writer whose micro-batches become visible in a topic once and as a whole each.

    Spark does not offer `update` to sinks written in Python but through foreachBatch: the batch
    then says itself of which query it is, and which one.
    """
    _register(frame.sparkSession)
    # One sink, whatever the mode: a batch that is repeated in another one is still that batch.
    options = {**_sink_options(broker, topic), "sink.id": ""}
    if output_mode != "update":
        return frame.writeStream.outputMode(output_mode).format(SINK).options(**options)

    def write(batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        assert query_id, "Spark names the query of a micro-batch"
        _write(batch, options, txnAppId=query_id, txnVersion=str(batch_id), txnBelow="fail")

    return frame.writeStream.outputMode(output_mode).foreachBatch(write)


def is_in_topic(broker: Broker, topic: str, run_id: str) -> bool:
    """Whether `write_to_topic` has been done with this run id; PipelineFailed."""
    from penstock.spark.options import OptionError, parse
    from penstock.spark.sink import is_written
    from penstock.spark.staging import SinkError

    try:
        return is_written(
            parse({**_sink_options(broker, topic), **_named(run_id)}, is_stream=False)
        )
    except (OptionError, SinkError) as failed:
        raise PipelineFailed(str(failed)) from None


def write_to_topic(frame: DataFrame, broker: Broker, topic: str, run_id: str) -> None:
    """All rows at once, or none; once only for each run id."""
    _register(frame.sparkSession)
    _write(frame, _sink_options(broker, topic), **_named(run_id))


def _named(run_id: str) -> dict[str, str]:
    return {"txnAppId": run_id, "txnVersion": "0"}


def _write(frame: DataFrame, options: Mapping[str, str], **which: str) -> None:
    frame.write.format(SINK).options(**options, **which).mode("append").save()


def _register(spark: SparkSession) -> None:
    from penstock.spark import PenstockDataSource

    spark.dataSource.register(PenstockDataSource)


def _sink_options(broker: Broker, topic: str | None) -> dict[str, str]:
    return {**broker.sink_options(), **({} if topic is None else {"topic": topic})}

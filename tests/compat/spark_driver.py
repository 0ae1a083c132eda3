"""A Spark application in a process of its own, to be killed: counts records by user, for ever.

    python -m tests.compat.spark_driver BOOTSTRAP SOURCE TARGET DIRECTORY

Each batch writes the counts that it has changed to TARGET; the state is in DIRECTORY/checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.compat.spark import stream
from tests.spark.conftest import connector_settings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def counting(spark: SparkSession, bootstrap: str, source: str, target: str) -> DataStreamWriter:
    """The application, but for its checkpoint and trigger."""
    options = {"subscribe": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 200}
    rows = stream(spark, bootstrap, options).selectExpr("CAST(key AS STRING) AS user")
    counts = rows.groupBy("user").count()
    sink = counts.selectExpr("user AS key", "CAST(count AS STRING) AS value").writeStream
    sink = sink.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    return sink.outputMode("update")


def main(bootstrap: str, source: str, target: str, directory: str) -> None:
    with spark_session(Path(directory), **connector_settings()) as spark:
        writer = counting(spark, bootstrap, source, target)
        writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
        writer.trigger(processingTime="0 seconds").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

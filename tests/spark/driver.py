"""A Spark driver in a process of its own, to be killed: a stream of numbers into the sink.

`python -m tests.spark.driver BOOTSTRAP TOPIC DIRECTORY ROWS`: goes on until DIRECTORY/stop is
there; a query that fails is started again from its checkpoint. Must not know of any fault.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.spark import PenstockDataSource
from tests.spark.conftest import spark_session

VALUE = "rpad(CAST(value AS STRING), 60 + CAST(value % 40 AS INT), ' ') AS value"


def main(bootstrap: str, topic: str, directory: Path, rows: int) -> None:
    from pyspark.errors import StreamingQueryException

    stop = directory / "stop"
    with spark_session(directory / "spark") as spark:
        spark.dataSource.register(PenstockDataSource)
        source = spark.readStream.format("rate-micro-batch").option("numPartitions", 3)
        frame = source.option("rowsPerBatch", rows).load()
        frame = frame.selectExpr(VALUE, "IF(value % 2 = 0, CAST(value AS STRING), NULL) AS key")
        writer = frame.writeStream.format("penstock").option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", topic).option("kafka.batch.size", 8_192)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        say("running")
        while not stop.exists():
            query = writer.start()
            try:
                while not query.awaitTermination(0.2) and not stop.exists():
                    pass
            except StreamingQueryException as failed:
                say(f"failed: {str(failed)[:2000]}")
            query.stop()
    say("stopped")


def say(what: str) -> None:
    sys.stdout.write(f"DRIVER {what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))

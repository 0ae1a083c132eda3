"""What Spark does in one turn: batch reads and writes by the stock connector, and by our sink.

Knows Spark's formats and how a turn is timed; must not know brokers' insides or how figures are
shown.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped, charged
from bench.clients import run_workers
from bench.processes import ProcessGroup
from bench.report import US

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

READ_ROWS = 1_000_000
WRITTEN_ROWS = 500_000
SIZE = 100
PARTITIONS = 4
ROUNDS = 5


@dataclass
class Engine:
    """One Spark for all turns, so that its JVM is warm; what is read is written once a broker."""

    spark: SparkSession
    share: float
    stack: contextlib.ExitStack
    _filled: dict[str, str] = field(default_factory=dict)

    @cached_property
    def process(self) -> ProcessGroup:
        """The JVM and the Python workers under it."""
        return ProcessGroup(self.spark.sparkContext._gateway.proc.pid)  # type: ignore[union-attr]

    def beside(self, broker: Broker) -> Broker:
        """The broker, with Spark among the processes whose CPU is told apart."""
        return replace(broker, processes={**broker.processes, "spark": self.process})

    @cached_property
    def rows(self) -> DataFrame:
        """What is written, in memory: 100 bytes each, no key."""
        count = int(WRITTEN_ROWS * self.share)
        rows = self.spark.range(count, numPartitions=PARTITIONS).selectExpr(
            f"CAST(substr(concat(sha2(CAST(id AS STRING), 512), id), 1, {SIZE}) AS BINARY) AS value"
        )
        rows.cache().count()
        return rows

    def filled(self, broker: Broker) -> tuple[str, int]:
        """A topic of a broker with the rows to read, and how many."""
        count = int(READ_ROWS * self.share)
        if broker.name not in self._filled:
            topic = self.stack.enter_context(broker.topic(PARTITIONS))
            run_workers(
                "produce_confluent",
                bootstrap=broker.bootstrap,
                topic=topic,
                records=count,
                size=SIZE,
            )
            self._filled[broker.name] = topic
        return self._filled[broker.name], count


def read(engine: Engine, options: dict[str, str], broker: Broker) -> Figures:
    """A topic from its beginning to its end, all columns, into nothing."""
    topic, count = engine.filled(broker)
    reader = engine.spark.read.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", broker.bootstrap).options(**options)
    before, begun = broker.cpu_seconds(), time.monotonic()
    reader.load().write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - begun
    return {"rows_per_s": count / seconds, "seconds_s": seconds} | charged(broker, before, count)


def write(engine: Engine, form: str, broker: Broker) -> Figures:
    """The rows into a new topic."""
    rows = engine.rows
    count = int(WRITTEN_ROWS * engine.share)
    with broker.topic(PARTITIONS) as topic:
        writer = rows.write.format(form).mode("append").option("topic", topic)
        before, begun = broker.cpu_seconds(), time.monotonic()
        writer.option("kafka.bootstrap.servers", broker.bootstrap).save()
        seconds = time.monotonic() - begun
        figures = {"rows_per_s": count / seconds, "seconds_s": seconds}
        return figures | charged(broker, before, count)


def exactly_once(engine: Engine, broker: Broker) -> Figures:
    """Our sink, right after the stock one: `to_stock_ratio` is of the two beside each other."""
    if not broker.name.startswith(US):
        raise Skipped("the exactly-once sink needs a Penstock")
    stock = write(engine, "kafka", broker)["rows_per_s"]
    figures = write(engine, "penstock", broker)
    return figures | {
        "stock_rows_per_s": stock,
        "to_stock_ratio": figures["rows_per_s"] / stock,
    }


def cases(engine: Engine) -> list[Case]:
    def case(name: str, run: partial[Figures]) -> Case:
        return Case(
            name=f"spark/{name}/{SIZE}B/{PARTITIONS}p",
            headline="rows_per_s",
            run=lambda broker: run(engine.beside(broker)),
            rounds=ROUNDS,
        )

    return [
        case("read", partial(read, engine, {})),
        case("read-quick", partial(read, engine, {"kafka.fetch.max.wait.ms": "10"})),
        case("write", partial(write, engine, "kafka")),
        case("exactly-once", partial(exactly_once, engine)),
    ]

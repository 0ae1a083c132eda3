"""Penstock for Spark users: an exactly-once sink to topics, and the pipelines that run on it.

    from penstock.spark import PenstockDataSource
    spark.dataSource.register(PenstockDataSource)
    frame.writeStream.format("penstock").option("kafka.bootstrap.servers", …).option("topic", …)

Self-contained, since it travels to executors: it must not know any room of the server. PySpark is
imported when the data source is asked for, not before: `penstock pipeline jars` runs without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.source import PenstockDataSource

__all__ = ["PenstockDataSource"]


def __getattr__(name: str) -> Any:
    if name == "PenstockDataSource":
        from penstock.spark.source import PenstockDataSource

        return PenstockDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

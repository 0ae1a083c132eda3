"""The lake: how records of topics lie in it, what is committed there, what was left behind.

A Parquet lake is a directory that Spark's file sink writes: `topic=…/date=…/*.parquet`, and a log
of the files that are committed (`_spark_metadata`); a Delta lake is a table. Knows Spark and
Hadoop's file systems, so that a path may be any URI that Spark knows; must not know a broker.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = (
    "partition INT, offset BIGINT, timestamp TIMESTAMP, timestamp_type INT, key BINARY,"
    " value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, topic STRING, date DATE"
)
FOLDERS: Final = ("topic", "date")
METADATA: Final = "_spark_metadata"
CHECKPOINT: Final = "_checkpoint"  # readers pass over names that begin with an underscore


def as_lake_rows(frame: DataFrame) -> DataFrame:
    """Out of what the Kafka source gives. date: of the record's timestamp, in UTC."""
    from pyspark.sql import functions as f

    return frame.select(
        "partition",
        "offset",
        "timestamp",
        f.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        "topic",
        f.to_date("timestamp").alias("date"),
    )


def read_lake(spark: SparkSession, path: str, form: str) -> DataFrame:
    """Everything committed."""
    reader = spark.read.format(form)
    return (reader.schema(SCHEMA) if form == "parquet" else reader).load(path)


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or directory of this name."""
    place, files = _file_system(spark, path)
    return bool(files.exists(place))


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """A file as a whole, in place of one that may be there."""
    place, files = _file_system(spark, path)
    written = files.create(place, True)
    try:
        written.write(bytearray(text.encode()))
    finally:
        written.close()


def remove_leftovers(spark: SparkSession, path: str) -> int:
    """Removes files that a killed run wrote and did not commit; how many there were.

    Spark does not read them, but others would who look at the files only. Nobody else may be
    writing to the lake.
    """
    if not exists(spark, f"{path}/{METADATA}"):
        return 0
    committed = {_plain(name) for name in read_lake(spark, path, "parquet").inputFiles()}
    place, files = _file_system(spark, path)
    listing = files.listFiles(place, True)
    there = {}
    while listing.hasNext():
        file = listing.next().getPath()
        there[_plain(str(file.toString()))] = file
    if not committed <= there.keys():  # names are not what we take them for: touch nothing
        return 0
    left = [
        file
        for name, file in there.items()
        if name not in committed
        and re.search(r"/topic=[^/]+/date=[^/]+/part-[^/]+\.parquet$", name)
    ]
    for file in left:
        files.delete(file, False)
    return len(left)


def _plain(uri: str) -> str:
    """A URI as it can be compared: `file:///a` and `file:/a` are one, `%3D` is `=`."""
    scheme, colon, rest = unquote(uri).partition(":")
    return f"{scheme}:/{rest.lstrip('/')}" if colon else f"/{scheme.lstrip('/')}"


def _file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's path, and the file system it lies in."""
    context: Any = spark.sparkContext
    place = context._jvm.org.apache.hadoop.fs.Path(path)
    return place, place.getFileSystem(context._jsc.hadoopConfiguration())

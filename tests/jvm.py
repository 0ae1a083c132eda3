"""JVMs of tests live for seconds: they start with classes that are parsed and verified already.

The first process with a Spark writes an archive of its classes (`java -XX:ArchiveClassesAtExit`,
JEP 350) into `.cache/` of the checkout; every later one maps it, which halves a driver's start. A
JVM that has no use for an archive, being another one, goes on without. Must not know a test.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

CACHE = Path(__file__).parents[1] / ".cache" / "java"
# The optimising compiler would cost more than it gives: two fifths of a Spark driver's CPU.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
WITHIN_S = 300.0

# Touches what the tests' drivers do: SQL, Parquet, Python workers, the connector, a stream.
_TRAINING = """
import sys, tempfile
from pyspark.sql import SparkSession, functions as F
jars, directory = sys.argv[1], tempfile.mkdtemp(dir=sys.argv[2])
settings = {
    "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.jars": jars,
    "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
    "spark.local.dir": directory + "/local",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.createDataFrame([(n, str(n)) for n in range(20)], "key long, value string")
rows.write.partitionBy("key").parquet(directory + "/rows")
spark.read.parquet(directory + "/rows").groupBy("key").agg(F.max("value")).orderBy("key").collect()
rows.rdd.map(lambda row: row.key).collect()
if jars:
    kafka = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "none"}
    spark.readStream.format("kafka").options(**kafka).load().isStreaming
counts = spark.readStream.format("rate").load().groupBy("value").count().writeStream
counts = counts.foreachBatch(lambda batch, number: batch.collect()).outputMode("update")
counts.trigger(availableNow=True).start(checkpointLocation=directory + "/stream").awaitTermination()
spark.stop()
"""


@cache
def use_class_archive() -> None:
    """Has every Spark that this process starts use the archive; makes it where it is missing.

    Safe to call from several processes at once: the first makes it, the others wait for it.
    """
    import pyspark

    from penstock.spark.jars import JarsUnavailable, connector_jars

    try:
        jars = ",".join(map(str, connector_jars()))
    except JarsUnavailable:
        jars = ""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    version = subprocess.run([java, "-version"], capture_output=True, check=False).stderr
    made_of = "\n".join([pyspark.__file__, pyspark.__version__, version.decode(), jars, _TRAINING])
    archive = CACHE / f"spark-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}.jsa"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive, jars)
    if archive.exists():
        os.environ["SPARK_SUBMIT_OPTS"] = f"{SHORT_LIVED} -XX:SharedArchiveFile={archive}"


def _make(archive: Path, jars: str) -> None:
    """Where it cannot be made the tests only take longer."""
    unfinished = archive.with_suffix(".part")
    options = f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={unfinished}"
    with tempfile.TemporaryDirectory() as directory:
        try:
            subprocess.run(
                [sys.executable, "-c", _TRAINING, jars, directory],
                env={**os.environ, "SPARK_SUBMIT_OPTS": options},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=WITHIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:  # a busy machine
            unfinished.unlink(missing_ok=True)
    if unfinished.exists():
        unfinished.rename(archive)

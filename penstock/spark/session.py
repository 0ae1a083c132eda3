"""What Spark needs before it starts: a Java, the Python of its workers, the connector's jars.

Knows environment variables and Spark's settings; must not know a pipeline. Nothing of PySpark is
imported until a session is made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.spark.jars import JarsUnavailable, Unready, connector_jars, with_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JarsUnavailable", "JavaMissing", "SparkMissing", "Unready", "find_java", "session"]

MINIMUM_JAVA: Final = 17  # Spark 4's

# One process on this machine: nobody else can reach it, and little things stay quick.
LOCAL: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
}


class JavaMissing(Unready):
    """No Java that Spark can run on."""


class SparkMissing(Unready):
    """PySpark is not installed."""


def find_java() -> Path:
    """The java that Spark will start: $JAVA_HOME's, else the PATH's. Raises JavaMissing."""
    home = os.environ.get("JAVA_HOME")
    if home:
        found = Path(home, "bin", "java")
        if not found.is_file():
            raise JavaMissing(f"JAVA_HOME is {home}, where there is no bin/java.")
    elif on_path := shutil.which("java"):
        found = Path(on_path)
    else:
        raise JavaMissing(
            f"No Java was found: Spark needs Java {MINIMUM_JAVA} or later (a package such as "
            f"openjdk-{MINIMUM_JAVA}-jre-headless; set JAVA_HOME if it is not on the PATH)."
        )
    version = java_version(found)
    if version < MINIMUM_JAVA:
        shown = f"Java {version}" if version else "no Java that tells its version"
        raise JavaMissing(f"{found} is {shown}: Spark needs Java {MINIMUM_JAVA} or later.")
    return found


def java_version(java: Path) -> int:
    """The first number of a Java's version, 0 if it does not tell."""
    try:
        shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', shown.stderr)
    return int(found[1]) if found else 0


def prepare_environment() -> None:
    """Sets PYSPARK_PYTHON and PYSPARK_DRIVER_PYTHON where they are not set.

    Workers must run the Python that this is, with its packages. Raises Unready.
    """
    if util.find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed: pip install 'penstock[spark]'.")
    find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def session(
    name: str, master: str | None = None, *, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The running session, else a new one with the connector's jars on its class path.

    master: default what spark-submit says, else local[*]. settings: further ones of Spark's; jars
    among them are added to. Raises Unready.
    """
    prepare_environment()
    from pyspark.sql import SparkSession

    if running := SparkSession.getActiveSession():
        return running
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM with its settings
        return SparkSession.builder.appName(name).getOrCreate()
    chosen = dict(settings or {})
    where = master or chosen.get("spark.master") or "local[*]"
    chosen |= with_jars(chosen, "spark-sql-kafka-0-10", connector_jars)
    if python := chosen.get("spark.pyspark.python"):  # PySpark itself looks at the environment only
        os.environ["PYSPARK_PYTHON"] = python
    if where.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen = {**LOCAL, **chosen}
    builder = SparkSession.builder.appName(name)
    for key, value in {**chosen, "spark.master": where}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()

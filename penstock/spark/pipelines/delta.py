"""What Spark needs to write and read Delta tables: two jars and two settings.

Knows Delta's coordinates; must not know what is in a table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.spark.jars import (
    SCALA,
    Artifact,
    Source,
    default_cache,
    installed_spark,
    with_jars,
)

VERSION: Final = "4.4.0"
LOG: Final = "_delta_log"

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "4",  # of a table's own log; 50 by default
}


def settings(given: Mapping[str, str], *, cache: Path | None = None) -> dict[str, str]:
    """`given`, and what it lacks. Jars are found, or fetched as the connector's are.

    Raises penstock.spark.jars.JarsUnavailable.
    """
    return {
        **_SETTINGS,
        **given,
        **with_jars(given, "delta-spark", lambda: delta_jars(cache=cache)),
    }


def delta_jars(*, cache: Path | None = None) -> list[Path]:
    """Those for the installed Spark, out of the cache once they are there."""
    line = ".".join(installed_spark().split(".")[:2])
    artifacts = (
        Artifact("io.delta", f"delta-spark_{line}_{SCALA}", VERSION),
        Artifact("io.delta", "delta-storage", VERSION),
    )
    directory = (cache or default_cache()) / f"delta-{line}-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    jars = []
    for artifact in artifacts:
        jar = directory / artifact.file_name()
        if not jar.is_file():
            with tempfile.TemporaryDirectory(prefix=".part-", dir=directory) as unfinished:
                source = Source(Path(unfinished), offline=False)
                found = source.get(source.first([artifact]), "jar")
                assert found is not None  # first() has seen it
                part = Path(unfinished, "whole.jar")
                part.write_bytes(found.read_bytes())
                part.rename(jar)
        jars.append(jar.resolve())
    return jars

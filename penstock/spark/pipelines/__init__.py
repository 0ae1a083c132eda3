"""Pipelines on Spark: PySpark applications, each a module with `main(argv)`.

`penstock pipeline NAME …` runs them, `python -m penstock.spark.pipelines.NAME …` and `spark-submit`
do too. They know Spark, a broker's address and a path that Spark can write to; must not know the
server.
"""

from collections.abc import Mapping
from typing import Final

# name (of the command and of its module) -> what it does, in a line
PIPELINES: Final[Mapping[str, str]] = {
    "transform": "From topics to a topic through SQL or a Python function, exactly once.",
    "archive": "Topics to a Parquet lake, each record once.",
    "replay": "From such a lake back into a topic, all of it or nothing.",
    "audit": "A report in HTML on what happened in topics: throughput, aborts, gaps, duplicates.",
}

"""A pipeline as an application: the session it runs in, what a cluster needs of it, its exit code.

Knows how Spark is started; must not know what a pipeline does.
"""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.spark.pipelines import delta
from penstock.spark.pipelines.options import PipelineFailed
from penstock.spark.pipelines.terminal import Terminal
from penstock.spark.session import Unready, prepare_environment, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")

INTERRUPTED: Final = 130

_SETTINGS: Final = {
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",  # our own lines would be torn
    "spark.sql.streaming.numRecentProgressUpdates": "100",  # between two looks
}


def run_in_session(
    name: str,
    arguments: Namespace,
    job_of: Callable[[Namespace], Job],
    run: Callable[[SparkSession, Job, Terminal], None],
) -> int:
    """Runs the job, in the session there is or in one of its own; says what went wrong. The exit
    code.

    job_of: looks at what can be known to be wrong without Spark, which takes seconds to start.
    """
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    terminal = Terminal()
    own: SparkSession | None = None
    try:
        prepare_environment()
        job = job_of(arguments)
        spark = running_session()
        if spark is None:
            settings = _settings(arguments)
            with terminal.waiting("Starting Spark"):
                own = spark = session(f"penstock {name}", _master(arguments), settings=settings)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        send_to_workers(spark)
        run(spark, job, terminal)
    except Unready as unready:
        terminal.complain(str(unready))
        return 2
    except PipelineFailed as failed:
        terminal.complain(str(failed))
        return failed.exit_code
    except Exception as error:
        if (refusal := _refused_by_spark(error)) is None:
            raise
        terminal.complain(refusal)
        return 1
    except KeyboardInterrupt:
        terminal.complain("Interrupted.")
        return INTERRUPTED
    finally:
        if own is not None:
            own.stop()
    return 0


def _refused_by_spark(error: Exception) -> str | None:
    """What Spark says of an application that it cannot run, without the JVM's stack."""
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    said = re.split(r"\n+(?:JVM stacktrace:|\s+at )", str(error), maxsplit=1)[0]
    return f"Spark refuses: {said.strip()}"


def running_session() -> SparkSession | None:
    """A notebook's, for example: it is used as it is, and left running."""
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _master(arguments: Namespace) -> str:
    """In local mode a task that fails is tried again, as on a cluster."""
    named = arguments.master or dict(arguments.conf).get("spark.master")
    return str(named or "local[*, 4]")


def _settings(arguments: Namespace) -> dict[str, str]:
    given = dict(arguments.conf)
    wants_delta = getattr(arguments, "format", None) == "delta"
    return {**_SETTINGS, **(delta.settings(given) if wants_delta else given)}


# --- the workers of a cluster ---


def send_to_workers(spark: SparkSession) -> None:
    """This package, where the workers are not on this machine: the sink runs in them."""
    context = spark.sparkContext
    if re.match(r"local(\[|$)", context.master or ""):
        return
    directory = tempfile.mkdtemp(prefix="penstock-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # workers fetch it until the end
    archive = Path(directory, "penstock-spark.zip")
    zip_package(archive)
    context.addPyFile(str(archive))


def zip_package(archive: Path) -> None:
    """`penstock` as Python can import it out of a zip file."""
    root = Path(__file__).parents[3]
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as whole:
        for file in sorted(root.joinpath("penstock").rglob("*.py")):
            whole.write(file, file.relative_to(root))

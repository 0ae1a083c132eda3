"""A pipeline as an application: the session it runs in, what a cluster needs of it, its exit code.

Knows how Spark is started; must not know what a pipeline does.
"""

from __future__ import annotations

import atexit
import re
import shutil
import signal
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.spark.pipelines import delta, interruption
from penstock.spark.pipelines.options import PipelineFailed
from penstock.spark.pipelines.terminal import Terminal
from penstock.spark.session import Unready, prepare_environment, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = TypeVar("Job")

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
    with interruption.heard() as heard:
        try:
            prepare_environment()
            job = job_of(arguments)
            spark = running_session()
            if spark is None:
                with terminal.waiting("Starting Spark"), _left_in_peace(heard) as shall_end:
                    settings = _settings(arguments)
                    own = spark = session(f"penstock {name}", _master(arguments), settings=settings)
                    heard.quieten = partial(_quieten, own)
                    heard.listen()  # PySpark has put its own handler in place
                    if shall_end():
                        raise KeyboardInterrupt
            spark.conf.set("spark.sql.session.timeZone", "UTC")
            send_to_workers(spark)
            run(spark, job, terminal)
        except (Exception, KeyboardInterrupt) as error:
            if (code := _exit_code(error, heard, terminal)) is None:
                raise
            return code
        finally:
            if own is not None:
                own.stop()
    return 0


def _exit_code(
    error: Exception | KeyboardInterrupt, heard: interruption.Interruption, terminal: Terminal
) -> int | None:
    """Says what has ended the pipeline; None for what is no sentence for its user."""
    if heard.number or isinstance(error, KeyboardInterrupt):
        # What was under way fails in many ways then; only the way out that we took says more.
        heard.quieten()
        number = heard.number or signal.SIGINT
        word = "Terminated" if number == signal.SIGTERM else "Interrupted"
        more = str(error) if isinstance(error, KeyboardInterrupt) else ""
        terminal.complain(f"{word}. {more}".rstrip())
        return 128 + number
    if isinstance(error, Unready):
        terminal.complain(str(error))
        return 2
    if isinstance(error, PipelineFailed):
        terminal.complain(str(error))
        return error.exit_code
    if (refusal := _refused_by_spark(error)) is None:
        return None
    terminal.complain(refusal)
    return 1


@contextmanager
def _left_in_peace(heard: interruption.Interruption) -> Iterator[Callable[[], bool]]:
    """While Spark starts: a JVM whose beginning is cut off may stay, and nobody knows of it."""
    with heard.asked_for() as shall_end, interruption.told_to_this_process_only():
        yield shall_end


def _quieten(spark: SparkSession) -> None:
    """Spark's log, and what reports that a connection of the JVM's ends; the JVM may be gone."""
    context: Any = spark.sparkContext
    with suppress(Exception):
        context._accumulatorServer.handle_error = lambda request, address: None
    with suppress(Exception):
        context.setLogLevel("OFF")


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
    """`penstock.spark` as Python can import it out of a zip file; nothing of the server."""
    root = Path(__file__).parents[3]
    package = root / "penstock"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as whole:
        for file in (package / "__init__.py", *sorted(package.joinpath("spark").rglob("*.py"))):
            whole.write(file, file.relative_to(root))

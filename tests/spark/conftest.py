"""One Spark for all tests of a session, in local mode; skipped, and said why, where it cannot run.

`spark` is the session, with the connector's jars where they can be had. `make_topic` makes topics
in the session's gateway. Must not know what is run on it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Gateway, open_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MakeTopic = Callable[..., str]

# A task may fail three times before its job does, as on a cluster.
MASTER = "local[2, 4]"
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Short lives on two cores: compiling well would cost more than it gives.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def unavailable() -> str | None:
    """Why there can be no Spark here; None if there can."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "needs Java 17 or later on the PATH"
    try:
        import pyspark  # noqa: F401 - only whether it is there
    except ImportError:
        return "needs pyspark: pip install 'penstock[spark]'"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks everything here; skips it where Spark cannot run; allows for the JVM's start."""
    here = f"{Path(__file__).parent}{os.sep}"
    reason = unavailable()
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker("spark")
            # It says that some features may not work; those that are used here do.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900))
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@contextmanager
def spark_session(directory: Path, **settings: str) -> Iterator[SparkSession]:
    """A Spark of this process's own. directory: for all that it writes."""
    from pyspark.sql import SparkSession

    # The workers are this Python; they find this very `penstock`.
    root = str(Path(__file__).parents[2])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    )
    builder = SparkSession.builder.master(MASTER).appName("penstock-tests")
    places = {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    for name, value in {**SETTINGS, **places, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def connector_settings() -> dict[str, str]:
    """Spark's setting for the jars of the stock connector; none where they cannot be had."""
    from penstock.spark.jars import JarsUnavailable, connector_jars

    try:
        return {"spark.jars": ",".join(map(str, connector_jars()))}
    except JarsUnavailable:
        return {}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session's Spark."""
    with (
        open_directory() as directory,
        spark_session(directory, **connector_settings()) as session,
    ):
        yield session


@pytest.fixture(scope="session")
def session_admin(gateway: Gateway) -> AdminClient:
    """librdkafka's admin client, kept for the session."""
    return AdminClient({"bootstrap.servers": gateway.bootstrap})


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name no other test uses, not yet a topic."""
    words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")
    return f"{words[:60]}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make_topic(session_admin: AdminClient, topic_name: str) -> MakeTopic:
    """Creates topics in the session's gateway: `make_topic(partitions=4)`.

    They keep what is older than a week: records of long ago are not deleted under a test.
    """
    count = 0

    def make(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        nonlocal count
        count += 1
        name = f"{topic_name}-{count}"
        settings = {"retention.ms": "-1", **(config or {})}
        new = NewTopic(name, num_partitions=partitions, config=settings, replication_factor=1)
        session_admin.create_topics([new])[name].result(20)
        return name

    return make


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A place for a query's checkpoint."""
    return str(tmp_path / "checkpoint")

"""pytest's plugin: the fixtures `penstock`, `penstock_topic` and `penstock_session`.

Loaded in every test run where Penstock is installed, so nothing is imported or started before a
test asks. Beside pytest-xdist each worker has a broker of its own: no worker has to outlive the
others, one that is killed takes its broker along, and tests cannot see each other's groups.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock.testing import Broker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --penstock-keep."""
    parser.getgroup("penstock").addoption(
        "--penstock-keep",
        metavar="DIR",
        help="Keep the broker's data, and all topics, in DIR: look with `penstock serve --data`.",
    )


def _kept(config: pytest.Config) -> Path | None:
    directory = config.getoption("--penstock-keep")
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    return Path(directory, worker).absolute() if directory else None


@pytest.fixture(scope="session", name="penstock_session")
def _session(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """The test run's broker, for fixtures of a wider scope than a test; it is never cleaned."""
    from penstock.testing import broker

    with broker(keep=_kept(pytestconfig)) as running:
        yield running


@pytest.fixture(name="penstock")
def _clean(penstock_session: Broker, pytestconfig: pytest.Config) -> Iterator[Broker]:
    """The test run's broker; topics and groups that the test made are gone after it."""
    with nullcontext() if _kept(pytestconfig) else penstock_session.clean():
        yield penstock_session


@pytest.fixture(name="penstock_topic")
def _topic(penstock: Broker, request: pytest.FixtureRequest) -> str:
    """The name of a new topic with one partition, of this test alone."""
    return penstock.create_topic(request.node.name)

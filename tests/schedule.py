"""Shares the tests among the workers of pytest-xdist: what takes longest begins first.

A unit is what one worker runs in a piece: a module, so that what a module makes is made once; a
single test where tests are long and share nothing; several modules that share what is costly (a
Spark), or that would starve each other. Must not know what a test is about.
"""

from __future__ import annotations

from typing import Any

# One worker, one after the other: what shares a Spark or other clients' processes, and what would
# starve the other tests if all of it ran at once. The longest begin first.
TOGETHER = {
    "tests/demo/test_pipeline.py": "Spark: drivers",
    "tests/spark/test_pipelines_delta.py": "Spark: drivers",
    "tests/spark/test_cluster.py": "Spark: faults",
    "tests/spark/test_sink_faults.py": "Spark: faults",
    "tests/spark/": "Spark: one session",
    "tests/compat/test_spark": "Spark: one session",
    "tests/compat/pulsar/test_every_": "Pulsar: a JVM, a program in Go, a broker",
}

# Modules whose tests are long, most of it waiting, and share nothing: each goes to any worker.
APART = (
    "tests/faults/",
    "tests/demo/test_flights.py",
    "tests/demo/test_sql.py",
    "tests/bench/test_least.py",
    "tests/cli/",
    "tests/gateway/test_event_loop.py",
    "tests/storage/server/test_embedded.py",
    "tests/storage/flush/test_handover.py",
    "tests/storage/test_transactions_crash.py",
)

# What takes longest, by its paths' beginnings; everything else follows as it comes.
FIRST = (
    *TOGETHER,
    "tests/faults/test_t",
    "tests/faults/",
    *APART,
    "tests/compat/test_groups_java.py",
    "tests/compat/",
    "tests/storage/",
    "tests/gateway/",
)


def unit_of(nodeid: str) -> str:
    """The unit that a test belongs to."""
    module = nodeid.partition("::")[0]
    for beginning, together in TOGETHER.items():
        if module.startswith(beginning):
            return together
    return nodeid if module.startswith(APART) else module


def place_of(nodeid: str) -> int:
    """Which tests begin earlier: those of a lower number."""
    places = (place for place, beginning in enumerate(FIRST) if nodeid.startswith(beginning))
    return next(places, len(FIRST))


def scheduler(config: Any, log: Any) -> Any:
    """xdist's own for modules, with our units, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)

"""Start-up and stop: the first time on an empty directory, then again; memory when just started."""

from __future__ import annotations

import time

from bench.brokers import Broker, scratch_directory
from bench.case import Case, Figures, Skipped
from bench.macro.idle import memory
from penstock.testing import broker as in_a_test


def start_twice(broker: Broker) -> Figures:
    """A second broker of the kind, until it answers Metadata; its memory, idle for two seconds."""
    if broker.another is None:
        raise Skipped("started by somebody else")
    with scratch_directory() as scratch:
        with broker.another(scratch / "broker") as (fresh, first_s):
            time.sleep(2)
            idle = memory(fresh, "idle")
            stopping = time.monotonic()
        stop_s = time.monotonic() - stopping
        with broker.another(scratch / "broker") as (_, later_s):
            pass
    return {"first_s": first_s, "later_s": later_s, "stop_s": stop_s} | idle


def start_in_a_test(broker: Broker) -> Figures:
    """`penstock.testing.broker()`, as a test has it: until it is there, and until it is gone."""
    if broker.another is None or broker.database_url is None:
        raise Skipped("a broker for tests is Penstock's")
    with in_a_test():  # the first one makes the cluster that others copy
        pass
    starting = time.monotonic()
    with in_a_test():
        up_s = time.monotonic() - starting
        stopping = time.monotonic()
    return {"up_s": up_s, "gone_s": time.monotonic() - stopping}


def cases(share: float) -> list[Case]:
    """Nothing here scales with `share`."""
    return [
        Case("start/first-and-later", "later_s", start_twice, rounds=2, quick=True),
        Case("start/in-a-test", "up_s", start_in_a_test, rounds=3, quick=True),
    ]

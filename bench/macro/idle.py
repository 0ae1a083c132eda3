"""What a broker costs that does nothing: its memory, and that of idle connections."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped
from bench.clients import run_workers
from bench.processes import may_open

CONNECTIONS = (100, 1_000, 5_000)
WATCHED_S = 5.0

# ApiVersions v0, correlation id 1, no client id: what any client says first.
_API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def memory(broker: Broker, label: str) -> Figures:
    """Each group's sums, as figures named `<group>_<label>_<kind>_mb`."""
    return {
        f"{name}_{label}_{kind}_mb": value
        for name, group in broker.processes.items()
        for kind, value in asdict(group.memory()).items()
    }


def idle_cpu(broker: Broker, label: str) -> Figures:
    """CPU of each group over some seconds, in percent of one core."""
    before, begun = broker.cpu_seconds(), time.monotonic()
    time.sleep(WATCHED_S)
    elapsed = time.monotonic() - begun
    return {
        f"{name}_{label}_cpu_percent": 100 * (after - before[name]) / elapsed
        for name, after in broker.cpu_seconds().items()
    }


@contextlib.contextmanager
def idle_connections(bootstrap: str, count: int) -> Iterator[None]:
    """`count` sockets, each of which has asked ApiVersions once and then says nothing."""
    may_open(count)
    host, port = bootstrap.rsplit(":", 1)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            connection = socket.create_connection((host, int(port)), timeout=10)
            stack.callback(connection.close)
            connection.sendall(_API_VERSIONS)
            size = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
            connection.recv(size, socket.MSG_WAITALL)
        yield


def connected(connections: int, seconds: float, broker: Broker) -> Figures:
    """Memory and CPU with and without them, and a record's acknowledgement beside them."""
    if not broker.processes:
        raise Skipped("the broker's process ids are not known (--pid)")
    figures = memory(broker, "alone") | idle_cpu(broker, "alone")
    with idle_connections(broker.bootstrap, connections):
        figures |= memory(broker, "connected") | idle_cpu(broker, "connected")
        with broker.topic(1) as topic:
            probe = run_workers(
                "ack_confluent", bootstrap=broker.bootstrap, topic=topic, seconds=seconds
            )
        figures["ack_p50_ms"] = probe["p50_ms"]
    front = next(iter(broker.processes))  # the group that holds the sockets
    more = figures[f"{front}_connected_pss_mb"] - figures[f"{front}_alone_pss_mb"]
    return figures | {"connection_kb_each": 1_000 * more / connections}


def cases(share: float) -> list[Case]:
    """`share` scales the time of the latency probe."""
    return [
        Case(
            f"idle/{count}-connections",
            "connection_kb_each",
            partial(connected, count, 2 * share),
            rounds=1,
            long=count > 1_000,
        )
        for count in CONNECTIONS
    ]

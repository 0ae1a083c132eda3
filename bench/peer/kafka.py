"""Starts and stops an Apache Kafka (KRaft, one node, both roles) from the jars of compat/java.

Knows Kafka's settings; must not know any case. One JVM serves both durabilities, because
`flush.messages` belongs to the topic: `nosync` (Kafka's default: the page cache is the log) and
`sync` (fsync before the acknowledgement, what a COMMIT gives).
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.brokers import Broker, wait_until_ready
from bench.processes import ProcessGroup, free_port, stop_process
from compat.java.tools import java_command, java_tool

TOPIC_CONFIG = {"nosync": {}, "sync": {"flush.messages": "1"}}

# What Kafka's own start script passes.
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)


def server_properties(port: int, controller_port: int, logs: Path) -> str:
    """A `server.properties`: defaults, but for addresses, single-node factors and quick deletes."""
    return "\n".join(
        [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{controller_port}",
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=PLAINTEXT",
            "offsets.topic.replication.factor=1",
            "offsets.topic.num.partitions=4",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "transaction.state.log.num.partitions=4",
            "log.segment.delete.delay.ms=1000",
            f"log.dirs={logs}",
            "",
        ]
    )


@contextlib.contextmanager
def started_kafka(
    home: Path,
    durabilities: list[str],
    heap: str = "2g",
    settings_beside: Mapping[str, str] | None = None,
    port: int | None = None,
    controller_port: int | None = None,
) -> Iterator[tuple[list[Broker], float]]:
    """One Kafka with its log under `home`.

    settings_beside: further lines of its server.properties; of two about one property the later
    counts. port, controller_port: of loopback, else free ones. Yields a Broker for each of
    `durabilities` ("nosync", "sync") and the start-up time in seconds (formatting not counted);
    stops the JVM afterwards. Raises JavaUnavailable.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    settings = home / "server.properties"
    further = "".join(f"{name}={value}\n" for name, value in (settings_beside or {}).items())
    own = server_properties(port, controller_port or free_port(), home / "log")
    settings.write_text(own + further)
    if not (home / "log").exists():
        cluster_id = "cGVuc3RvY2stYmVuY2gtMQ"  # any 16 bytes in base64
        java_tool("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", settings)
    output = home / "server.log"
    with output.open("w") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            java_command("kafka.Kafka", settings, heap=heap, jvm=(*JVM, f"-Xms{heap}")),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        bootstrap = f"127.0.0.1:{port}"
        try:
            wait_until_ready(bootstrap, process, patience_s=60)
        except (RuntimeError, TimeoutError) as failed:
            raise RuntimeError(f"{failed}; it said:\n{output.read_text()[-3000:]}") from None
        start_up_s = time.monotonic() - begun
        server = {"server": ProcessGroup(process.pid)}
        brokers = [
            Broker(f"kafka-{name}", bootstrap, server, TOPIC_CONFIG[name], another=another_kafka)
            for name in durabilities
        ]
        yield brokers, start_up_s
    finally:
        stop_process(process)


@contextlib.contextmanager
def another_kafka(home: Path) -> Iterator[tuple[Broker, float]]:
    """A Kafka beside the one that runs, in a smaller heap, to see it start."""
    with started_kafka(home, ["nosync"], heap="512m") as ([broker], start_up_s):
        yield broker, start_up_s

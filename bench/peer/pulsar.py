"""Starts and stops an Apache Pulsar (standalone: broker and bookie in one JVM) from Maven's jars.

Knows Pulsar's settings and what of its REST makes topics; must not know any case. Metadata is in
RocksDB, without ZooKeeper. `sync` syncs the bookie's journal before a message is confirmed, as a
COMMIT does; `nosync` does not, as in the settings that Pulsar's standalone comes with.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib import error, request

from bench.brokers import Broker, new_topic_name
from bench.processes import ProcessGroup, free_port, stop_process
from compat.java.tools import java_command

POM = Path(__file__).with_name("pulsar.pom.xml")

DURABILITIES = {"sync": "true", "nosync": "false"}

# What Pulsar's own start script passes, but for the collector: on two cores G1 lets it write more
# than ZGC does.
JVM = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxDirectMemorySize=2g",
    *(
        f"--add-opens={package}=ALL-UNNAMED"
        for package in (
            "java.base/java.io",
            "java.base/java.lang",
            "java.base/java.nio",
            "java.base/java.util.zip",
            "java.base/jdk.internal.misc",
            "java.base/sun.net",
            "java.management/sun.management",
        )
    ),
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Djava.net.preferIPv4Stack=true",
    *(
        f"-Dbookkeeper.metadata.{kind}.drivers=org.apache.pulsar.metadata.bookkeeper.{driver}"
        for kind, driver in (
            ("bookie", "PulsarMetadataBookieDriver"),
            ("client", "PulsarMetadataClientDriver"),
        )
    ),
)


class PulsarBroker(Broker):
    """A Broker whose topics are made by Pulsar's REST, at `bootstrap`."""

    @contextlib.contextmanager
    def topic(self, partitions: int) -> Iterator[str]:
        """A new topic of its own, deleted afterwards; one of one partition is a plain one, as it is
        to Pulsar's clients at Penstock."""
        name = new_topic_name()
        rest = f"http://{self.bootstrap}/admin/v2/persistent/public/default/{name}"
        if partitions > 1:
            rest += "/partitions"
            _call("PUT", rest, partitions)
        else:
            _call("PUT", rest)
        try:
            yield name
        finally:
            _call("DELETE", f"{rest}?force=true")


def _call(method: str, url: str, body: int | None = None) -> None:
    """One call of the REST interface. Raises OSError with what it said."""
    data = None if body is None else json.dumps(body).encode()
    call = request.Request(
        url, method=method, data=data, headers={"Content-Type": "application/json"}
    )
    try:
        with request.urlopen(call, timeout=60):
            pass
    except error.HTTPError as refused:
        raise OSError(f"{method} {url}: {refused.code} {refused.read()[:300]!r}") from None


def settings(port: int, web_port: int, journal_sync: str) -> str:
    """A `standalone.conf`: its own values, but for addresses, the journal, and that what is read
    stays, so that it can be read again."""
    return "\n".join(
        [
            "clusterName=standalone",
            f"brokerServicePort={port}",
            f"webServicePort={web_port}",
            "bindAddress=127.0.0.1",
            "advertisedAddress=127.0.0.1",
            "allowLoopback=true",
            "listeningInterface=lo",
            "managedLedgerDefaultEnsembleSize=1",
            "managedLedgerDefaultWriteQuorum=1",
            "managedLedgerDefaultAckQuorum=1",
            "loadBalancerEnabled=false",
            "loadManagerClassName=org.apache.pulsar.broker.loadbalance.NoopLoadManager",
            "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "nettyMaxFrameSizeBytes=5253120",
            "flushInterval=60000",
            "journalMaxGroupWaitMSec=1",
            f"journalSyncData={journal_sync}",
            "diskUsageThreshold=0.99",
            "diskUsageWarnThreshold=0.99",
            "brokerDeleteInactiveTopicsEnabled=false",
            "defaultRetentionTimeInMinutes=600",
            "defaultRetentionSizeInMB=-1",
            "webSocketServiceEnabled=false",
            "transactionCoordinatorEnabled=true",
            "",
        ]
    )


@contextlib.contextmanager
def started_pulsar(
    home: Path, durability: str, heap: str = "1g"
) -> Iterator[tuple[PulsarBroker, float]]:
    """One Pulsar on free loopback ports with its data under `home`.

    durability: "sync" or "nosync". Yields it with its start-up time in seconds; stops the JVM
    afterwards. Raises JavaUnavailable.
    """
    home.mkdir(parents=True, exist_ok=True)
    port, web_port = free_port(), free_port()
    conf = home / "standalone.conf"
    conf.write_text(settings(port, web_port, DURABILITIES[durability]))
    command = java_command(
        "org.apache.pulsar.PulsarStandaloneStarter",
        *("--config", conf),
        *("--metadata-dir", home / "metadata"),
        *("--bookkeeper-dir", home / "bookkeeper"),
        *("--bookkeeper-port", free_port()),
        *("--no-functions-worker", "--no-stream-storage"),
        *("--advertised-address", "127.0.0.1"),
        heap=heap,
        jvm=(*JVM, f"-Xms{heap}"),
        pom=POM,
    )
    output = home / "server.log"
    with output.open("w") as log:
        begun = time.monotonic()
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=home,
        )
    try:
        try:
            _wait_until_healthy(web_port, process, patience_s=180)
        except (RuntimeError, TimeoutError) as failed:
            raise RuntimeError(f"{failed}; it said:\n{output.read_text()[-3000:]}") from None
        yield (
            PulsarBroker(
                f"pulsar-{durability}",
                f"127.0.0.1:{web_port}",
                {"server": ProcessGroup(process.pid)},
                serves=("pulsar/*",),
                pulsar_url=f"pulsar://127.0.0.1:{port}",
            ),
            time.monotonic() - begun,
        )
    finally:
        stop_process(process)


def _wait_until_healthy(web_port: int, process: subprocess.Popen[str], patience_s: float) -> None:
    """Until it has sent itself a message, as its health check does."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"Pulsar ended with {process.returncode} while starting")
        with contextlib.suppress(OSError):
            _call("GET", f"http://127.0.0.1:{web_port}/admin/v2/brokers/health")
            return
        time.sleep(0.2)
    raise TimeoutError(f"Pulsar was not healthy within {patience_s} s")

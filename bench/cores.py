"""What a host with more cores than ours would give: a simulation, `python -m bench.cores --help`.

Brokers, one core at a time each, over one PostgreSQL, a session a broker for its flushes, on a host
with so many cores and one disk for the WAL. Clients are elsewhere, and always have more to send.
Costs are those that were measured on two cores (bench/README.md says where); what cannot be seen on
two is not in it: caches, memory bandwidth, and locks that more than a few sessions want at once.
Must not know PostgreSQL or Kafka beyond these numbers.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

SLICE_S: Final = 0.001
"""After so long on a core, whoever waits for one has a turn."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one load.

    gateway_us, postgres_us: CPU a record. commit_us: CPU of PostgreSQL for a flush whatever its
    size. record_bytes; wal_share: bytes of WAL for each byte of records. sync_s: of the disk, at
    least; disk_mb_per_s: what it takes in all, WAL and, later, pages. request_records: in a
    request. flush_bytes: most in a flush. window_records: of all clients of a broker, on the way at
    once.
    """

    gateway_us: float
    postgres_us: float
    commit_us: float
    record_bytes: int = 1_000
    wal_share: float = 1.1
    sync_s: float = 0.0002
    disk_mb_per_s: float = 1_000.0
    request_records: int = 64
    flush_bytes: int = 4 * 2**20
    window_records: int = 8_192


@dataclass(frozen=True, slots=True)
class Result:
    """records_per_s; the share of the time for which the cores were busy, and the disk; how many
    commits a sync of the disk served."""

    records_per_s: float
    cores_busy: float
    disk_busy: float
    commits_a_sync: float


class _Host:
    """Events in the order of time, cores, and the disk's syncs."""

    def __init__(self, cores: int, costs: Costs) -> None:
        self.now = 0.0
        self.core_s = self.disk_s = 0.0
        self.syncs = self.commits = 0
        self._costs = costs
        self._free_cores = cores
        self._ready: deque[tuple[float, Callable[[], None]]] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._committing: list[tuple[float, Callable[[], None]]] = []
        self._is_syncing = False

    def run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = end

    def compute(self, seconds: float, then: Callable[[], None]) -> None:
        """On one core, in slices."""
        self._ready.append((seconds, then))
        self._schedule()

    def _schedule(self) -> None:
        while self._free_cores and self._ready:
            self._free_cores -= 1
            left, then = self._ready.popleft()
            piece = min(left, SLICE_S)
            self._after(piece, partial(self._leave, piece, left - piece, then))

    def _leave(self, piece: float, left: float, then: Callable[[], None]) -> None:
        self._free_cores += 1
        self.core_s += piece
        if left > 1e-12:
            self._ready.append((left, then))
        else:
            then()
        self._schedule()

    def commit(self, wal_bytes: float, then: Callable[[], None]) -> None:
        """Done when it is on disk: those that come during a sync share the next one."""
        self._committing.append((wal_bytes, then))
        if not self._is_syncing:
            self._sync()

    def _sync(self) -> None:
        done, self._committing = self._committing, []
        wal_bytes = sum(each for each, _ in done)
        # What is written to WAL is later written to its table, by the same disk.
        written_s = 2 * wal_bytes / (self._costs.disk_mb_per_s * 1e6)
        took_s = max(self._costs.sync_s, written_s)
        self._is_syncing = True
        self._after(took_s, lambda: self._synced(took_s, [then for _, then in done]))

    def _synced(self, took_s: float, done: list[Callable[[], None]]) -> None:
        self._is_syncing = False
        self.disk_s += took_s
        self.syncs += 1
        self.commits += len(done)
        for then in done:
            then()
        if self._committing and not self._is_syncing:
            self._sync()

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._order), event))


class _Broker:
    """Takes requests one after the other, and flushes what has gathered while the last flush was on
    its way."""

    def __init__(self, host: _Host, costs: Costs) -> None:
        self.stored = 0
        self._host = host
        self._costs = costs
        self._asking = costs.window_records // costs.request_records  # requests not yet read
        self._gathered = 0  # records
        self._is_reading = self._is_flushing = False
        self._read()

    def _read(self) -> None:
        if self._asking and not self._is_reading:
            self._asking -= 1
            self._is_reading = True
            seconds = self._costs.request_records * self._costs.gateway_us / 1e6
            self._host.compute(seconds, self._take)

    def _take(self) -> None:
        self._is_reading = False
        self._gathered += self._costs.request_records
        self._flush()
        self._read()

    def _flush(self) -> None:
        if self._is_flushing or not self._gathered:
            return
        self._is_flushing = True
        records = min(self._gathered, self._costs.flush_bytes // self._costs.record_bytes)
        self._gathered -= records
        seconds = (self._costs.commit_us + records * self._costs.postgres_us) / 1e6
        wal_bytes = records * self._costs.record_bytes * self._costs.wal_share
        self._host.compute(
            seconds, lambda: self._host.commit(wal_bytes, lambda: self._stored(records))
        )

    def _stored(self, records: int) -> None:
        self.stored += records
        self._is_flushing = False
        self._asking += records // self._costs.request_records  # their clients send the next ones
        self._flush()
        self._read()


def simulated(cores: int, workers: int, costs: Costs, seconds: float = 1.0) -> Result:
    """After a tenth of that to begin with."""
    host = _Host(cores, costs)
    brokers = [_Broker(host, costs) for _ in range(workers)]
    host.run_until(seconds / 10)
    before = sum(each.stored for each in brokers)
    core_s, disk_s, syncs, commits = host.core_s, host.disk_s, host.syncs, host.commits
    host.run_until(seconds * 1.1)
    return Result(
        records_per_s=(sum(each.stored for each in brokers) - before) / seconds,
        cores_busy=(host.core_s - core_s) / seconds / cores,
        disk_busy=(host.disk_s - disk_s) / seconds,
        commits_a_sync=(host.commits - commits) / max(1, host.syncs - syncs),
    )


# Measured on two cores, 1 kB a record; PostgreSQL's part is split by flushes of two sizes
# (bench/README.md, "A host with many cores").
LOADS: Final = {
    "librdkafka": Costs(gateway_us=1.8, postgres_us=1.5, commit_us=300.0, request_records=256),
    "Java, 16 kB": Costs(gateway_us=9.0, postgres_us=4.0, commit_us=500.0, request_records=64),
}
SECONDS: Final = 4.0
DISKS_MB_PER_S: Final = (500.0, 2_000.0, 6_000.0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cores", description=__doc__)
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    options = parser.parse_args(arguments)
    for name, costs in LOADS.items():
        for disk in DISKS_MB_PER_S:
            print(f"\n{name}, a disk of {disk:,.0f} MB/s")
            print("cores  workers  MB/s  to one worker  cores busy  disk busy  commits a sync")
            on_disk = replace(costs, disk_mb_per_s=disk)
            for cores in options.cores:
                one = simulated(cores, 1, on_disk, SECONDS)
                for workers in sorted({1, max(1, cores // 2), cores}):
                    found = simulated(cores, workers, on_disk, SECONDS)
                    print(
                        f"{cores:5}  {workers:7}  "
                        f"{found.records_per_s * costs.record_bytes / 1e6:4.0f}  "
                        f"{found.records_per_s / one.records_per_s:13.2f}  "
                        f"{found.cores_busy:10.0%}  {found.disk_busy:9.0%}  "
                        f"{found.commits_a_sync:14.1f}"
                    )


if __name__ == "__main__":
    sys.exit(main())

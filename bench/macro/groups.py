"""Consumer groups: how long a rebalance takes, what steady heartbeats cost, commits per second."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import psycopg
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from bench.brokers import Broker
from bench.case import Case, Figures, charged
from bench.clients import added_up, prepared, run_workers

MEMBERS, PARTITIONS = 50, 200
STEADY_GROUPS, STEADY_MEMBERS = 100, 50
STEADY_S = 15.0
COMMIT_S = 5.0

# Kafka answers CreateTopics before it has made the logs of 200 partitions.
TOPIC_S = 5.0

# PostgreSQL's sessions tell of their transactions within ten seconds after they fall idle.
STATISTICS_LAG_S = 11.0


def initial_delay_s(broker: Broker) -> float:
    """The broker's group.initial.rebalance.delay.ms, as it says itself; 3 s if it does not."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    number = next(iter(admin.list_topics(timeout=30).brokers))
    resource = ConfigResource(ResourceType.BROKER, str(number))
    found = admin.describe_configs([resource])[resource].result(timeout=30)
    delay = found.get("group.initial.rebalance.delay.ms")
    return float(delay.value) / 1000 if delay and delay.value else 3.0


def rebalance(protocol: str, broker: Broker) -> Figures:
    with broker.topic(PARTITIONS) as topic:
        time.sleep(TOPIC_S)
        before = broker.cpu_seconds()
        result = run_workers(
            "rebalance",
            bootstrap=broker.bootstrap,
            topic=topic,
            protocol=protocol,
            members=MEMBERS,
            partitions=PARTITIONS,
            delay_s=initial_delay_s(broker),
        )
        spent = {name: after - before[name] for name, after in broker.cpu_seconds().items()}
    figures = {key: float(value) for key, value in result.items() if key.endswith(("_s", "_ms"))}
    del figures["cpu_s"]
    return figures | {f"{name}_cpu_ms": 1e3 * cpu for name, cpu in spent.items()}


@dataclass(frozen=True, slots=True)
class DatabaseWork:
    """What a database has done so far: transactions, and reads and writes of groups' tables."""

    transactions: int
    accesses: int

    @classmethod
    def so_far(cls, broker: Broker) -> DatabaseWork:
        """Nothing for a broker without a database. Asking is a transaction of its own."""
        if broker.database_url is None:
            return cls(0, 0)
        with psycopg.connect(broker.database_url, autocommit=True) as connection:
            row = connection.execute(_DATABASE_WORK).fetchone()
        assert row is not None
        return cls(int(row[0]), int(row[1]))


_DATABASE_WORK = """
SELECT (SELECT xact_commit + xact_rollback FROM pg_stat_database
        WHERE datname = current_database()),
       (SELECT sum(seq_scan + coalesce(idx_scan, 0) + n_tup_ins + n_tup_upd + n_tup_del)
        FROM pg_stat_user_tables
        WHERE relname IN ('consumer_group', 'group_member', 'committed_offset'))
"""


def steady_heartbeats(protocol: str, groups: int, seconds: float, broker: Broker) -> Figures:
    """5,000 members that only say they are there; what the database does beside, and without them.

    transactions_per_s and idle_transactions_per_s are alike (the broker's own heartbeat and
    housekeeping), and groups' tables are not touched, if heartbeats need no database.
    """
    figures: Figures = {}
    if broker.database_url is not None:
        time.sleep(STATISTICS_LAG_S)
        idle, begun = DatabaseWork.so_far(broker), time.monotonic()
        time.sleep(STATISTICS_LAG_S)
        done = DatabaseWork.so_far(broker).transactions - idle.transactions
        figures["idle_transactions_per_s"] = done / (time.monotonic() - begun)
    with (
        broker.topic(STEADY_MEMBERS) as topic,
        prepared(
            "heartbeats",
            bootstrap=broker.bootstrap,
            topic=topic,
            protocol=protocol,
            groups=groups,
            members=STEADY_MEMBERS,
            seconds=seconds,
        ) as workers,
    ):
        if broker.database_url is not None:
            time.sleep(STATISTICS_LAG_S)
        counted, before, begun = DatabaseWork.so_far(broker), broker.cpu_seconds(), time.monotonic()
        [worker] = workers
        worker.go()
        worker.wait_until_ready()  # again: it has what it wants, and has not left its groups yet
        elapsed = time.monotonic() - begun
        after, recounted = broker.cpu_seconds(), DatabaseWork.so_far(broker)
        worker.go()
        result = worker.result(timeout_s=120)
    if broker.database_url is not None:
        done = recounted.transactions - counted.transactions
        figures["transactions_per_s"] = done / elapsed
        figures["group_table_accesses"] = recounted.accesses - counted.accesses
    for name, cpu in after.items():
        figures[f"{name}_cpu_percent"] = 100 * (cpu - before[name]) / elapsed
    spent = sum(after.values()) - sum(before.values())
    figures["broker_us_per_record"] = 1e6 * spent / result["records"]
    figures["heartbeats_per_s"] = result["records"] / result["seconds"]
    return figures | {key: float(value) for key, value in result.items() if key.endswith("_ms")}


def commit(work: str, committers: int, seconds: float, broker: Broker) -> Figures:
    """Offset commits, each of one partition, each waited for."""
    with broker.topic(committers) as topic:
        more = {} if work == "commits_confluent" else {"committers": committers}
        with prepared(
            work, bootstrap=broker.bootstrap, topic=topic, seconds=seconds, **more
        ) as workers:
            before = broker.cpu_seconds()
            for worker in workers:
                worker.go()
            result = added_up([worker.result(seconds + 60) for worker in workers])
            figures = charged(broker, before, result["records"], result["cpu_s"])
    figures["commits_per_s"] = result["records"] / result["seconds"]
    return figures | {key: float(value) for key, value in result.items() if key.endswith("_ms")}


def cases(share: float) -> list[Case]:
    """`share` scales the time of commits and heartbeats, and the number of steady groups."""
    groups = max(1, int(STEADY_GROUPS * share))
    members = groups * STEADY_MEMBERS
    return [
        *(
            Case(
                f"groups/rebalance/{protocol}/{MEMBERS}m/{PARTITIONS}p",
                "after_delay_s",
                partial(rebalance, protocol),
                quick=protocol == "classic",
            )
            for protocol in ("classic", "consumer")
        ),
        *(
            Case(
                f"groups/heartbeats/{protocol}/{members}m",
                "broker_us_per_record",
                partial(steady_heartbeats, protocol, groups, STEADY_S * max(share, 0.5)),
                rounds=1,
            )
            for protocol in ("classic", "consumer")
        ),
        *(
            Case(
                f"groups/commits/bare/{committers}x",
                "commits_per_s",
                partial(commit, "commits", committers, COMMIT_S * share),
                quick=committers == 64,
            )
            for committers in (1, 64)
        ),
        Case(
            "groups/commits/confluent/1x",
            "commits_per_s",
            partial(commit, "commits_confluent", 1, COMMIT_S * share),
        ),
    ]

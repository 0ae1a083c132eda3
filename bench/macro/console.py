"""The page: how soon it is there in a large cluster, and what a hundred who look cost clients."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from urllib.parse import quote

import psycopg

from bench.brokers import Broker, scratch_directory
from bench.case import Case, Figures, Skipped
from bench.clients import prepared, run_workers

TOPICS, PARTITIONS, BATCHES, GROUPS = 10_000, 5, 10, 1_000
READ_BY_EACH = TOPICS * PARTITIONS // GROUPS
VIEWERS = 100
EVERY_S = 5.0
SECONDS = 12.0
LARGE_RECORDS, LARGE = 40, 990_000  # librdkafka takes a million with what is around it

PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topics_found": "/topics?search=0042",
    "topics_by_size": "/topics?sort=-size",
    "topic": "/topic?name=scale-00042",
    "groups": "/groups",
    "group": "/group?id=scale-0042",
    "subscriptions": "/subscriptions",
    "transactions": "/transactions",
    "producers": "/producers",
    "security": "/security",
    "messages_1mb": "/topic/messages?name={large}",
}
# What a hundred leave open: the first page, a topic's, a group's.
WATCHED = ("overview", "topic", "group")

# As if clients had made it: rows only, for no page but that of messages looks into batches.
_FILL = (
    """INSERT INTO topic (topic_id, name)
    SELECT gen_random_uuid(), 'scale-' || lpad(n::text, 5, '0')
    FROM generate_series(1, %(topics)s) AS n""",
    """INSERT INTO topic_partition
        (topic_id, partition, next_offset, max_timestamp, size_bytes, batch_count)
    SELECT topic_id, n, 100 * %(batches)s, %(now_ms)s, 10000 * %(batches)s, %(batches)s
    FROM topic, generate_series(0, %(partitions)s - 1) AS n WHERE name LIKE 'scale-%%'""",
    """INSERT INTO record_batch
        (partition_id, base_offset, last_offset, payload_id, position, segment_id, size,
         max_timestamp, running_max_timestamp, producer_id, base_sequence, producer_epoch, format,
         is_transactional, is_control)
    SELECT partition_id, n * 100, n * 100 + 99, 0, 0, 0, 10000, at, at, -1, -1, -1, 2, false, false
    FROM topic_partition JOIN topic USING (topic_id), generate_series(0, %(batches)s - 1) AS n,
         LATERAL (SELECT %(now_ms)s - 60000 * (%(batches)s - n) AS at) AS times
    WHERE name LIKE 'scale-%%'""",
    """INSERT INTO consumer_group
        (group_key, group_id, shard, protocol, protocol_type, generation_id, assignment_epoch,
         state, state_timestamp, waiting_for, metadata_hash)
    SELECT substr(encode(sha256(convert_to(id, 'UTF8')), 'hex'), 1, 32)::uuid, id, n %% 50,
           'classic', 'consumer', 1, -1, 'Empty', %(now_ms)s - 3600000, '{}', 0
    FROM generate_series(1, %(groups)s) AS n,
         LATERAL (SELECT 'scale-' || lpad(n::text, 4, '0') AS id) AS named""",
    """INSERT INTO committed_offset
        (group_key, partition_id, committed_offset, leader_epoch, metadata, commit_timestamp,
         expire_timestamp)
    SELECT g.group_key, p.partition_id, 400, -1, '', %(now_ms)s - 120000, -1
    FROM (SELECT group_key, row_number() OVER (ORDER BY group_id) AS n FROM consumer_group
          WHERE group_id LIKE 'scale-%%') AS g
    JOIN (SELECT partition_id, row_number() OVER (ORDER BY name, partition) AS n
          FROM topic_partition JOIN topic USING (topic_id) WHERE name LIKE 'scale-%%') AS p
        ON (p.n - 1) / %(read_by_each)s = g.n - 1""",
)


def fill(database_url: str) -> None:
    """Topics, partitions, batches and groups, all of them behind."""
    values = {
        "topics": TOPICS,
        "partitions": PARTITIONS,
        "batches": BATCHES,
        "groups": GROUPS,
        "read_by_each": READ_BY_EACH,
        "now_ms": time.time_ns() // 1_000_000,
    }
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SET search_path = penstock")
        for statement in _FILL:
            connection.execute(statement, values)
        connection.execute("SELECT pg_notify('penstock_metadata', '')")
        connection.execute("ANALYZE")


@contextlib.contextmanager
def large_cluster(broker: Broker) -> Iterator[tuple[Broker, str]]:
    """A broker of its own with all that, and a topic of large records."""
    if broker.another is None or broker.http_url is None:
        raise Skipped("it has no page")
    with (
        scratch_directory() as scratch,
        broker.another(scratch / "broker") as (large, _),
        large.topic(1) as topic,
    ):
        assert large.database_url is not None
        fill(large.database_url)
        run_workers(
            "produce_confluent",
            bootstrap=large.bootstrap,
            topic=topic,
            records=LARGE_RECORDS,
            size=LARGE,
            login={"batch.num.messages": 1},  # two are more than a broker takes at once
        )
        yield large, topic


def pages(broker: Broker) -> Figures:
    """Each page the first time, and again and again; what takes longest counts."""
    figures: Figures = {}
    with large_cluster(broker) as (large, topic):
        for name, path in PAGES.items():
            url = f"{large.http_url}{path.format(large=quote(topic))}"
            seen = run_workers("view", urls=[url], viewers=1, every_s=0.2, seconds=4.0)
            figures[f"{name}_first_ms"] = seen["first_ms"]
            figures[f"{name}_p50_ms"] = seen["p50_ms"]
    figures["slowest_ms"] = max(figures.values())
    return figures


def beside_viewers(seconds: float, broker: Broker) -> Figures:
    """Acknowledgements alone, beside a hundred who look, alone again: no more than they cost."""
    with large_cluster(broker) as (large, topic):
        urls = [f"{large.http_url}{PAGES[name]}" for name in WATCHED]

        def acknowledged() -> float:
            probe = {"bootstrap": large.bootstrap, "topic": topic, "seconds": seconds}
            return float(run_workers("ack_confluent", **probe)["p50_ms"])

        before = acknowledged()
        looking = {"urls": urls, "viewers": VIEWERS, "every_s": EVERY_S, "seconds": seconds + 6}
        with prepared("view", **looking) as (viewers,):
            viewers.go()
            beside = acknowledged()
            seen = viewers.result(timeout_s=seconds + 60)
        alone = (before + acknowledged()) / 2
    return {
        "ack_alone_p50_ms": alone,
        "ack_beside_p50_ms": beside,
        "alone_to_beside_ratio": alone / beside,
        "page_p50_ms": seen["p50_ms"],
        "page_p99_ms": seen["p99_ms"],
    }


def cases(share: float) -> list[Case]:
    """`share` scales the time that is looked for."""
    return [
        Case("console/pages", "slowest_ms", pages, rounds=1),
        Case(
            f"console/{VIEWERS}-viewers",
            "alone_to_beside_ratio",
            lambda broker: beside_viewers(SECONDS * share, broker),
            rounds=2,
        ),
    ]

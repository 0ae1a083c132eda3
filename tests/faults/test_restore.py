"""The database comes back as it was a while ago, on a new timeline: what was lost is seen to be."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from storage.server.embedded import EmbeddedPostgres
from tests.conftest import StartGateway
from tests.faults.conftest import PARTITIONS, create_topic, query, verify
from tests.faults.history import History, Outcome
from tests.faults.load import Load

pytestmark = pytest.mark.fault


def restore(server: EmbeddedPostgres, backup: Path) -> None:
    """Puts the copy in the cluster's place and ends its recovery on a timeline of its own."""
    server.stop("immediate")
    shutil.rmtree(server.pgdata)
    shutil.copytree(backup, server.pgdata, symlinks=True)
    owner = backup.stat()
    (server.pgdata / "recovery.signal").touch()
    with (server.pgdata / "postgresql.auto.conf").open("a") as file:
        file.write("restore_command = 'false'\n")  # there is no archive: local WAL is all
    for path in (server.pgdata, *server.pgdata.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.start()


def test_a_restored_database_is_another_history(
    server: EmbeddedPostgres, start_gateway: StartGateway, seed: int, tmp_path: Path
) -> None:
    gateway = start_gateway(database_url=server.url)
    create_topic(gateway.bootstrap, "load")
    kept = Load(gateway.bootstrap, "load", PARTITIONS, seed)
    with kept.running():
        kept.wait_for_progress()
    ids_kept = producer_ids(server.url)
    server.stop()
    backup = tmp_path / "backup"
    shutil.copytree(server.pgdata, backup, symlinks=True)
    owner = server.pgdata.stat()
    shutil.chown(backup, owner.st_uid, owner.st_gid)
    server.start()

    lost_kinds = ("idempotent-lost", "plain-lost")
    lost = Load(gateway.bootstrap, "load", PARTITIONS, seed + 1, kinds=lost_kinds)
    with lost.running():
        lost.wait_for_progress()
    ids_before = producer_ids(server.url)
    batches_before = query(server.url, "SELECT max(payload_id) FROM record_batch")
    create_topic(gateway.bootstrap, "lost")
    partitions_before = query(server.url, "SELECT max(partition_id) FROM topic_partition")
    assert query(server.url, "SELECT DISTINCT leader_epoch FROM topic_partition") == [(0,)]

    # A consumer that has seen what will be lost; it keeps its position and its epoch.
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
            "log_level": 0,
        }
    )
    end = sum(int(str(row[0])) for row in query(server.url, ENDS))
    consumer.assign([TopicPartition("load", n, 0) for n in range(PARTITIONS)])
    take(consumer, end)

    restore(server, backup)

    after_kinds = ("idempotent-after", "plain-after", "aiokafka-after")
    after = Load(gateway.bootstrap, "load", PARTITIONS, seed + 2, kinds=after_kinds)
    with after.running():
        after.wait_for_progress()
    both = History({**kept.history.attempts, **after.history.attempts})
    both.unsequenced = kept.history.unsequenced | after.history.unsequenced
    verify(both, gateway, server.url, "load")
    assert lost.history.count(Outcome.ACKNOWLEDGED) > 0, "there was something to lose"
    assert query(server.url, "SELECT DISTINCT leader_epoch FROM topic_partition") == [(1,)]
    ids_after = producer_ids(server.url)
    assert ids_after - ids_kept, "new producers have written"
    assert not ids_after & (ids_before - ids_kept), "no id of the lost history came again"
    ((newest,),) = query(server.url, "SELECT max(payload_id) FROM record_batch")
    assert int(str(newest)) > int(str(batches_before[0][0])) + 900_000_000
    assert "database_history_changed" in gateway.log()
    # Before it noticed, the gateway may have given ids of its old block, which are nobody else's.
    later = Load(gateway.bootstrap, "load", PARTITIONS, seed + 3, kinds=("idempotent-later",))
    with later.running():
        later.wait_for_progress()
    ids_later = producer_ids(server.url) - ids_after
    assert min(ids_later) >= max(ids_before) + 1_000_000 - 1_000, "new blocks skip ahead"

    # It is told by the leader epoch that its log was cut, and goes on where the histories part.
    written = after.history.count(Outcome.ACKNOWLEDGED)
    seen = take(consumer, written, within_s=30)
    consumer.close()
    assert seen >= written, f"the consumer saw {seen} of {written} new records"

    # A topic of now has nothing of one that was lost, for which something may have been queued.
    create_topic(gateway.bootstrap, "new")
    ((first,),) = query(server.url, FIRST_PARTITION_OF_NEW)
    assert int(str(first)) > int(str(partitions_before[0][0]))


ENDS = "SELECT next_offset FROM topic_partition"
FIRST_PARTITION_OF_NEW = (
    "SELECT min(partition_id) FROM topic_partition JOIN topic USING (topic_id) WHERE name = 'new'"
)


def producer_ids(url: str) -> set[int]:
    """Of all producers that have written so far."""
    rows = query(url, "SELECT DISTINCT producer_id FROM record_batch WHERE producer_id >= 0")
    return {int(str(row[0])) for row in rows}


def take(consumer: Consumer, count: int, within_s: float = 30.0) -> int:
    """Reads until `count` records have come, or time is up; gives their number."""
    seen = 0
    deadline = time.monotonic() + within_s
    while seen < count and time.monotonic() < deadline:
        seen += sum(message.error() is None for message in consumer.consume(500, timeout=0.2))
    return seen

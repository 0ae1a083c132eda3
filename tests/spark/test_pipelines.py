"""Transform, archive and replay on a Spark of this process: what they write, and once only."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from penstock.spark.pipelines import archive, replay, transform
from penstock.spark.pipelines.options import Broker, Pace, PipelineFailed
from penstock.spark.pipelines.terminal import Terminal
from tests.conftest import Gateway
from tests.spark.records import Written, read, write, write_transactions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(900)  # the machine may be busy

AT_ONCE = Pace(available_now=True)
HEADERS = (("a", b"1"), ("b", b"\x00"))


class Screen(Terminal):
    """Remembers what was said."""

    def __init__(self) -> None:
        self.written = io.StringIO()
        super().__init__(Console(file=self.written, width=200))

    @property
    def text(self) -> str:
        return self.written.getvalue()


@pytest.fixture
def broker(gateway: Gateway) -> Broker:
    return Broker(gateway.bootstrap)


# --- transform ---


def test_transform_reads_what_is_committed_and_writes_it_once(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], checkpoint: str
) -> None:
    source, target = make_topic(partitions=2), make_topic(partitions=2)
    records = [(source, Written(b"%d" % n, b"k%d" % n)) for n in range(40)]
    write_transactions(
        broker.bootstrap,
        source,
        [(True, records[:20]), (False, records[20:30]), (True, records[30:])],
    )
    sql = "SELECT key, cast(cast(value AS string) * 2 AS string) AS value FROM input"
    pace = Pace(available_now=True, max_offsets=15)
    job = transform.Transform(broker, (source,), target, checkpoint, sql=sql, pace=pace)
    first, second = Screen(), Screen()
    transform.run(spark, job, first)
    expected = sorted(str(2 * n).encode() for n in (*range(20), *range(30, 40)))
    assert sorted(record.value for record in read(broker.bootstrap, target)) == expected
    earlier, *_, last = re.findall(r"^batch \d+: .*$", first.text, re.MULTILINE)
    assert earlier.endswith(" behind")
    assert last.endswith(" rows/s")
    assert "30 rows read" in first.text
    transform.run(spark, job, second)  # the same again: nothing is new
    assert "Done: 0 rows" in second.text
    write(broker.bootstrap, source, [Written(b"500", b"k")])
    transform.run(spark, job, second)
    found = sorted(record.value for record in read(broker.bootstrap, target))
    assert found == sorted([*expected, b"1000"])
    forget_the_last_commit(checkpoint)
    transform.run(spark, job, Screen())  # the last batch is written again, and was already
    assert len(read(broker.bootstrap, target)) == len(found)
    # No transaction was left behind that a reader would have to leave out.
    assert len(read(broker.bootstrap, target, is_committed=False)) == len(found)


def counted_by_key(frame: DataFrame) -> DataFrame:
    """How many records each key has had so far."""
    return frame.groupBy("key").count().selectExpr("key", "cast(count AS string) AS value")


def test_transform_in_update_mode_writes_each_total_once(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], checkpoint: str
) -> None:
    source, target = make_topic(), make_topic()
    pace = Pace(available_now=True, max_offsets=10)
    job = transform.Transform(
        broker,
        (source,),
        target,
        checkpoint,
        function=counted_by_key,
        output_mode="update",
        pace=pace,
    )
    write(broker.bootstrap, source, [Written(b"", b"k%d" % (n % 2)) for n in range(30)])
    transform.run(spark, job, Screen())
    # Three batches of ten: 5, 10 and 15 for each of the two keys, in this order.
    for key in (b"k0", b"k1"):
        values = [record.value for record in read(broker.bootstrap, target) if record.key == key]
        assert values == [b"5", b"10", b"15"]
    forget_the_last_commit(checkpoint)
    transform.run(spark, job, Screen())  # the last batch is written again, and was already
    assert len(read(broker.bootstrap, target)) == 6


def test_a_batch_that_comes_again_in_another_mode_is_the_same(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], checkpoint: str
) -> None:
    source, target = make_topic(), make_topic()
    write(broker.bootstrap, source, [Written(b"%d" % n) for n in range(10)])
    job = transform.Transform(
        broker, (source,), target, checkpoint, sql="SELECT value FROM input", pace=AT_ONCE
    )
    for mode in ("append", "update", "append"):
        transform.run(spark, replace(job, output_mode=mode), Screen())
        forget_the_last_commit(checkpoint)
    assert len(read(broker.bootstrap, target)) == 10


@pytest.mark.parametrize("mode", ["append", "update"])
def test_an_old_checkpoint_fails_in_each_mode(
    spark: SparkSession,
    broker: Broker,
    make_topic: Callable[..., str],
    checkpoint: str,
    mode: str,
) -> None:
    """What is new in the topic would be left out, as of a batch that is published."""
    source, target = make_topic(), make_topic()
    job = transform.Transform(
        broker, (source,), target, checkpoint, sql="SELECT value FROM input", pace=AT_ONCE
    )
    job = replace(job, output_mode=mode)
    for number in range(3):
        write(broker.bootstrap, source, [Written(b"%d" % number)])
        transform.run(spark, job, Screen())
        if number == 0:
            shutil.copytree(checkpoint, f"{checkpoint}-copy")
    write(broker.bootstrap, source, [Written(b"3")])
    sentence = r"Batch 1 was not written: batches of this query up to 2 are published"
    with pytest.raises(PipelineFailed, match=sentence):
        transform.run(spark, replace(job, checkpoint=f"{checkpoint}-copy"), Screen())
    transform.run(spark, job, Screen())  # the right one goes on
    assert [record.value for record in read(broker.bootstrap, target)] == [b"0", b"1", b"2", b"3"]


def forget_the_last_commit(checkpoint: str) -> None:
    """As if the driver had died between the sink's commit and its own note of it."""
    commits = Path(checkpoint, "commits")
    last = max(commits.glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("sql", "sentence"),
    [
        ("SELECT key FROM input", "must have a column 'value'"),
        ("SELECT value, offset FROM input", "has offset"),
        ("SELECT nothing FROM input", "Spark refuses"),
        ("SELECT 'x' AS value", "made from its input"),
    ],
)
def test_a_transformation_that_makes_no_records_is_refused(
    spark: SparkSession,
    broker: Broker,
    make_topic: Callable[..., str],
    checkpoint: str,
    sql: str,
    sentence: str,
) -> None:
    topic = make_topic()
    job = transform.Transform(broker, (topic,), topic, checkpoint, sql=sql, pace=AT_ONCE)
    with pytest.raises(PipelineFailed, match=sentence):
        transform.run(spark, job, Screen())


# --- archive and replay ---


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def committed_files(lake: str) -> list[Path]:
    return sorted(Path(lake).rglob("part-*.parquet"))


def test_a_lake_holds_each_committed_record_once_and_gives_them_back(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], lake: str
) -> None:
    source, other, target = make_topic(partitions=3), make_topic(), make_topic(partitions=3)
    records = [
        (source, Written(b"%d" % n, b"k%d" % (n % 7) if n % 5 else None, n % 3, HEADERS, stamp(n)))
        for n in range(60)
    ]
    write_transactions(
        broker.bootstrap,
        source,
        [(True, records[:25]), (False, records[25:35]), (True, records[35:])],
    )
    write(broker.bootstrap, other, [Written(b"other")])
    job = archive.Archive(broker, (source, other), lake, pace=Pace(True, max_offsets=30))
    screen = Screen()
    archive.run(spark, job, screen)
    assert "51 records archived" in screen.text
    dates = {f"date=2013-01-0{day}" for day in (1, 2, 3, 4)}
    assert {path.name for path in Path(lake, f"topic={source}").iterdir()} == dates

    left_behind(lake)
    again = Screen()
    archive.run(spark, job, again)
    assert "Removed 1 files" in again.text
    assert "Done: 0 records" in again.text
    rows = spark.read.parquet(lake).where(f"topic = '{source}'").collect()
    original = read(broker.bootstrap, source)
    assert sorted(map(of_row, rows)) == sorted(map(of_record, original))

    back = replay.Replay(broker, lake, target, "a run", source=source, position_headers=True)
    for sentence in ("Done: 50 records of run a run are in ", "Nothing written: run a run is in "):
        told = Screen()
        replay.run(spark, back, told)
        assert sentence in told.text
        assert ("Done" in told.text) == ("Done" in sentence)
    found = read(broker.bootstrap, target)
    assert [as_it_was(record, source) for record in found] == [of_record(each) for each in original]


def stamp(n: int) -> int:
    """Twenty records a day, from the evening of 1 January 2013 on."""
    return 1_357_081_200_123 + n * 4_320_000  # 23:00 UTC; 72 minutes


def left_behind(lake: str) -> None:
    """What a killed run leaves: a file that no log knows."""
    committed = committed_files(lake)[0]
    committed.with_name(committed.name.replace("part-", "part-9")).write_bytes(
        committed.read_bytes()
    )


Place = tuple[int, int, int, bytes, bytes, list[tuple[str, bytes]]]


def of_row(row: Any) -> Place:
    headers = [(header.key, bytes(header.value)) for header in row.headers]
    time = round(row.timestamp.timestamp() * 1000)
    return row.partition, row.offset, time, bytes(row.key or b""), bytes(row.value), headers


def of_record(record: Any) -> Place:
    key, headers = record.key or b"", [(key, bytes(value)) for key, value in record.headers]
    return record.partition, record.offset, record.timestamp, key, record.value, headers


def as_it_was(record: Any, topic: str) -> Place:
    """By the headers that a replay adds."""
    *headers, in_topic, partition, offset, timestamp = record.headers
    names = [name for name, _ in (in_topic, partition, offset, timestamp)]
    assert names == list(replay.POSITION_HEADERS)
    assert in_topic[1] == topic.encode()
    assert int(partition[1]) == record.partition
    assert int(timestamp[1]) == record.timestamp
    _, _, time, key, value, _ = of_record(record)
    return record.partition, int(offset[1]), time, key, value, [(n, bytes(v)) for n, v in headers]


def test_a_replay_takes_the_offsets_and_times_asked_for(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], lake: str
) -> None:
    source, target = make_topic(partitions=2), make_topic()
    records = [Written(b"%d" % n, b"k%d" % n, n % 2, (), stamp(n // 2)) for n in range(40)]
    write(broker.bootstrap, source, records)
    archive.run(spark, archive.Archive(broker, (source,), lake, pace=AT_ONCE), Screen())
    until = replay.moment("2013-01-02T23:00:00.123+00:00")
    chosen = replay.Replay(
        broker,
        lake,
        target,
        "some",
        offsets=(replay.OffsetRange(0, 5, 8), replay.OffsetRange(1, 18, None)),
    )
    early = replay.Replay(broker, lake, target, "early", until=until, by_key=True)
    with pytest.raises(PipelineFailed, match="2 partitions"):
        replay.run(spark, chosen, Screen())
    by_key = replay.Replay(broker, lake, target, "some", offsets=chosen.offsets, by_key=True)
    replay.run(spark, by_key, Screen())
    values = sorted(int(record.value) for record in read(broker.bootstrap, target))
    assert values == [10, 12, 14, 37, 39]
    replay.run(spark, early, Screen())
    values = [int(record.value) for record in read(broker.bootstrap, target)[5:]]
    assert sorted(values) == [n for n in range(40) if stamp(n // 2) < 1_357_167_600_123]
    for parity in (0, 1):  # each partition's records in their order
        ours = [value for value in values if value % 2 == parity]
        assert ours == sorted(ours)


def test_a_lake_is_not_written_with_another_checkpoint(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], lake: str
) -> None:
    topic = make_topic()
    write(broker.bootstrap, topic, [Written(b"1")])
    archive.run(spark, archive.Archive(broker, (topic,), lake, pace=AT_ONCE), Screen())
    elsewhere = archive.Archive(broker, (topic,), lake, checkpoint=f"{lake}-other", pace=AT_ONCE)
    with pytest.raises(PipelineFailed, match="another checkpoint"):
        archive.run(spark, elsewhere, Screen())


def test_nothing_is_written_where_nothing_is_meant(
    spark: SparkSession, broker: Broker, make_topic: Callable[..., str], lake: str
) -> None:
    one, two = make_topic(), make_topic()
    for topic in (one, two):
        write(broker.bootstrap, topic, [Written(b"1")])
    archive.run(spark, archive.Archive(broker, (one, two), lake, pace=AT_ONCE), Screen())
    with pytest.raises(PipelineFailed, match="choose one with --from"):
        replay.run(spark, replay.Replay(broker, lake, two, "all"), Screen())
    screen = Screen()
    offsets = (replay.OffsetRange(None, 1, None),)
    replay.run(spark, replay.Replay(broker, lake, two, "none", offsets=offsets), screen)
    assert "nothing to do" in screen.text
    with pytest.raises(PipelineFailed, match="no lake"):
        replay.run(spark, replay.Replay(broker, f"{lake}-no", two, "none"), screen)

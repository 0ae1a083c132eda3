"""The audit: what it finds in a history that is known, and the report as a file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.spark.pipelines import audit
from penstock.spark.pipelines.broker import PartitionEnds, partition_ends
from penstock.spark.pipelines.charts import columns, short, ticks
from penstock.spark.pipelines.history import (
    Bucket,
    GapKind,
    History,
    Key,
    Keys,
    PartitionFacts,
    read_history,
    width_of,
)
from penstock.spark.pipelines.options import Broker, PipelineFailed
from penstock.spark.pipelines.report import Audit, html
from penstock.spark.pipelines.transactions import Markers, read_transactions
from tests.conftest import Gateway
from tests.spark.records import Written, write, write_transactions
from tests.spark.test_pipelines import Screen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(900)  # the machine may be busy

NOON = 1_767_268_800_000  # 1 January 2026, 12:00 UTC


def at(partition: int, value: bytes, key: bytes | None = None, second: int = 0) -> Written:
    return Written(value, key, partition, (), NOON + second * 1000)


@contextlib.contextmanager
def open_transaction(bootstrap: str, name: str, topic: str, record: Written) -> Iterator[None]:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 800_000,  # it stays open as long as the test takes
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(topic, record.value, record.key, record.partition, timestamp=record.timestamp)
    assert producer.flush(20) == 0
    try:
        yield
    finally:
        producer.abort_transaction(20)


@pytest.fixture
def known(
    gateway: Gateway, make_topic: Callable[..., str], session_admin: AdminClient
) -> Iterator[str]:
    """A topic of two partitions.

    0: (0, 1 deleted) 2 of A; 3 marker; 4-7 aborted; 8 marker; 9-11 plain; 12 of C; 13 marker.
    1: 0, 1 of A; 2 marker; 3 of C; 4 marker; 5 undecided, of an open transaction; 6 plain, after.
    """
    topic = make_topic(partitions=2)
    a = [at(0, b"%d" % n, b"a", n) for n in range(3)] + [at(1, b"same", b"d")] * 2
    b = [at(0, b"x", b"gone", 10)] * 4
    c = [at(0, b"c", b"a", 120), at(1, b"c", b"c", 120)]
    write_transactions(
        gateway.bootstrap,
        f"{topic}-tx",
        [(True, [(topic, each) for each in a]), (False, [(topic, each) for each in b])],
    )
    write(gateway.bootstrap, topic, [at(0, b"plain", None, 60) for _ in range(3)])
    write_transactions(gateway.bootstrap, f"{topic}-tx", [(True, [(topic, each) for each in c])])
    start = TopicPartition(topic, 0, 2)
    session_admin.delete_records([start])[start].result(20)
    with open_transaction(gateway.bootstrap, f"{topic}-open", topic, at(1, b"?", b"c", 130)):
        write(gateway.bootstrap, topic, [at(1, b"behind", b"c", 130)])
        yield topic


def test_a_known_history_is_told_as_it_was(
    spark: SparkSession, gateway: Gateway, known: str
) -> None:
    broker = Broker(gateway.bootstrap)
    ends = partition_ends(broker, [known])
    assert ends == [PartitionEnds(known, 0, 2, 14, 14), PartitionEnds(known, 1, 0, 5, 7)]
    history = read_history(spark, broker, ends, top=3, doing=lambda what: contextlib.nullcontext())
    first, second = history.partitions
    assert (first.committed, first.aborted, first.undecided, first.empty) == (5, 4, 0, 3)
    assert (second.committed, second.aborted, second.undecided, second.empty) == (3, 0, 2, 2)
    assert first.last == datetime(2026, 1, 1, 12, 2, tzinfo=UTC)
    assert history.bucket_s == 5
    by_status = {each: history.records(each) for each in ("committed", "aborted", "undecided")}
    assert by_status == {"committed": 8, "aborted": 4, "undecided": 2}
    assert sum(each.records for each in history.buckets) == 14
    assert [each.records for each in history.buckets if each.status == "aborted"] == [4]

    # Partition 0: 3-8 for the aborted, 13 at the end. Partition 1: 2 and 4.
    assert history.gap_kinds == (
        GapKind(known, False, 3, 0, 3),
        GapKind(known, True, 1, 4, 2),
    )
    longest = history.longest_gaps[0]
    assert (longest.partition, longest.first, longest.last, longest.aborted) == (0, 3, 8, 4)
    # a: 2 and c; d: twice the same; c: once, as what is undecided does not count.
    assert history.keys == (Keys(known, 3, 2, 1, 3),)
    assert history.most_repeated == (Key(known, b"d", 2, 1), Key(known, b"a", 2, 2))

    transactions = read_transactions(gateway.database_url or "", ends, lambda done, total: None)
    text = html(Audit((known,), gateway.bootstrap, datetime.now(UTC), history, transactions))
    assert_is_whole(text)
    for words in (
        "33.3 %",  # 4 of 12 aborted
        "2 offsets at the start of 1 partition are deleted",
        "aborted transactions",
        "Each offset without a record is a transaction's marker, as the database says.",
        "1 transaction not ended",
        f"{known}-tx",
    ):
        assert words in text, words


def test_transactions_are_those_of_the_index(gateway: Gateway, known: str) -> None:
    ends = partition_ends(Broker(gateway.bootstrap), [known])
    told: list[tuple[int, int]] = []
    found = read_transactions(
        gateway.database_url or "", ends, lambda done, total: told.append((done, total))
    )
    shape = [(each.is_aborted, each.records, each.partitions) for each in found.ended]
    assert shape == [(False, 3, 2), (True, 4, 1), (False, 2, 2)]  # of A's five two are deleted
    assert found.open == 1
    assert found.markers == {
        (known, 0): Markers(control=3, plain=3, transactional=6),
        (known, 1): Markers(control=2, plain=1, transactional=4),
    }
    assert found.producers == {f"{known}-tx": 3}
    # Written at noon by their timestamps, and ended just now by the broker's clock.
    since = (datetime.now(UTC) - datetime(2026, 1, 1, 12, tzinfo=UTC)).total_seconds()
    assert [since - 600 < (each.seconds or 0) <= since for each in found.ended] == [True] * 3
    with pytest.raises(PipelineFailed, match="does not tell of transactions"):
        read_transactions("host=/nowhere dbname=nobody", ends, lambda done, total: None)


def test_an_empty_topic_has_a_report(
    spark: SparkSession, gateway: Gateway, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    report = tmp_path / "empty.html"
    question = audit.Question(Broker(gateway.bootstrap), (make_topic(),), str(report))
    screen = Screen()
    audit.run(spark, question, screen)
    assert f"Report: {report}" in screen.text
    text = report.read_text()
    assert_is_whole(text)
    assert "There are no records." in text
    assert "No database was asked" in text


# --- the page ---


class Tags(HTMLParser):
    """Whether each tag is closed, and what would be fetched."""

    VOID = ("meta",)

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.drawn = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href")]
        self.fetched += [tag] * (tag in ("script", "link", "iframe", "img"))
        self.drawn += tag == "svg"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def assert_is_whole(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    assert tags.fetched == []
    assert "http" not in text
    assert "url(" not in text
    return tags


def test_names_are_never_markup() -> None:
    ends = PartitionEnds("<b>", 0, 0, 1, 1)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    facts = PartitionFacts(ends, 1, 0, 0, 10, moment, moment)
    history = History(
        (facts,),
        1,
        (Bucket(moment, "<b>", "committed", 1, 10), Bucket(moment, "</p>", "aborted", 1, 10)),
        (GapKind("<i>", True, 1, 1, 1),),
        (),
        (Keys("<b>", 1, 0, 0, 0),),
        (Key("<b>", b"<svg onload=x>", 2, 1), Key("<b>", b"\xff", 2, 1)),
    )
    text = html(Audit(("<b>",), "<host>", moment, history, None))
    tags = assert_is_whole(text)
    assert "<b>&lt;" not in text.replace("<b>1", "")
    assert "&lt;svg onload=x&gt;" in text
    assert "0xff" in text
    assert tags.drawn == 4  # throughput, share, by topic, one partition's bar


def test_a_chart_is_xml_with_a_column_for_each_label() -> None:
    chart = columns(
        ["<1", "2", "3"],
        {"one": [1, 0, 2], "two": [0.5, 0, 1]},
        classes={"one": "a", "two": "b"},
        unit="a & b",
    )
    root = ElementTree.fromstring(chart)
    assert [group.findtext("title") for group in root.iter("g")] == ["<1: 1.5", "2: 0", "3: 3"]
    heights = [
        float(rect.get("height", "0")) for rect in root.iter("rect") if rect.get("class") == "a"
    ]
    assert heights[1] == pytest.approx(2 * heights[0], rel=0.01)


@pytest.mark.parametrize(
    ("highest", "last"), [(0, 1), (1, 1), (3, 3), (7, 8), (99, 100), (101, 150), (0.02, 0.02)]
)
def test_an_axis_ends_at_a_round_number(highest: float, last: float) -> None:
    assert ticks(highest)[0] == 0
    assert ticks(highest)[-1] == pytest.approx(last)
    assert len(ticks(highest)) <= 6


def test_numbers_of_an_axis_are_short() -> None:
    assert [short(n) for n in (0, 0.25, 950, 1200, 3.5e7, 2e9)] == [
        *("0", "0.25", "950", "1.2 k", "35 M", "2 G")
    ]


def test_a_history_has_about_sixty_columns() -> None:
    ends = PartitionEnds("t", 0, 0, 1, 1)
    for days, width in ((0, 1), (1, 1800), (59, 86_400), (61, 2 * 86_400)):
        last = datetime.fromtimestamp(days * 86_400, UTC)
        first = datetime.fromtimestamp(0, UTC)
        assert width_of([PartitionFacts(ends, 1, 0, 0, 1, first, last)]) == width

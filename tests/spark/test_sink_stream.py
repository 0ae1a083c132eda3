"""The sink in streams: restarts from a checkpoint, batch ids that come again, attempts that fail.

The source is Spark's `rate-micro-batch`: batch N is the numbers from N * ROWS on, whenever it runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pytest

from penstock.spark import PenstockDataSource
from penstock.spark.options import parse
from penstock.spark.sink import PenstockBatchWriter, PenstockStreamWriter, TaskMessage
from penstock.spark.staging import SinkError
from tests.conftest import Gateway
from tests.spark.conftest import MakeTopic
from tests.spark.topics import Record, read_topic, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROWS = 40
WITHIN_S = 120

Start = Callable[..., "StreamingQuery"]


@pytest.fixture
def start(spark: SparkSession, gateway: Gateway, checkpoint: str) -> Start:
    """Starts a stream into the sink: `start(frame, topic, **{"sink.id": "a"})`."""
    spark.dataSource.register(PenstockDataSource)

    def started(
        frame: DataFrame,
        topic: str,
        *,
        mode: str = "append",
        place: str = checkpoint,
        **options: Any,
    ) -> StreamingQuery:
        writer = frame.writeStream.format("penstock").outputMode(mode)
        writer = writer.option("kafka.bootstrap.servers", gateway.bootstrap).option("topic", topic)
        return writer.options(**options).option("checkpointLocation", place).start()

    return started


def numbers(spark: SparkSession) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    return source.option("numPartitions", 2).load().selectExpr("CAST(value AS STRING) AS value")


def run_to(query: StreamingQuery, batch_id: int) -> None:
    """Stops the stream some time after this batch; its own failure is raised here."""
    from pyspark.sql.streaming import StreamingQuery

    assert isinstance(query, StreamingQuery)
    for _ in range(WITHIN_S * 20):
        progress = query.lastProgress
        if query.awaitTermination(0.05) or (progress and progress["batchId"] >= batch_id):
            break
    query.stop()
    assert query.lastProgress["batchId"] >= batch_id


def assert_whole_batches(records: list[Record]) -> int:
    """Every number once, from 0 on, up to the end of a batch; how many batches that are."""
    found = sorted(int(record.value or b"-1") for record in records)
    assert found == list(range(len(found)))
    assert len(found) % ROWS == 0
    return len(found) // ROWS


def committed(checkpoint: str) -> list[int]:
    """The batches that Spark has noted as committed."""
    logs = (Path(checkpoint) / "commits").iterdir()
    return sorted(int(log.name) for log in logs if log.name.isdigit())


def forget(checkpoint: str, batch_id: int) -> None:
    """As if Spark had died after its sink's commit and before it noted it."""
    for log in (Path(checkpoint) / "commits", Path(checkpoint) / "offsets"):
        for entry in log.iterdir():
            number = re.sub(r"\D", "", entry.name)
            if number and int(number) >= batch_id + (log.name == "offsets"):
                entry.unlink()


def published(gateway: Gateway, query_id: str) -> list[tuple[str, int]]:
    assert gateway.database_url is not None
    with psycopg.connect(gateway.database_url) as connection:
        rows = "SELECT sink, batch_id FROM v_published_batch WHERE query_id = %s ORDER BY sink"
        return connection.execute(rows, (query_id,)).fetchall()


def test_restarts_from_a_checkpoint(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, checkpoint: str
) -> None:
    topic = make_topic(3)
    for last in (1, 3, 4):
        run_to(start(numbers(spark), topic), last)

    assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) >= len(committed(checkpoint))


def test_a_batch_that_comes_again_is_not_written_again(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, checkpoint: str
) -> None:
    topic = make_topic(3)
    query = start(numbers(spark), topic)
    run_to(query, 2)
    for _ in range(2):
        last = committed(checkpoint)[-1]
        before = assert_whole_batches(read_topic(gateway.bootstrap, topic))
        forget(checkpoint, last)

        query = start(numbers(spark), topic)
        run_to(query, last)

        assert last in committed(checkpoint)
        assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) >= before
    assert published(gateway, query.id)[0][1] >= committed(checkpoint)[-1]


def test_a_new_checkpoint_is_a_new_query(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, tmp_path: Path
) -> None:
    topic = make_topic()
    for name in ("one", "two"):
        run_to(start(numbers(spark), topic, place=str(tmp_path / name)), 0)

    found = values_of(read_topic(gateway.bootstrap, topic))
    assert [found.count(str(number)) for number in range(ROWS)] == [2] * ROWS


def test_two_queries_of_one_frame_are_two_sinks(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, tmp_path: Path
) -> None:
    topics = [make_topic(), make_topic(2)]
    frame = numbers(spark)

    queries = [start(frame, topic, place=str(tmp_path / topic)) for topic in topics]
    for query in queries:
        run_to(query, 1)

    for topic in topics:
        assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) >= 2


def test_named_writes_in_foreach_batch_are_done_once(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, checkpoint: str
) -> None:
    """Two topics of one batch; the first attempt dies between them."""
    first, second = make_topic(2), make_topic()
    died: list[int] = []

    def write(batch: DataFrame, batch_id: int) -> None:
        for topic in (first, second):
            writer = batch.write.format("penstock").mode("append").option("topic", topic)
            writer = writer.option("kafka.bootstrap.servers", gateway.bootstrap)
            writer.options(txnAppId=first, txnVersion=batch_id).save()
            if batch_id == 1 and not died:
                died.append(batch_id)
                raise RuntimeError("this batch fails once")

    def started() -> StreamingQuery:
        writer = numbers(spark).writeStream.foreachBatch(write)
        return writer.option("checkpointLocation", checkpoint).start()

    with pytest.raises(Exception, match="this batch fails once"):
        started().awaitTermination(WITHIN_S)
    run_to(started(), 2)

    for topic in (first, second):
        assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) >= 3


def test_a_task_that_fails_once_is_not_doubled(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, tmp_path: Path
) -> None:
    from pyspark.sql.functions import udf

    topic = make_topic(2)
    failed = str(tmp_path / "failed")

    def once(value):  # type: ignore[no-untyped-def] # Spark would read the hints
        if int(value) == 2 * ROWS - 1 and not Path(failed).exists():
            Path(failed).touch()
            raise RuntimeError("this task fails once")
        return value

    run_to(start(numbers(spark).select(udf(once, "string")("value").alias("value")), topic), 2)

    assert Path(failed).exists()
    assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) >= 3


def test_a_query_that_fails_goes_on_where_it_was(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(2)
    limit = 2 * ROWS
    broken = numbers(spark).selectExpr(
        f"IF(CAST(value AS INT) = {limit + 1}, raise_error('broken'), value) AS value"
    )

    query = start(broken, topic)
    with pytest.raises(Exception, match="broken"):
        query.awaitTermination(WITHIN_S)
    assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) == 2

    run_to(start(numbers(spark), topic), 3)
    assert assert_whole_batches(read_topic(gateway.bootstrap, topic)) >= 4


def test_batches_without_rows(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway, checkpoint: str
) -> None:
    topic = make_topic()
    odd = f"CAST(value AS INT) DIV {ROWS} % 2 = 1"

    run_to(start(numbers(spark).where(odd), topic), 4)

    found = {int(value) // ROWS for value in values_of(read_topic(gateway.bootstrap, topic))}
    assert found >= {1, 3}
    assert all(batch % 2 for batch in found)


@pytest.mark.variant  # a minute and more; `make variants`
def test_complete_mode_writes_every_result(
    spark: SparkSession, start: Start, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()
    counts = numbers(spark).groupBy().count().selectExpr("CAST(count AS STRING) AS value")

    run_to(start(counts, topic, mode="complete"), 2)

    found = [int(record.value or b"0") for record in read_topic(gateway.bootstrap, topic)]
    assert found[:3] == [ROWS, 2 * ROWS, 3 * ROWS]
    assert found == sorted(set(found))


def test_an_unknown_option_is_refused(
    spark: SparkSession, start: Start, make_topic: MakeTopic
) -> None:
    query = start(numbers(spark), make_topic(), **{"kafka.acks": "all"})

    with pytest.raises(Exception, match=r"The penstock sink has no option 'kafka\.acks'"):
        query.awaitTermination(WITHIN_S)


def test_a_streams_batches_are_numbered_by_spark_alone(
    spark: SparkSession, start: Start, make_topic: MakeTopic
) -> None:
    query = start(numbers(spark), make_topic(), txnAppId="a", txnVersion=1)

    with pytest.raises(Exception, match="a stream's batches are counted by Spark"):
        query.awaitTermination(WITHIN_S)


# --- what a writer does with attempts, without a cluster to make them ---


def writer(gateway: Gateway, topic: str, **further: str) -> PenstockBatchWriter:
    given = {"kafka.bootstrap.servers": gateway.bootstrap, "topic": topic, **further}
    return PenstockBatchWriter(parse(given, is_stream=False))


def attempt(of: PenstockBatchWriter, *values: str) -> TaskMessage:
    return of.write(iter([pa.record_batch({"value": list(values)})]))


def test_only_the_attempt_that_won_is_published(make_topic: MakeTopic, gateway: Gateway) -> None:
    """Of a speculative duplicate no message reaches the driver."""
    topic = make_topic(2)
    both = writer(gateway, topic)
    won, lost = attempt(both, "a", "b"), attempt(both, "a", "b")
    assert won.staged.token != lost.staged.token

    both.commit([won])

    assert values_of(read_topic(gateway.bootstrap, topic)) == ["a", "b"]
    both.abort([lost])
    assert staged(gateway, lost) == []


def test_an_abort_does_not_undo_a_commit(make_topic: MakeTopic, gateway: Gateway) -> None:
    topic = make_topic()
    one = writer(gateway, topic)
    message = attempt(one, "a")
    one.commit([message])

    one.abort([message, None])
    one.commit([message])  # whose answer was lost

    assert values_of(read_topic(gateway.bootstrap, topic)) == ["a"]


def test_a_stream_whose_checkpoint_is_too_old_fails(
    make_topic: MakeTopic, gateway: Gateway
) -> None:
    """It would be told that the batch is published, whatever is in it now."""
    topic, query = make_topic(), str(uuid4())
    given = {"kafka.bootstrap.servers": gateway.bootstrap, "topic": topic}
    stream = PenstockStreamWriter(parse(given, is_stream=True))
    staged_once = attempt(writer(gateway, topic), "a")
    message = replace(staged_once, query_id=query)
    stream.commit([message], 5)
    stream.commit([message], 5)  # whose answer was lost
    with pytest.raises(SinkError, match=r"Batch 3 was not written: .* up to 5 are published"):
        stream.commit([message], 3)
    assert values_of(read_topic(gateway.bootstrap, topic)) == ["a"]


def test_a_name_that_has_come_further_is_told_of(
    make_topic: MakeTopic, gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    topic = make_topic()
    for number in (5, 5, 3):
        one = writer(gateway, topic, txnAppId="app-of-this-test", txnVersion=str(number))
        one.commit([attempt(one, f"{number}")])
    assert values_of(read_topic(gateway.bootstrap, topic)) == ["5"]
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("penstock")
    ] == ["Nothing was written: app-of-this-test has written number 5, and this is 3."]


def test_a_name_that_has_come_further_fails_where_the_user_says_so(
    make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()
    named = {"txnAppId": f"app-{topic}", "txnBelow": "fail"}
    for number in (5, 5):  # a repetition is none
        one = writer(gateway, topic, **named, txnVersion=str(number))
        one.commit([attempt(one, f"{number}")])
    old = writer(gateway, topic, **named, txnVersion="3")
    with pytest.raises(SinkError, match=r"Batch 3 was not written: .* up to 5 are published"):
        old.commit([attempt(old, "3")])
    assert values_of(read_topic(gateway.bootstrap, topic)) == ["5"]


def test_a_task_without_a_message_fails_the_batch(make_topic: MakeTopic, gateway: Gateway) -> None:
    topic = make_topic()
    one = writer(gateway, topic)
    with pytest.raises(SinkError, match="1 tasks of the batch"):
        one.commit([attempt(one, "a"), None])
    assert read_topic(gateway.bootstrap, topic) == []


def test_an_abort_drops_what_was_staged(make_topic: MakeTopic, gateway: Gateway) -> None:
    topic = make_topic()
    one = writer(gateway, topic)
    message = attempt(one, "a")
    assert len(staged(gateway, message)) == 1

    one.abort([message])

    assert staged(gateway, message) == []
    with pytest.raises(SinkError, match=f"RESOURCE_NOT_FOUND.*{re.escape(str(token(message)))}"):
        one.commit([message])
    assert read_topic(gateway.bootstrap, topic) == []


def token(message: TaskMessage) -> UUID:
    assert message.staged.token is not None
    return message.staged.token


def staged(gateway: Gateway, message: TaskMessage) -> list[tuple[object, ...]]:
    assert gateway.database_url is not None
    with psycopg.connect(gateway.database_url) as connection:
        rows = "SELECT batches FROM v_staged_token WHERE token = %s"
        return connection.execute(rows, (token(message),)).fetchall()

"""The sink in batch jobs: what each column means, and the same partitions as Spark's Kafka sink."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from penstock.spark import PenstockDataSource
from penstock.spark.jars import JarsUnavailable, connector_jars
from tests.conftest import Gateway, StartGateway, free_port
from tests.spark.conftest import MakeTopic
from tests.spark.topics import read_topic, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Write = Callable[..., None]


@pytest.fixture
def write(spark: SparkSession, gateway: Gateway) -> Write:
    """Writes a frame to a topic with the sink: `write(frame, topic, **{"sink.id": "a"})`."""
    spark.dataSource.register(PenstockDataSource)

    def written(frame: DataFrame, topic: str | None, **options: Any) -> None:
        writer = frame.write.format("penstock").mode("append")
        writer = writer.option("kafka.bootstrap.servers", gateway.bootstrap)
        if topic is not None:
            writer = writer.option("topic", topic)
        writer.options(**options).save()

    return written


@pytest.fixture
def connector() -> Iterator[None]:
    try:
        connector_jars(offline=True)
    except JarsUnavailable as missing:
        pytest.skip(str(missing))
    yield


def test_rows_are_there_once(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(4)
    before = time.time_ns() // 1_000_000

    write(spark.range(30_000, numPartitions=3).selectExpr("CAST(id AS STRING) AS value"), topic)

    records = read_topic(gateway.bootstrap, topic)
    assert values_of(records) == sorted(map(str, range(30_000)))
    # Each task takes turns, two of them, and begins anywhere.
    assert len({record.partition for record in records}) >= 2
    assert all(before <= record.timestamp <= before + 60_000 for record in records)


def test_every_column(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(3)
    frame = spark.sql(
        """
        SELECT * FROM VALUES
          ('a', CAST('one' AS BINARY), array(named_struct('key', 'h', 'value', CAST('1' AS BINARY)),
             named_struct('key', 'h', 'value', CAST(NULL AS BINARY))), 2,
             TIMESTAMP'2024-05-06 07:08:09.123456', 'left alone'),
          ('b', NULL, array(), 1, TIMESTAMP'1970-01-01 00:00:00', 'too'),
          (NULL, CAST('three' AS BINARY), NULL, 0, TIMESTAMP'2024-05-06 07:08:09', 'and this')
        AS t(key, value, headers, partition, timestamp, offset)
        """
    ).coalesce(1)

    write(frame, topic)

    third, second, first = read_topic(gateway.bootstrap, topic)
    assert (first.key, first.value, first.partition) == (b"a", b"one", 2)
    assert first.headers == (("h", b"1"), ("h", None))
    assert first.timestamp == 1_714_979_289_123
    assert (second.key, second.value, second.headers) == (b"b", None, ())
    assert second.timestamp == 0
    assert (third.key, third.value, third.headers) == (None, b"three", ())


def test_headers_are_left_out_where_the_user_says_so(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()
    frame = spark.sql(
        "SELECT 'v' AS value, array(named_struct('key', 'h', 'value', CAST('1' AS BINARY)))"
        " AS headers"
    )

    write(frame, topic, includeHeaders=False)

    assert [record.headers for record in read_topic(gateway.bootstrap, topic)] == [()]


def test_a_column_says_the_topic(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topics = [make_topic(1), make_topic(3), make_topic(2)]
    frame = spark.range(3_000).selectExpr(
        f"concat('{topics[0][:-1]}', 1 + id % 3) AS topic",
        "CAST(id AS STRING) AS value",
        "IF(id % 2 = 0, CAST(id AS STRING), NULL) AS key",
    )

    write(frame, None)

    for number, topic in enumerate(topics):
        expected = sorted(str(each) for each in range(3_000) if each % 3 == number)
        assert values_of(read_topic(gateway.bootstrap, topic)) == expected


def test_the_option_wins_over_the_column(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()

    write(spark.sql("SELECT 'elsewhere' AS topic, 'v' AS value"), topic)

    assert values_of(read_topic(gateway.bootstrap, topic)) == ["v"]


def test_partitions_and_records_are_those_of_sparks_kafka_sink(
    spark: SparkSession,
    write: Write,
    make_topic: MakeTopic,
    gateway: Gateway,
    connector: None,
) -> None:
    """Both written; read back by Spark's source, which is the Java client."""
    ours, stock = make_topic(7), make_topic(7)
    frame = spark.range(2_000).selectExpr(
        "CASE WHEN id % 5 = 0 THEN CAST('' AS BINARY)"
        " ELSE CAST(repeat('kéy', CAST(id % 17 AS INT)) || id AS BINARY) END AS key",
        "IF(id % 11 = 0, NULL, CAST(id AS STRING)) AS value",
        "IF(id % 3 = 0, NULL, transform(sequence(0, id % 3),"
        " x -> named_struct('key', '' || x, 'value', CAST('' || id AS BINARY)))) AS headers",
        "IF(id % 13 = 0, CAST(id % 7 AS INT), NULL) AS partition",
    )
    options = {"kafka.bootstrap.servers": gateway.bootstrap, "includeHeaders": "true"}

    write(frame, ours)
    frame.write.format("kafka").options(**options).option("topic", stock).save()

    def read(topic: str) -> list[Any]:
        loaded = spark.read.format("kafka").options(**options).option("subscribe", topic).load()
        return sorted(
            (tuple(row) for row in loaded.select("partition", "key", "value", "headers").collect()),
            key=repr,
        )

    written = read(ours)
    assert len(written) == 2_000
    assert written == read(stock)


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read_by_the_java_client(
    spark: SparkSession,
    write: Write,
    make_topic: MakeTopic,
    gateway: Gateway,
    connector: None,
    compression: str,
) -> None:
    topic = make_topic()
    frame = spark.range(20_000).selectExpr("repeat(CAST(id AS STRING), 20) AS value")

    write(frame, topic, **{"kafka.compression.type": compression})

    options = {"kafka.bootstrap.servers": gateway.bootstrap, "subscribe": topic}
    found = spark.read.format("kafka").options(**options).load()
    values = found.selectExpr("CAST(value AS STRING) AS value")
    assert sorted(row.value for row in values.collect()) == sorted(
        row.value for row in frame.collect()
    )
    assert values_of(read_topic(gateway.bootstrap, topic)) == sorted(
        str(each) * 20 for each in range(20_000)
    )


def test_batches_fit_the_topic(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(1, {"max.message.bytes": "3000"})

    write(spark.range(1_000).selectExpr("lpad(CAST(id AS STRING), 100, '0') AS value"), topic)

    assert len(read_topic(gateway.bootstrap, topic)) == 1_000
    sizes = batch_sizes(gateway, topic)
    assert max(sizes) <= 3_000
    assert len(sizes) < 60


def test_batches_are_as_large_as_the_user_says(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(1)
    frame = spark.range(0, 1_000, numPartitions=1)

    write(frame.selectExpr("lpad(CAST(id AS STRING), 100, '0') AS value"), topic, **SMALL)

    sizes = batch_sizes(gateway, topic)
    assert max(sizes) <= 16_384
    assert len(sizes) <= 9


SMALL = {"batch.size": 16_384}


def batch_sizes(gateway: Gateway, topic: str) -> list[int]:
    assert gateway.database_url is not None
    with psycopg.connect(gateway.database_url) as connection:
        rows = connection.execute("SELECT bytes FROM v_record_batch WHERE topic = %s", (topic,))
        return [row[0] for row in rows]


def test_a_record_that_is_too_large_fails_the_job_and_leaves_nothing(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(2, {"max.message.bytes": "3000"})
    frame = spark.range(100).selectExpr("repeat('x', IF(id = 99, 4000, 10)) AS value")

    with pytest.raises(Exception, match=TOO_LARGE):
        write(frame, topic)

    assert read_topic(gateway.bootstrap, topic) == []


TOO_LARGE = r"raise the topic's max\.message\.bytes, or compress .*MESSAGE_TOO_LARGE.*of 3000\."


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
def test_what_cannot_be_compressed_fits_the_topic(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway, compression: str
) -> None:
    """Records that fill the largest batch that the topic takes, and that a codec makes larger."""
    topic = make_topic(1, {"max.message.bytes": "65536"})
    count, size = 12, 65_536 - 61 - 21
    values = [{"value": bytearray(random.Random(n).randbytes(size))} for n in range(count)]
    options = {"batch.size": 1 << 20, "compression.type": compression}

    write(spark.createDataFrame(values, "value BINARY"), topic, **options)

    assert len(read_topic(gateway.bootstrap, topic)) == count
    assert max(batch_sizes(gateway, topic)) <= 65_536


def test_nothing_to_write(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()

    write(spark.createDataFrame([], "value STRING"), topic)
    write(spark.range(100).selectExpr("CAST(id AS STRING) AS value").where("value = 'x'"), topic)

    assert read_topic(gateway.bootstrap, topic) == []


def test_a_task_that_fails_once_is_not_doubled(
    spark: SparkSession,
    write: Write,
    make_topic: MakeTopic,
    gateway: Gateway,
    tmp_path: Path,
) -> None:
    """It fails at its end, when most of it is staged: a second attempt stages all of it anew."""
    from pyspark.sql.functions import udf

    topic = make_topic(2)
    failed = str(tmp_path / "failed")

    def once(number):  # type: ignore[no-untyped-def] # Spark would read the hints
        if number == 39_999 and not Path(failed).exists():
            Path(failed).touch()
            raise RuntimeError("this task fails once")
        return str(number)

    frame = spark.range(0, 40_000, numPartitions=2)

    write(frame.select(udf(once, "string")("id").alias("value")), topic)

    assert Path(failed).exists()
    found = values_of(read_topic(gateway.bootstrap, topic))
    assert found == sorted(map(str, range(40_000)))


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic(2)
    frame = spark.range(0, 40_000, numPartitions=2)
    value = "IF(id = 39999, raise_error('always'), CAST(id AS STRING)) AS value"

    with pytest.raises(Exception, match="always"):
        write(frame.selectExpr(value), topic)

    assert read_topic(gateway.bootstrap, topic) == []


def test_a_named_write_is_done_once(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic, other = make_topic(2), make_topic(2)
    frame = spark.range(100).selectExpr("CAST(id AS STRING) AS value")

    for version in (0, 0, 1, 0, 1):
        write(frame, topic, txnAppId=f"job-{topic}", txnVersion=version)
        write(frame, other, txnAppId=f"job-{topic}", txnVersion=version)
    write(frame, topic, txnAppId=f"another-{topic}", txnVersion=0)

    assert len(read_topic(gateway.bootstrap, topic)) == 300
    assert len(read_topic(gateway.bootstrap, other)) == 200


def test_unnamed_writes_are_done_each_time(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()

    for _ in range(2):
        write(spark.range(10).selectExpr("CAST(id AS STRING) AS value"), topic)

    assert len(read_topic(gateway.bootstrap, topic)) == 20


def test_the_first_server_is_down(
    spark: SparkSession, write: Write, make_topic: MakeTopic, gateway: Gateway
) -> None:
    topic = make_topic()
    servers = f"127.0.0.1:{free_port()},{gateway.bootstrap}"

    write(spark.sql("SELECT 'v' AS value"), topic, **{"kafka.bootstrap.servers": servers})

    assert values_of(read_topic(gateway.bootstrap, topic)) == ["v"]


def test_a_topic_is_made_where_the_cluster_makes_topics(
    spark: SparkSession, write: Write, topic_name: str, gateway: Gateway
) -> None:
    write(spark.sql("SELECT 'v' AS value"), topic_name)

    assert values_of(read_topic(gateway.bootstrap, topic_name)) == ["v"]


def test_a_topic_is_refused_where_it_does_not(
    spark: SparkSession,
    write: Write,
    topic_name: str,
    start_gateway: StartGateway,
    database_url: str,
) -> None:
    strict = start_gateway("--override=auto.create.topics.enable=false", database_url=database_url)
    servers = {"kafka.bootstrap.servers": strict.bootstrap}

    with pytest.raises(Exception, match=f"Topic '{topic_name}' does not exist"):
        write(spark.sql("SELECT 'v' AS value"), topic_name, **servers)


@pytest.mark.parametrize(
    ("query", "topic", "options", "sentence"),
    [
        ("SELECT 'v' AS value", "t", {"acks": "all"}, "has no option 'acks'. It has: "),
        ("SELECT 1 AS value", "t", {}, "Column 'value' is of type string or binary, not int"),
        ("SELECT 'v' AS value, 9 AS partition", "", {}, "partition is 9, but topic '.*' has 1"),
    ],
)
def test_refusals_are_sentences(
    spark: SparkSession,
    write: Write,
    make_topic: MakeTopic,
    query: str,
    topic: str | None,
    options: dict[str, Any],
    sentence: str,
) -> None:
    """topic: "" for one that exists."""
    with pytest.raises(Exception, match=sentence):
        write(spark.sql(query), make_topic() if topic == "" else topic, **options)


def test_a_topic_cannot_be_overwritten(spark: SparkSession, write: Write, gateway: Gateway) -> None:
    writer = spark.sql("SELECT 'v' AS value").write.format("penstock").mode("overwrite")

    with pytest.raises(Exception, match="A topic cannot be overwritten"):
        writer.option("kafka.bootstrap.servers", gateway.bootstrap).option("topic", "t").save()


def test_there_is_no_source(spark: SparkSession, write: Write) -> None:
    with pytest.raises(Exception, match="read with format 'kafka'"):
        spark.read.format("penstock").load()

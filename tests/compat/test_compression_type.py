"""Topics that choose their codec (`compression.type`): who writes what, and what is stored.

Expectations are Apache Kafka 4.1's own: `PENSTOCK_TEST_BOOTSTRAP=kafka` runs all of this with one.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from compat.java import tools
from gateway.kafka.compression import Codec, compress
from gateway.kafka.records import codec_of, opened, with_records
from tests.batches import T0, kafka_batch, with_body
from tests.captures import record
from tests.captures.every_version import framed
from tests.compat.clients import Client, read_to_end
from tests.compat.conftest import MakeTopic, make_client
from tests.gateway.kafka.handlers.fetching import fetch_request
from tests.gateway.kafka.handlers.producing import produce_request
from tests.kafka_codes import Code

TYPES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
IN_PYTHON = ["confluent", "aiokafka", "kafka-python"]
VALUES = [b"the same bytes for everyone %d " % n * 10 for n in range(30)]


def asked(bootstrap: str, message: Any, version: int) -> Any:
    """A broker's answer to a request that no client sends."""
    with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
        frame = framed(message, version, 1)
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = connection.makefile("rb")
        found = answer.read(int.from_bytes(answer.read(4), "big"))
    body = found[record.body_of_response(message.API_KEY, version) :]
    return record.response_class(message.API_KEY).decode(body, version=version)


def fetched(bootstrap: str, topic: str) -> Any:
    request = fetch_request({0: 0}, topic=topic, partition_max_bytes=10**7)
    ((part,),) = [each.partitions for each in asked(bootstrap, request, 11).responses]
    return part


def stored(bootstrap: str, topic: str) -> list[bytes]:
    """A partition's batches, as a consumer gets them."""
    records, found = bytes(fetched(bootstrap, topic).records), []
    while records:
        length = 12 + int.from_bytes(records[8:12], "big")
        found.append(records[:length])
        records = records[length:]
    return found


def produced(bootstrap: str, topic: str, batch: bytes) -> Any:
    request = produce_request({0: batch}, name=topic)
    answer = asked(bootstrap, request, 9)
    ((part,),) = [each.partition_responses for each in answer.responses]
    return part


@pytest.fixture
def topics(make_topic: MakeTopic) -> dict[str, str]:
    """A topic of each type."""
    return {kind: make_topic(config={"compression.type": kind}) for kind in (*TYPES, "producer")}


@pytest.fixture
def every_client(request: pytest.FixtureRequest, bootstrap: str) -> Iterator[dict[str, Client]]:
    with contextlib.ExitStack() as stack:
        made = {name: make_client(name, request, bootstrap) for name in IN_PYTHON}
        for client in made.values():
            stack.callback(client.close)
        yield made


def test_every_client_writes_every_codec_and_reads_every_type(
    every_client: dict[str, Client], bootstrap: str, topics: dict[str, str]
) -> None:
    sent = []
    for client in every_client.values():
        for codec in CODECS:
            settings = {"compression_type": codec, "linger_ms": 50}
            if codec == "none" and client.name != "confluent":
                settings["compression_type"] = None
            with closing(client.plain_producer(**settings)) as producer:
                for topic in topics.values():
                    for value in VALUES:
                        producer.send(topic, value, key=codec.encode(), headers=[("h", b"\xff")])
                told = producer.flush()
            assert {each.error for each in told} == {""}
            sent += [(codec.encode(), value, (("h", b"\xff"),)) for value in VALUES]
    for kind, topic in topics.items():
        codecs = {codec_of(batch) for batch in stored(bootstrap, topic)}
        assert codecs == ({TYPES[kind]} if kind in TYPES else set(Codec)), kind
        for client in every_client.values():
            found = read_to_end(client, topic)
            assert [(each.key, each.value, each.headers) for each in found] == sent, kind


@pytest.mark.java
def test_javas_transactions_of_every_codec_are_stored_in_every_type(
    request: pytest.FixtureRequest, bootstrap: str, topics: dict[str, str]
) -> None:
    values = [value.decode() for value in VALUES]
    with closing(make_client("java", request, bootstrap)) as client:
        for codec in CODECS:
            settings = {"compression.type": codec, "linger.ms": 50}
            producer = client.producer(f"{topics['gzip']}-{codec}", **settings)
            for end in (producer.abort, producer.commit) if codec == "none" else (producer.commit,):
                producer.begin()
                for topic in topics.values():
                    producer.send(topic, *values)
                producer.flush()
                end()
            producer.close()
        for kind, topic in topics.items():
            batches = stored(bootstrap, topic)
            markers = [batch for batch in batches if batch[22] & 0x20]
            codecs = {codec_of(batch) for batch in batches if not batch[22] & 0x20}
            assert codecs == ({TYPES[kind]} if kind in TYPES else set(Codec)), kind
            assert [codec_of(batch) for batch in markers] == [Codec.NONE] * 6
            found = read_to_end(client, topic)
            assert [each.value.decode() for each in found] == values * 5, kind


@pytest.mark.parametrize("kind", TYPES)
def test_a_header_stays_what_it_was(bootstrap: str, topics: dict[str, str], kind: str) -> None:
    stamps = [T0, T0 + 700, T0 - 300]
    plain = kafka_batch([b"v" * 300, None, b""], keys=[b"k", None, b""], timestamps=stamps)
    for number, codec in enumerate(Codec):
        sent = with_records(plain, compress(plain[61:], codec), codec)
        part = produced(bootstrap, topics[kind], sent)
        assert (part.error_code, part.base_offset) == (0, 3 * number)
    for number, batch in enumerate(stored(bootstrap, topics[kind])):
        assert int.from_bytes(batch[:8], "big") == 3 * number
        assert batch[21:23] == bytes([0, TYPES[kind]])
        assert batch[23:61] == plain[23:61]
        assert bytes(opened(batch)) == plain[61:]


def test_a_greatest_timestamp_that_is_none_of_the_records_is_made_right(
    bootstrap: str, topics: dict[str, str]
) -> None:
    batch = bytearray(kafka_batch([b"v"]))
    struct.pack_into(">q", batch, 35, T0 + 9_999)
    produced(bootstrap, topics["gzip"], with_body(bytes(batch), bytes(batch[61:])))
    (found,) = stored(bootstrap, topics["gzip"])
    assert found[35:43] == T0.to_bytes(8, "big")


def test_a_header_that_does_not_tell_of_a_late_record_does_not_hide_it(
    bootstrap: str, topics: dict[str, str]
) -> None:
    tomorrow = int(time.time() + 86_400) * 1000
    batch = bytearray(kafka_batch([b"v"] * 3, timestamps=[T0, tomorrow, T0]))
    struct.pack_into(">q", batch, 35, T0)
    lying = with_body(bytes(batch), bytes(batch[61:]))
    part = produced(bootstrap, topics["gzip"], lying)
    assert part.error_code == Code.INVALID_TIMESTAMP
    assert [each.batch_index for each in part.record_errors] == [1]


def test_the_logs_stamp(bootstrap: str, make_topic: MakeTopic) -> None:
    config = {"compression.type": "gzip", "message.timestamp.type": "LogAppendTime"}
    topic = make_topic(config=config)
    before = time.time() * 1000
    part = produced(bootstrap, topic, kafka_batch([b"v"] * 2))
    (found,) = stored(bootstrap, topic)
    assert found[21:23] == bytes([0, 0x08 | Codec.GZIP])
    assert int.from_bytes(found[35:43], "big") == part.log_append_time_ms
    assert before - 1000 <= part.log_append_time_ms <= time.time() * 1000 + 1000


def test_both_sizes_count(bootstrap: str, make_topic: MakeTopic) -> None:
    plain = kafka_batch([bytes(5_000)])
    small = with_records(plain, compress(plain[61:], Codec.ZSTD), Codec.ZSTD)
    limit = {"max.message.bytes": "1000"}
    for kind, batch, code in (
        ("zstd", plain, Code.MESSAGE_TOO_LARGE),
        ("uncompressed", small, Code.MESSAGE_TOO_LARGE),
        ("gzip", small, 0),
        ("producer", small, 0),
    ):
        topic = make_topic(config={"compression.type": kind, **limit})
        assert produced(bootstrap, topic, batch).error_code == code, kind


BROKEN = {
    "long value": bytes([12, 0, 0, 0, 1, 8, 0]),
    "bytes behind the headers": bytes([14, 0, 0, 0, 1, 1, 0, 0]),
    "headers missing": bytes([12, 0, 0, 0, 1, 1, 2]),
    "headers less than none": bytes([12, 0, 0, 0, 1, 1, 1]),
    "header without a name": bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]),
    "header longer than the record": bytes([16, 0, 0, 0, 1, 1, 2, 0, 8]),
}


def test_broken_records(bootstrap: str, topics: dict[str, str]) -> None:
    for what, body in BROKEN.items():
        plain = with_body(kafka_batch([None]), body)
        for batch in (plain, with_records(plain, compress(body, Codec.GZIP), Codec.GZIP)):
            part = produced(bootstrap, topics["zstd"], batch)
            assert (part.error_code, part.record_errors) == (Code.INVALID_RECORD, []), what


def test_records_without_keys_of_a_compacted_topic(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"compression.type": "lz4", "cleanup.policy": "compact"})
    part = produced(bootstrap, topic, kafka_batch([b"a", b"b", b"c"], keys=[b"k", None, None]))
    assert part.error_code == Code.INVALID_RECORD
    assert [each.batch_index for each in part.record_errors] == [1, 2]


@pytest.mark.java
@pytest.mark.variant
def test_what_kafkas_tools_write_and_read(bootstrap: str, make_topic: MakeTopic) -> None:
    topic = make_topic(config={"compression.type": "lz4"})
    at = ("--bootstrap-server", bootstrap)
    lines = [value.decode().strip() for value in VALUES]
    run = functools.partial(tools.java_tool, jvm=tools.SHORT_LIVED, log_level="error")
    run(
        "org.apache.kafka.tools.ConsoleProducer",
        *at,
        *("--topic", topic, "--compression-codec", "zstd"),
        stdin="".join(f"{line}\n" for line in lines),
    )
    assert {codec_of(batch) for batch in stored(bootstrap, topic)} == {Codec.LZ4}
    read = run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *at,
        *("--topic", topic, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(len(lines)), "--timeout-ms", "60000"),
    ).stdout
    assert read.splitlines() == lines


@pytest.mark.java
def test_what_kafka_configs_shows_and_refuses(
    shell: tools.RunTool, bootstrap: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(config={"compression.type": "lz4"})
    configs = functools.partial(
        shell,
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic),
    )
    configs("--alter", "--add-config", "compression.type=zstd,compression.zstd.level=7")
    said = configs("--describe", "--all").stdout
    assert sorted(re.findall(r"^  (compression\.\S+=.*)$", said, re.MULTILINE)) == SHOWN
    refused = configs("--alter", "--add-config", "compression.type=lzma", check=False)
    assert refused.returncode == 1
    told = refused.stdout + refused.stderr
    assert "Invalid value lzma for configuration compression.type" in told
    produced(bootstrap, topic, kafka_batch([b"value" * 100]))
    assert codec_of(stored(bootstrap, topic)[-1]) is Codec.ZSTD


SHOWN = [
    "compression.gzip.level=-1 sensitive=false synonyms={DEFAULT_CONFIG:compression.gzip.level=-1}",
    "compression.lz4.level=9 sensitive=false synonyms={DEFAULT_CONFIG:compression.lz4.level=9}",
    "compression.type=zstd sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:compression.type=zstd, "
    "DEFAULT_CONFIG:compression.type=producer}",
    "compression.zstd.level=7 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:"
    "compression.zstd.level=7, DEFAULT_CONFIG:compression.zstd.level=3}",
]

"""The codec: kafka-python's bytes both ways, and nothing but MalformedRequest for noise."""

import random
import struct
import time
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.api_header import ResponseClassRegistry

from gateway.kafka import codec
from gateway.kafka.codec import (
    ApiVersionsResponse,
    DescribeConfigsRequest,
    FetchResponse,
    MalformedRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    Unencodable,
)
from gateway.kafka.compiled import MAX_ELEMENTS, varint

KEYS = [0, 1, 2, 3, 18, 19, 20, 21, 22, 23, 32, 33, 35, 37, 44, 60, 61, 75]
REQUESTS = [codec.request_class(key) for key in KEYS]
RESPONSES = [
    getattr(codec, request.name.removesuffix("Request") + "Response") for request in REQUESTS
]
MESSAGES = [
    (message, version)
    for message in (*REQUESTS, *RESPONSES)
    for version in range(message.max_version + 1)
]
SERVED = [
    (key, version) for key in KEYS for version in range(codec.request_class(key).max_version + 1)
]


def an_id(pair: Any) -> str:
    return f"{pair[0].name}-v{pair[1]}" if not isinstance(pair[0], int) else f"{pair[0]}-v{pair[1]}"


class Values:
    """Random messages, drawn from the schemas."""

    def __init__(self, seed: int, version: int) -> None:
        self.random = random.Random(seed)
        self.version = version

    def message(self, field: Any, data_class: Any) -> Any:
        values = {
            one.name: self.value(one, one.nullable_for_version_q(self.version))
            for one in field.fields.values()
            if one.for_version_q(self.version)
        }
        return data_class(version=self.version, **values)

    def value(self, field: Any, nullable: bool) -> Any:
        if nullable and self.random.random() < 0.3:
            return None
        if field.is_struct():
            return self.message(field, field.data_class)
        if field.is_array():
            element = field.array_of
            return [self.value(element, False) for _ in range(self.random.randrange(4))]
        match field.type_str:
            case "string":
                return self.random.choice(["", "a", "é\0", "x" * 200])
            case "bytes" | "records":
                return self.random.randbytes(self.random.choice([0, 5, 300, 5_000]))
            case "bool":
                return self.random.random() < 0.5
            case "uuid":
                return self.random.choice([None, uuid.UUID(int=self.random.getrandbits(128))])
            case "bitfield":
                return self.random.choice([None, {1, 3, 5}])
            case "float64":
                return 1.5
            case _:
                return self.random.randrange(128)


@pytest.mark.parametrize("pair", MESSAGES, ids=an_id)
def test_every_message_has_the_bytes_of_kafka_pythons_encoder(pair: tuple[Any, int]) -> None:
    message, version = pair
    for seed in range(8):
        made = Values(seed, version).message(message._struct, message)
        expected = bytes(made.encode(version=version))
        assert b"".join(codec.encode_message(made, version)) == expected
        decoded = codec.decode_message(message, version, memoryview(expected))
        assert b"".join(codec.encode_message(decoded, version)) == expected


@pytest.mark.parametrize("pair", MESSAGES, ids=an_id)
def test_a_message_cut_anywhere_is_malformed(pair: tuple[Any, int]) -> None:
    message, version = pair
    made = Values(3, version).message(message._struct, message)
    whole = b"".join(codec.encode_message(made, version))
    cuts = range(len(whole)) if len(whole) < 300 else random.Random(1).sample(range(len(whole)), 60)
    for cut in cuts:
        with pytest.raises(MalformedRequest):
            codec.decode_message(message, version, memoryview(whole[:cut]))


def decode(frame: bytes) -> None:
    try:
        header = codec.decode_header(memoryview(frame))
        if header.api_version in range(codec.request_class(header.api_key).max_version + 1):
            codec.decode_body(header, memoryview(frame))
    except MalformedRequest:
        pass


@settings(max_examples=600)
@given(st.sampled_from(SERVED), st.binary(max_size=600))
def test_noise_is_malformed_or_understood(api: tuple[int, int], noise: bytes) -> None:
    decode(struct.pack(">hhihB", *api, 1, -1, 0) + noise)


@settings(max_examples=600)
@given(st.sampled_from(SERVED), st.integers(0, 50), st.data())
def test_a_damaged_request_is_malformed_or_understood(
    api: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    message, version = codec.request_class(api[0]), api[1]
    made = Values(seed, version).message(message._struct, message)
    body = bytearray(b"".join(codec.encode_message(made, version)))
    for _ in range(data.draw(st.integers(1, 4))):
        if body:
            at = data.draw(st.integers(0, len(body) - 1))
            body[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
    decode(struct.pack(">hhihB", *api, 1, -1, 0) + bytes(body))


@given(st.binary(max_size=60))
def test_any_header_is_malformed_or_understood(noise: bytes) -> None:
    decode(noise)


@pytest.mark.parametrize("filling", [b"\x80", b"\xff", b"\0", b"\x01", b"\x02", b"\x7f"])
@pytest.mark.parametrize("api", SERVED, ids=an_id)
def test_a_large_monotonous_body_is_decided_quickly(api: tuple[int, int], filling: bytes) -> None:
    frame = struct.pack(">hhihB", *api, 1, -1, 0) + filling * 1_000_000
    began = time.process_time()
    decode(frame)
    assert time.process_time() - began < 2


# The particular ways to lie.


def metadata_v9(body: bytes) -> Any:
    return codec.decode_message(MetadataRequest, 9, memoryview(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xff\xff\xff\x07" + bytes(50), "cut short"),
        (b"\xff\xff\xff\xff\x0f" + bytes(50), "2^31"),
        (b"\x80" * 1_000_000, "varint"),
        (b"\x02" + b"\x00" + b"\0" * 5, "null"),
        (b"\x02\x05ab", "cut short"),
        (b"\x02" + varint(20_001) + b"\xff" * 20_000 + bytes(4), "broken UTF-8"),
        (b"\x01\0\0\0\x01\x05\x7fabc", "tagged"),
        (b"\x01\0\0\0" + varint(0x7FFFFFFF) + bytes(100), "too many elements"),
    ],
    ids=["count", "overflow", "endless", "null", "short", "utf-8", "tag size", "tag count"],
)
def test_a_lie_is_named(body: bytes, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason.replace("^", r"\^")):
        metadata_v9(body)


@pytest.mark.parametrize(
    ("version", "length"), [(3, struct.pack(">H", 40_000)), (6, varint(40_001))]
)
def test_a_group_id_longer_than_a_string_may_be(version: int, length: bytes) -> None:
    body = memoryview(length + b"g" * 40_000 + bytes(100))
    with pytest.raises(MalformedRequest, match=r"group_id is (long|null)"):
        codec.decode_message(codec.JoinGroupRequest, version, body)


def test_a_frame_full_of_tiny_elements_costs_no_memory() -> None:
    body = varint(10_000_000 + 1) + b"\x01\0" * 10_000_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match="too many elements"):
            metadata_v9(body)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_many_elements_with_unknown_tags_take_linear_time() -> None:
    count = MAX_ELEMENTS // 2 - 10
    topic = b"\x02t\x01\x09\x02xx"  # one unknown tag, number 9, of two bytes
    body = varint(count + 1) + topic * count + b"\1\1\1\0"
    began = time.process_time()
    request = metadata_v9(body)
    assert time.process_time() - began < 2
    assert len(request.topics) == count


def test_a_negative_length_other_than_null_reads_as_null() -> None:
    body = struct.pack(">i", -5)
    assert codec.decode_message(MetadataRequest, 1, memoryview(body)).topics is None


def test_records_are_views_into_the_frame() -> None:
    records = bytes(range(256)) * 10
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=1, records=records)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic])
    for version in range(3, 13):
        frame = bytes(request.encode(version=version))
        decoded = codec.decode_message(ProduceRequest, version, memoryview(frame))
        found = decoded.topic_data[0].partition_data[0].records
        assert isinstance(found, memoryview)
        assert found.obj is frame
        assert found == records


def test_null_client_id_is_empty() -> None:
    header = codec.decode_header(memoryview(struct.pack(">hhih", 3, 1, 7, -1)))
    assert header == codec.RequestHeader(3, 1, 7, "", 10)


def test_a_client_id_that_is_not_utf8_is_read_as_java_reads_it() -> None:
    header = codec.decode_header(memoryview(struct.pack(">hhih", 3, 1, 7, 4) + b"a\xff\xfeb"))
    assert (header.client_id, header.body) == ("a\ufffd\ufffdb", 14)


def test_a_string_that_is_not_utf8_is_read_as_java_reads_it() -> None:
    (topic,) = metadata_v9(b"\x02\x03\xff\xfe\0" + bytes(4)).topics
    assert topic.name == "\ufffd\ufffd"


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = struct.pack(">hhih", 3, 9, 7, 2) + b"me" + b"\x02\x00\x01x\x05\x00"
    header = codec.decode_header(memoryview(frame))
    assert (header.client_id, header.body) == ("me", len(frame))


# Responses.


def fetch_response(records: Any) -> Any:
    partition = FetchResponse.FetchableTopicResponse.PartitionData(
        partition_index=0, high_watermark=5, records=records, aborted_transactions=None
    )
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition, partition])
    return FetchResponse(responses=[topic])


@pytest.mark.parametrize("version", range(4, 19))
@pytest.mark.parametrize("size", [0, 10, 3_000, 100_000])
def test_records_may_be_one_buffer_or_many(version: int, size: int) -> None:
    records = random.Random(size).randbytes(size)
    cut = memoryview(records)
    expected = bytes(fetch_response(records).encode(version=version))
    for given_as in (records, cut, [cut[: size // 2], cut[size // 2 :]], (bytearray(records),)):
        parts = codec.encode_message(fetch_response(given_as), version)
        assert b"".join(parts) == expected


def test_large_records_are_sent_by_reference() -> None:
    records = bytes(100_000)
    parts = codec.encode_response(fetch_response([records]), 11, 1)
    assert sum(part is records for part in parts) == 2
    assert len(b"".join(parts)) == struct.unpack_from(">i", parts[0])[0] + 4


def test_response_headers() -> None:
    flexible = b"".join(codec.encode_response(MetadataResponse(brokers=[], topics=[]), 9, 77))
    assert flexible[4:9] == struct.pack(">iB", 77, 0), "header v1 has tagged fields"
    old = b"".join(codec.encode_response(MetadataResponse(brokers=[], topics=[]), 1, 77))
    assert old[:12] == struct.pack(">iii", len(old) - 4, 77, 0)
    versions = b"".join(codec.encode_response(ApiVersionsResponse(api_keys=[]), 3, 77))
    assert versions[4:11] == struct.pack(">ihB", 77, 0, 1), "ApiVersions always has header v0"


def test_every_response_class_is_the_one_clients_decode() -> None:
    for request, response in zip(REQUESTS, RESPONSES, strict=True):
        registered = ResponseClassRegistry._response_class_registry[request.API_KEY]
        assert registered.name == response.name


def test_a_missing_field_is_an_error_not_a_guess() -> None:
    with pytest.raises(Unencodable, match="brokers"):
        codec.encode_message(MetadataResponse(brokers=None, topics=[]), 9)


def test_a_message_is_made_as_by_its_constructor() -> None:
    kind = FetchResponse.FetchableTopicResponse.PartitionData
    fields = {"partition_index": 3, "high_watermark": 7, "records": b"abc", "error_code": 0}
    one, other = codec.made(kind, **fields), kind(**fields)
    assert one == other
    assert one.log_start_offset == other.log_start_offset == -1
    topics = [FetchResponse.FetchableTopicResponse(topic="t", partitions=[p]) for p in (one, other)]
    sent = [codec.encode_message(FetchResponse(responses=[topic]), 12) for topic in topics]
    assert b"".join(sent[0]) == b"".join(sent[1])
    with pytest.raises(AttributeError):
        codec.made(kind, no_such_field=1)


def test_nullable_arrays() -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name="t", configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    for version in range(5):
        decoded = codec.decode_message(
            DescribeConfigsRequest, version, memoryview(bytes(request.encode(version=version)))
        )
        assert decoded.resources[0].configuration_keys is None


def test_unknown_key_has_no_request() -> None:
    with pytest.raises(ValueError, match="12345"):
        codec.request_class(12345)

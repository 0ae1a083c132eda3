"""The codec against golden captures of real clients and brokers, byte for byte, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.kafka import codec
from gateway.kafka.api import load_handlers
from tests.captures import record

# librdkafka asks for all topics with an array length of four bytes where one is meant: three bytes
# are left over at the end, which Kafka ignores and so must we.
STRAY_BYTES = {"03_metadata/v13_request": b"\x01\x00\x00"}

REQUESTS = sorted(record.CAPTURES.glob("*/v*_request.bin"))
RESPONSES = sorted(record.CAPTURES.glob("*/v*_response.bin"))


def name_of(capture: Path) -> str:
    return f"{capture.parent.name}/{capture.stem}"


def key_and_version(capture: Path) -> tuple[int, int]:
    return int(capture.parent.name.split("_")[0]), int(capture.name[1:].split("_")[0])


def described_beside(capture: Path) -> object:
    return json.loads(capture.with_suffix(".json").read_text())


@pytest.mark.parametrize("capture", REQUESTS, ids=name_of)
def test_request_is_decoded_and_encoded_to_the_same_bytes(capture: Path) -> None:
    frame = memoryview(capture.read_bytes())
    header = codec.decode_header(frame)
    assert (header.api_key, header.api_version) == key_and_version(capture)
    request = codec.decode_body(header, frame)
    encoded = b"".join(codec.encode_message(request, header.api_version))
    assert encoded + STRAY_BYTES.get(name_of(capture), b"") == frame[header.body :]
    assert record.described(request) == described_beside(capture)


@pytest.mark.parametrize("capture", RESPONSES, ids=name_of)
def test_response_is_decoded_and_encoded_to_the_same_bytes(capture: Path) -> None:
    key, version = key_and_version(capture)
    frame = capture.read_bytes()
    body = record.body_of_response(key, version)
    response = codec.decode_message(record.response_class(key), version, memoryview(frame), body)
    encoded = codec.encode_response(response, version, int.from_bytes(frame[:4], "big"))
    assert b"".join(encoded) == len(frame).to_bytes(4, "big") + frame
    assert record.described(response) == described_beside(capture)


def test_every_served_version_has_a_capture_with_its_origin() -> None:
    missing = []
    for api in load_handlers().table():
        folder = record.folder_of(api.key)
        origins = record.origins(folder)
        for version in api.versions:
            files = [folder / f"v{version}_{side}.bin" for side in ("request", "response")]
            if version not in origins or not all(file.exists() for file in files):
                missing.append(f"{api.name} v{version}")
    assert not missing

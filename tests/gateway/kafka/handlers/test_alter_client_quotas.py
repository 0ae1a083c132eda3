"""AlterClientQuotas and DescribeClientQuotas: set, seen at another broker, the database away."""

from __future__ import annotations

import json
from typing import Any

from structlog.testing import capture_logs

from core.errors import Error
from core.quota.entities import QuotaKey
from gateway.kafka import codec
from gateway.kafka.errors import kafka_code
from tests.captures import record
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker

Entry = codec.AlterClientQuotasRequest.EntryData


def entry(entity: dict[str, str | None], **ops: float | None) -> Any:
    return Entry(
        entity=[Entry.EntityData(entity_type=kind, entity_name=n) for kind, n in entity.items()],
        ops=[Entry.OpData(key=k, value=v or 0.0, remove=v is None) for k, v in ops.items()],
    )


async def alter(broker: Broker, *entries: Any, only_validate: bool = False) -> list[int]:
    request = codec.AlterClientQuotasRequest(entries=list(entries), validate_only=only_validate)
    return [each.error_code for each in (await broker.ask(request, 1)).entries]


async def described(broker: Broker) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    request = codec.DescribeClientQuotasRequest(components=[], strict=False)
    answer = await broker.ask(request, 1)
    assert answer.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries
    ]


async def test_captured_requests_are_answered_as_by_apache_kafka(broker: Broker) -> None:
    for key in (49, 48):
        folder = record.folder_of(key)
        frame = memoryview((folder / "v1_request.bin").read_bytes())
        request = codec.decode_body(codec.decode_header(frame), frame)
        answer = record.described(await broker.ask(request, 1))
        assert answer == json.loads((folder / "v1_response.json").read_text())


async def test_what_is_set_and_taken_away(broker: Broker) -> None:
    alice, here = {"user": "alice"}, {"ip": None}
    with capture_logs() as lines:
        assert await alter(
            broker,
            entry(alice, producer_byte_rate=1024, request_percentage=2.5),
            entry({"user": ""}, producer_byte_rate=1),
            entry(here, connection_creation_rate=3),
        ) == [0, kafka_code(Error.INVALID_REQUEST), 0]
        # What is there already is no change.
        assert await alter(broker, entry(alice, producer_byte_rate=1024)) == [0]
    noted = [
        (each["entity"], each["quota"], each["value"])
        for each in lines
        if each["event"] == "quota_changed"
    ]
    assert sorted(noted) == [
        ("ip <default>", "connection_creation_rate", 3.0),
        ("user alice", "producer_byte_rate", 1024.0),
        ("user alice", "request_percentage", 2.5),
    ]
    found = broker.quotas.rules.find(QuotaKey.PRODUCER_BYTE_RATE, "alice", "any")
    assert found is not None and found.rate == 1024
    assert sorted(await described(broker), key=str) == [
        (here, {"connection_creation_rate": 3.0}),
        (alice, {"producer_byte_rate": 1024.0, "request_percentage": 2.5}),
    ]
    gone = entry(alice, producer_byte_rate=None, request_percentage=None)
    assert await alter(broker, gone, only_validate=True) == [0]
    assert len(await described(broker)) == 2
    assert await alter(broker, gone) == [0]
    assert await described(broker) == [(here, {"connection_creation_rate": 3.0})]


async def test_another_broker_tells_of_it_at_once(make_broker: MakeBroker) -> None:
    one, other = await make_broker(), await make_broker()
    await described(other)
    await alter(one, entry({"client-id": "app"}, consumer_byte_rate=9))
    assert await described(other) == [({"client-id": "app"}, {"consumer_byte_rate": 9.0})]


async def test_with_the_database_away(cut_off: Broker) -> None:
    """Clients take both as "try again"."""
    wanted = entry({"user": "alice"}, producer_byte_rate=1)
    assert await alter(cut_off, wanted) == [kafka_code(Error.NOT_CONTROLLER)]
    request = codec.DescribeClientQuotasRequest(components=[], strict=False)
    answer = await cut_off.ask(request, 1)
    assert answer.error_code == kafka_code(Error.REQUEST_TIMED_OUT)

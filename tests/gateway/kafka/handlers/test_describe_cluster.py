"""DescribeCluster: the brokers that are live, for those who ask for brokers."""

import pytest

from gateway.kafka.codec import DescribeClusterRequest, DescribeClusterResponse
from tests.gateway.kafka.handlers.conftest import Broker, MakeBroker
from tests.kafka_codes import Code

VERSIONS = range(3)


async def ask(broker: Broker, version: int = 2, **fields: object) -> DescribeClusterResponse:
    return await broker.ask(DescribeClusterRequest(**fields), version)


@pytest.mark.parametrize("version", VERSIONS)
async def test_live_brokers_are_described(make_broker: MakeBroker, version: int) -> None:
    one = await make_broker(rack="r1", port=9092)
    await make_broker(host="other.example", port=9093)
    await one.cluster.heartbeat()
    answer = await ask(one, version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert answer.cluster_id == one.cluster.cluster_id
    assert answer.controller_id == 1
    assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [
        (1, "127.0.0.1", 9092, "r1"),
        (2, "other.example", 9093, None),
    ]
    if version >= 2:
        assert [broker.is_fenced for broker in answer.brokers] == [False, False]


async def test_authorized_operations_come_on_request(broker: Broker) -> None:
    assert (await ask(broker)).authorized_operations == 2**31
    asking = await ask(broker, include_cluster_authorized_operations=True)
    assert asking.authorized_operations == 8096


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (2, Code.MISMATCHED_ENDPOINT_TYPE),
        (0, Code.UNSUPPORTED_ENDPOINT_TYPE),
        (3, Code.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
async def test_other_endpoints_than_brokers_are_refused(
    broker: Broker, kind: int, code: int
) -> None:
    answer = await ask(broker, 1, endpoint_type=kind)
    assert (answer.error_code, answer.brokers) == (code, [])
    assert "endpoint" in answer.error_message


async def test_without_a_database_the_cluster_is_still_described(cut_off: Broker) -> None:
    assert len((await ask(cut_off)).brokers) == 1

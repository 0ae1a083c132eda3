"""DescribeQuorum: refused with the reason."""

import pytest

from gateway.kafka.codec import DescribeQuorumRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.kafka_codes import Code


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("topic", ["__cluster_metadata", "t"])
async def test_there_is_no_quorum(broker: Broker, version: int, topic: str) -> None:
    asked = DescribeQuorumRequest.TopicData(
        topic_name=topic,
        partitions=[DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)],
    )
    answer = await broker.ask(DescribeQuorumRequest(topics=[asked]), version)
    assert (answer.error_code, list(answer.topics)) == (Code.UNSUPPORTED_VERSION, [])
    if version >= 2:
        assert answer.error_message.startswith("There is no quorum of controllers here")

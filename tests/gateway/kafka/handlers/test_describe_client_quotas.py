"""DescribeClientQuotas: there are none."""

import pytest

from gateway.kafka.codec import DescribeClientQuotasRequest
from tests.gateway.kafka.handlers.conftest import Broker

Component = DescribeClientQuotasRequest.ComponentData


@pytest.mark.parametrize("version", range(2))
async def test_nobody_has_a_quota(broker: Broker, version: int) -> None:
    for components in ([], [Component(entity_type="user", match_type=0, match="alice")]):
        asked = DescribeClientQuotasRequest(components=components, strict=False)
        answer = await broker.ask(asked, version)
        assert (answer.error_code, answer.error_message, list(answer.entries)) == (0, "", [])

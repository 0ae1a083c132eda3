"""A topic's partitions by number."""

from uuid import UUID

import pytest

from core.config.values import topic_config
from core.topic.topic import Topic

TOPIC = Topic(UUID(int=1), "t", (70, 71), (0, 0), {}, topic_config({}, {}))


@pytest.mark.parametrize(("number", "found"), [(0, 70), (1, 71), (2, None), (-1, None)])
def test_only_partitions_there_are_have_an_id(number: int, found: int | None) -> None:
    assert TOPIC.partition_id(number) == found

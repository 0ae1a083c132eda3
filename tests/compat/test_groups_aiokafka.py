"""What aiokafka can ask of groups. Expectations are Apache Kafka 4.1's own."""

from __future__ import annotations

from aiokafka import TopicPartition
from confluent_kafka import TopicPartition as Place

from tests.compat.groups import MakeGroup
from tests.compat.test_aiokafka import administering


async def test_admin_lists_and_describes_groups(make_group: MakeGroup) -> None:
    group = make_group(partitions=2, client="aiokafka")
    member = group.join({"client.id": "a-client"})
    group.wait_stable()
    async with administering(group.bootstrap) as admin:
        assert (group.name, "consumer") in await admin.list_consumer_groups()
        [answer] = await admin.describe_consumer_groups([group.name])
        [described] = answer.groups
        error, name, state, protocol_type, protocol, members = described[:6]
        assert (error, name, state) == (0, group.name, "Stable")
        assert (protocol_type, protocol) == ("consumer", "roundrobin")
        [shown] = members
        assert "a-client" in shown
        member.commit([Place(group.topic, 1, 0)])
        group.leave(member)
        [answer] = await admin.describe_consumer_groups([group.name])
        assert answer.groups[0][2] == "Empty"
        offsets = await admin.list_consumer_group_offsets(group.name)
        assert {partition: at.offset for partition, at in offsets.items()} == {
            TopicPartition(group.topic, 1): 0
        }
        [answer] = await admin.describe_consumer_groups([f"{group.name}-unknown"])
        assert answer.groups[0][2] == "Dead"

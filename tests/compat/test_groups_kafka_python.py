"""kafka-python in groups, and its administration of them. Expectations: Apache Kafka 4.1's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import MemberToRemove, OffsetTimestamp
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import (
    CommitFailedError,
    FencedInstanceIdError,
    GroupSubscribedToTopicError,
    NoError,
    UnknownMemberIdError,
)
from kafka.protocol.consumer import OffsetSpec
from kafka.structs import OffsetAndMetadata, TopicPartition

from tests.compat.conftest import MakeTopic
from tests.compat.groups import WAIT, eventually

AT_ONE = OffsetAndMetadata(1, "", -1)
ASSIGNORS = [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor]


class Member(ConsumerRebalanceListener):
    """A subscribed consumer, polled in a thread; it remembers what it was given and told."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        pattern: str | None = None,
        poll_ms: int = 50,
        **settings: Any,
    ) -> None:
        self._settings = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "heartbeat_interval_ms": 300,
            "session_timeout_ms": 10_000,
            "fetch_max_wait_ms": 100,
            "metadata_max_age_ms": 500,
            **settings,
        }
        self._wanted = {"topics": topics} if pattern is None else {"pattern": pattern}
        self._poll_ms = poll_ms
        self.owned: set[tuple[str, int]] = set()
        self.events: list[tuple[str, set[tuple[str, int]]]] = []
        self.records: list[Any] = []
        self.raised: Exception | None = None
        self._asked: list[Callable[[KafkaConsumer], None]] = []
        self._closed = False
        self._polls = True
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.events.append(("revoked", {tuple(found) for found in revoked}))

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.events.append(("assigned", {tuple(found) for found in assigned}))

    def _run(self) -> None:
        with closing(KafkaConsumer(**self._settings)) as consumer:
            consumer.subscribe(**self._wanted, listener=self)
            try:
                while not self._closed:
                    while self._asked:
                        self._asked.pop(0)(consumer)
                    if not self._polls:
                        time.sleep(0.02)
                        continue
                    for records in consumer.poll(timeout_ms=self._poll_ms).values():
                        self.records += records
                    self.owned = {tuple(found) for found in consumer.assignment()}
            except Exception as raised:  # noqa: BLE001 - a test looks at it
                self.raised = raised
        self.owned = set()

    def ask(self, question: Callable[[KafkaConsumer], Any]) -> Any:
        """What `question` returns or raises, called between two polls."""
        answers: list[Any] = []

        def answer(consumer: KafkaConsumer) -> None:
            try:
                answers.append(question(consumer))
            except Exception as raised:  # noqa: BLE001 - handed to whoever asked
                answers.append(raised)

        self._asked.append(answer)
        eventually(lambda: answers or self.raised)
        if self.raised is not None or isinstance(answers[0], Exception):
            raise self.raised or answers[0]
        return answers[0]

    def stop_polling(self) -> None:
        self._polls = False

    def close(self) -> None:
        self._closed = True
        self._thread.join(WAIT)
        assert not self._thread.is_alive()


Join = Callable[..., Member]


@pytest.fixture
def join(bootstrap: str, group_id: str) -> Iterator[Join]:
    """Makes members of the test's group: `join(topic, heartbeat_interval_ms=…)`; all leave."""
    members: list[Member] = []

    def joined(*topics: str, **settings: Any) -> Member:
        member = Member(bootstrap, group_id, topics, **settings)
        members.append(member)
        return member

    yield joined
    for member in members:
        member.close()


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as client:
        yield client


def fill(bootstrap: str, topic: str, partitions: int, count: int, **record: Any) -> None:
    with closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % partitions, **record)


def settle(members: Sequence[Member], partitions: int) -> None:
    """Waits until each partition has one owner and all have about as many."""

    def settled() -> bool:
        sizes = [len(member.owned) for member in members]
        shared = set().union(*[member.owned for member in members])
        return len(shared) == sum(sizes) == partitions and max(sizes) - min(sizes) <= 1

    eventually(settled)


# --- members ---


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: assignor.name)
def test_members_share_read_commit_and_go_on(
    bootstrap: str, make_topic: MakeTopic, join: Join, assignor: Any
) -> None:
    topic = make_topic(4)
    how = {"partition_assignment_strategy": [assignor]}
    members = [join(topic, **how) for _ in range(2)]
    settle(members, 4)
    fill(bootstrap, topic, 4, 40)
    eventually(lambda: [len(member.records) for member in members] == [20, 20])
    for member in members:
        member.ask(lambda consumer: consumer.commit())
    members[0].close()
    settle(members[1:], 4)
    fill(bootstrap, topic, 4, 40)
    later = members[1].records
    eventually(lambda: len([record for record in later if record.offset >= 10]) == 40)
    assert (
        members[1].ask(lambda c: [c.committed(TopicPartition(topic, n)) for n in range(4)])
        == [10] * 4
    )


def test_cooperative_members_keep_what_they_keep(make_topic: MakeTopic, join: Join) -> None:
    topic = make_topic(4)
    how = {"partition_assignment_strategy": [CooperativeStickyAssignor]}
    first = join(topic, **how)
    settle([first], 4)
    kept = set(first.owned)
    second = join(topic, **how)
    settle([first, second], 4)
    revoked = set().union(*[partitions for kind, partitions in first.events if kind == "revoked"])
    assert revoked == second.owned == kept - first.owned


def test_static_member_comes_back_to_its_partitions(make_topic: MakeTopic, join: Join) -> None:
    topic = make_topic(4)
    long = {"session_timeout_ms": 120_000}  # on a busy machine it may be away for 10 s
    stays = join(topic, group_instance_id="stays", **long)
    goes = join(topic, group_instance_id="goes", **long)
    settle([stays, goes], 4)
    had, told = set(goes.owned), len(stays.events)
    goes.close()
    back = join(topic, group_instance_id="goes", **long)
    settle([stays, back], 4)
    assert back.owned == had
    assert stays.events[told:] == []
    usurper = join(topic, group_instance_id="stays")
    settle([usurper, back], 4)
    with pytest.raises(FencedInstanceIdError):
        stays.ask(lambda consumer: consumer.commit({TopicPartition(topic, 0): AT_ONE}))


def test_a_member_that_does_not_poll_may_not_commit(make_topic: MakeTopic, join: Join) -> None:
    topic = make_topic(2)
    slow = join(topic, max_poll_interval_ms=1500, session_timeout_ms=1500)
    settle([slow], 2)
    slow.stop_polling()
    other = join(topic)
    eventually(lambda: len(other.owned) == 2)
    with pytest.raises(CommitFailedError):
        slow.ask(lambda consumer: consumer.commit({TopicPartition(topic, 0): AT_ONE}))
    assert other.ask(lambda consumer: consumer.committed(TopicPartition(topic, 0))) is None


def test_offsets_with_metadata_seek_and_times(
    bootstrap: str, make_topic: MakeTopic, join: Join
) -> None:
    topic = make_topic(1)
    partition = TopicPartition(topic, 0)
    for stamp in (1000, 2000, 3000):
        fill(bootstrap, topic, 1, 1, timestamp_ms=stamp)
    member = join(topic)
    eventually(lambda: len(member.records) == 3)
    noted = OffsetAndMetadata(1, "a note: ünï\x00", 0)
    member.ask(lambda consumer: consumer.commit({partition: noted}))
    assert member.ask(lambda c: c.committed(partition, metadata=True)) == noted
    assert member.ask(lambda consumer: consumer.position(partition)) == 3
    found = member.ask(lambda consumer: consumer.offsets_for_times({partition: 1500}))
    member.ask(lambda consumer: consumer.seek(partition, found[partition].offset))
    eventually(lambda: len(member.records) == 5)
    assert [record.offset for record in member.records[3:]] == [1, 2]


def test_commits_in_the_background_and_by_themselves(
    bootstrap: str, make_topic: MakeTopic, join: Join, admin: KafkaAdminClient, group_id: str
) -> None:
    topic = make_topic(1)
    fill(bootstrap, topic, 1, 10)
    member = join(topic, enable_auto_commit=True, auto_commit_interval_ms=3_600_000)
    eventually(lambda: len(member.records) == 10)
    answers: list[Any] = []
    offsets = {TopicPartition(topic, 0): AT_ONE}
    member.ask(lambda c: c.commit_async(offsets, lambda _, answer: answers.append(answer)))
    eventually(lambda: answers)
    assert answers == [None]  # no exception
    assert admin.list_group_offsets(group_id)[group_id] == offsets
    member.close()  # and commits where it is
    [found] = admin.list_group_offsets(group_id)[group_id].values()
    assert found.offset == 10


def test_a_pattern_and_a_topic_that_grows(
    make_topic: MakeTopic, topic_name: str, join: Join, admin: KafkaAdminClient
) -> None:
    first = make_topic(2)
    # A poll that ends while its member rejoins for new partitions loses the rebalance (FINDINGS).
    member = join(pattern=f"^{topic_name}-.*", poll_ms=2000)
    eventually(lambda: len(member.owned) == 2)
    second = make_topic(1)
    eventually(lambda: member.owned == {(first, 0), (first, 1), (second, 0)})
    admin.create_partitions({first: 3})
    eventually(lambda: member.owned == {(first, 0), (first, 1), (first, 2), (second, 0)})


# --- administration ---


def test_admin_lists_describes_and_deletes_groups(
    make_topic: MakeTopic, join: Join, admin: KafkaAdminClient, group_id: str
) -> None:
    topic = make_topic(2)
    assert admin.describe_groups([group_id])[group_id]["group_state"] == "Dead"
    member = join(topic, client_id="a-client")
    settle([member], 2)
    listed = {group["group_id"]: group for group in admin.list_groups()}[group_id]
    assert (listed["protocol_type"], listed["group_state"]) == ("consumer", "Stable")
    assert listed["group_type"] == "classic"
    described = admin.describe_groups([group_id])[group_id]
    assert (described["group_state"], described["protocol_data"]) == ("Stable", "range")
    [shown] = described["members"]
    assert shown["client_id"] == "a-client"
    assert shown["client_host"].startswith("/")
    assert shown["member_id"].startswith("a-client-")
    assert admin.delete_groups([group_id]) == {group_id: "NonEmptyGroupError"}
    member.ask(
        lambda consumer: consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(0, "", -1)})
    )
    member.close()
    assert admin.describe_groups([group_id])[group_id]["group_state"] == "Empty"
    assert group_id not in {
        group["group_id"] for group in admin.list_groups(states_filter=["Stable"])
    }
    assert group_id in {group["group_id"] for group in admin.list_groups(states_filter=["Empty"])}
    assert group_id not in {
        group["group_id"] for group in admin.list_groups(types_filter=["consumer"])
    }
    assert group_id in {group["group_id"] for group in admin.list_groups(types_filter=["classic"])}
    assert admin.delete_groups([group_id]) == {group_id: "OK"}
    assert admin.delete_groups([group_id]) == {group_id: "GroupIdNotFoundError"}
    assert group_id not in {group["group_id"] for group in admin.list_groups()}


def test_admin_alters_lists_resets_and_deletes_offsets(
    bootstrap: str, make_topic: MakeTopic, join: Join, admin: KafkaAdminClient, group_id: str
) -> None:
    topic = make_topic(3)
    zero, one, two = (TopicPartition(topic, number) for number in range(3))
    for stamp in (1000, 2000, 3000, 4000):
        fill(bootstrap, topic, 3, 3, timestamp_ms=stamp)
    wanted = {zero: OffsetAndMetadata(1, "first", -1), one: OffsetAndMetadata(2, "", -1)}
    assert set(admin.alter_group_offsets(group_id, wanted).values()) == {NoError}
    other = f"{group_id}-other"
    admin.alter_group_offsets(other, {two: OffsetAndMetadata(4, "", -1)})
    found = admin.list_group_offsets([group_id, other])
    assert found[group_id] == wanted
    assert {partition: at.offset for partition, at in found[other].items()} == {two: 4}
    [unknown] = admin.list_group_offsets({group_id: [two]})[group_id].values()
    assert unknown.offset == -1
    reset = admin.reset_group_offsets(
        group_id, {zero: OffsetSpec.LATEST, one: OffsetTimestamp(3500), two: 2}
    )
    assert {partition: at["offset"] for partition, at in reset.items()} == {zero: 4, one: 3, two: 2}
    member = join(topic)
    settle([member], 3)
    refused = admin.delete_group_offsets(group_id, [zero])
    assert refused == {zero: GroupSubscribedToTopicError}
    refused = admin.alter_group_offsets(group_id, {zero: OffsetAndMetadata(0, "", -1)})
    assert refused == {zero: UnknownMemberIdError}
    member.close()
    assert admin.delete_group_offsets(group_id, [zero, one]) == {zero: NoError, one: NoError}
    assert set(admin.list_group_offsets(group_id)[group_id]) == {two}


def test_admin_removes_members(
    make_topic: MakeTopic, join: Join, admin: KafkaAdminClient, group_id: str
) -> None:
    topic = make_topic(2)
    stays, goes = join(topic, group_instance_id="stays"), join(topic, group_instance_id="goes")
    settle([stays, goes], 2)
    goes.close()
    answer = admin.remove_group_members(
        group_id,
        [
            MemberToRemove(group_instance_id="goes", reason="moved away"),
            MemberToRemove(group_instance_id="nobody"),
        ],
    )
    assert sorted(error.__name__ for error in answer.values()) == [
        "NoError",
        "UnknownMemberIdError",
    ]
    settle([stays], 2)

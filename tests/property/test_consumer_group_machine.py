"""One group, consumers of both protocols, a coordinator that crashes, topics that change.

Dynamic and static members heartbeat late, crash, lose answers, change what they want; the group is
turned from one protocol to the other by who comes and goes. The coordinator is lost before or after
any of its effects is stored. Longer runs:
PENSTOCK_GROUP_MACHINE_EXAMPLES=2000 pytest tests/property/test_consumer_group_machine.py.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from core.errors import Error
from core.group.classic.group import ClassicGroup
from core.group.consumer.group import ConsumerGroup
from core.group.values import GroupSettings
from tests.core.group.consumer.driver import (
    REBALANCE_MS,
    SESSION_MS,
    Driver,
    images,
)
from tests.property.group_clients import (
    STAYS,
    SYNCS,
    Classic,
    Client,
    Consumer,
    Pairs,
    pairs,
)

EXAMPLES = int(os.environ.get("PENSTOCK_GROUP_MACHINE_EXAMPLES", "60"))
TOPICS = ("foo", "bar", "baz")
INSTANCES = ("one", "two")
MOST_CLIENTS = 4

ANSWERED, LOST, CRASH_BEFORE, CRASH_AFTER = "answered", "lost", "crash before", "crash after"
# Mostly things go well, else nothing would ever be reached.
FATES = st.sampled_from([*[ANSWERED] * 8, LOST, LOST, CRASH_BEFORE, CRASH_AFTER])
WANTED = st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda names: tuple(sorted(names)))
EXPRESSIONS = st.sampled_from([None, None, None, "ba.", ".*"])
WHICH = st.integers(0, 7)


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver({"foo": 3})
        self.clients: list[Client] = []
        self.made = 0
        self.topic_versions: dict[str, int] = {}
        self.partitions: dict[str, int] = {"foo": 3}
        self.is_eager = False
        self.fenced: set[tuple[str, int]] = set()
        self.heard: dict[str, int] = {}
        self._show_topics()

    @initialize(is_eager=st.booleans(), both_ways=st.booleans())
    def begin(self, is_eager: bool, both_ways: bool) -> None:
        self.is_eager = is_eager
        self.driver.settings = GroupSettings(
            initial_rebalance_delay_ms=0, downgrade_allowed=both_ways
        )

    # --- clients ---

    def _client(self, which: int) -> Client | None:
        return self.clients[which % len(self.clients)] if self.clients else None

    def _name(self) -> str:
        self.made += 1
        return f"m{self.made}"

    @precondition(lambda self: len(self.clients) < MOST_CLIENTS)
    @rule(
        topics=WANTED,
        regex=EXPRESSIONS,
        instance_id=st.sampled_from([None, None, *INSTANCES]),
    )
    def a_consumer_starts(
        self, topics: tuple[str, ...], regex: str | None, instance_id: str | None
    ) -> None:
        self.clients.append(Consumer(self._name(), instance_id, topics, regex=regex))

    @precondition(lambda self: len(self.clients) < MOST_CLIENTS)
    @rule(topics=WANTED, instance_id=st.sampled_from([None, None, *INSTANCES]))
    def a_classic_consumer_starts(self, topics: tuple[str, ...], instance_id: str | None) -> None:
        self.clients.append(Classic(self._name(), instance_id, topics, is_eager=self.is_eager))

    @rule(which=WHICH, fate=FATES)
    def a_client_goes_on(self, which: int, fate: str) -> None:
        client = self._client(which)
        if client is not None:
            self._step(client, fate)

    @rule(which=WHICH, back=st.integers(1, 6))
    def a_request_arrives_again(self, which: int, back: int) -> None:
        """From a connection the client has given up; nobody hears the answer, and so the client
        says everything once more. (Else it might never hear what it got by it, as in Kafka.)"""
        client = self._client(which)
        if isinstance(client, Consumer) and client.sent:
            known = self._consumers()
            client.sent[-min(back, len(client.sent))]()
            self.heard[client.member_id] = self.driver.now.monotonic_ms
            self._remember_who_went(known)
            client.hear_nothing()

    @rule(rounds=st.integers(1, 3))
    def all_clients_go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in list(self.clients):
                self._step(client, ANSWERED)

    @rule(which=WHICH)
    def a_client_revokes(self, which: int) -> None:
        client = self._client(which)
        if client is not None:
            client.revoke()

    @rule(which=WHICH, topics=WANTED, regex=EXPRESSIONS)
    def a_client_subscribes(self, which: int, topics: tuple[str, ...], regex: str | None) -> None:
        client = self._client(which)
        if isinstance(client, Consumer):
            client.subscribe(topics, regex)
        elif isinstance(client, Classic) and client.phase == STAYS:
            client.topics, client.phase = topics, "JOINS"

    @rule(which=WHICH)
    def a_client_crashes(self, which: int) -> None:
        client = self._client(which)
        if client is not None:
            self.clients.remove(client)

    @rule(which=WHICH)
    def a_client_leaves(self, which: int) -> None:
        client = self._client(which)
        if client is None or client.member_id == "":
            return
        self.clients.remove(client)
        known = self._consumers()
        if isinstance(client, Consumer):
            epoch = -1 if client.instance_id is None else -2
            self.driver.heartbeat(client.member_id, epoch, instance_id=client.instance_id)
        elif client.instance_id is None and self.driver.group is not None:
            self.driver.leave((client.member_id, None))
        self._remember_who_went(known)

    def _step(self, client: Client, fate: str) -> None:
        driver = self.driver
        saved = (driver.store.group, dict(driver.store.members))
        known = self._consumers()
        assert isinstance(client, Consumer | Classic)
        if isinstance(client, Classic) and driver.group is None and client.phase in (SYNCS, STAYS):
            client.hear(Error.UNKNOWN_MEMBER_ID, driver)
            return
        answer = client.step(driver)
        if fate in (CRASH_BEFORE, CRASH_AFTER):
            if fate == CRASH_BEFORE:
                driver.store.group, driver.store.members = saved
            self._lose_coordinator()
            client.hear_nothing()
            return
        self._remember_who_went(known)
        if fate == LOST:
            client.hear_nothing()
        elif answer is not None:
            client.hear(answer, driver)
        if isinstance(client, Consumer):
            self.heard[client.member_id] = driver.now.monotonic_ms
        if client.is_dead:
            self.clients.remove(client)

    # --- the coordinator, the topics, the time ---

    def _members(self) -> dict[str, int]:
        """Member id → epoch, of whatever kind of group there is."""
        group = self.driver.group
        if isinstance(group, ConsumerGroup):
            return {each: row.member_epoch for each, row in group.roster.members.items()}
        if isinstance(group, ClassicGroup):
            return dict.fromkeys(group.members, group.generation_id)
        return {}

    def _consumers(self) -> dict[str, int]:
        """Members of a consumer group, so that who goes may be remembered. Who leaves a classic
        one is stored as gone with its next generation, here as in Kafka."""
        return self._members() if isinstance(self.driver.group, ConsumerGroup) else {}

    def _remember_who_went(self, known: dict[str, int]) -> None:
        now = self._members()
        self.fenced |= {(each, epoch) for each, epoch in known.items() if each not in now}
        # A static member may be thrown out by another and come again: the same process, the same
        # id, and, since nothing has changed for the others, the same epoch.
        self.fenced -= set(now.items())

    def _lose_coordinator(self) -> None:
        self.driver.reload()
        self.heard = dict.fromkeys(self._members(), self.driver.now.monotonic_ms)
        for client in self.clients:
            if isinstance(client, Classic):
                client.hear_nothing()

    @rule()
    def the_coordinator_is_lost(self) -> None:
        self._lose_coordinator()

    @rule(topic=st.sampled_from(TOPICS), change=st.sampled_from(["grow", "grow", "delete"]))
    def a_topic_changes(self, topic: str, change: str) -> None:
        if change == "delete":
            if self.partitions.pop(topic, None) is not None:
                self.topic_versions[topic] = self.topic_versions.get(topic, 0) + 1
        else:
            self.partitions[topic] = min(self.partitions.get(topic, 0) + 2, 7)
        self._show_topics()

    def _show_topics(self) -> None:
        """A topic that is made again has another id."""
        ids = {
            name: f"{image.topic_id}-{self.topic_versions.get(name, 0)}"
            for name, image in images(self.partitions).items()
        }
        self.driver.show(self.partitions, ids)

    @rule(milliseconds=st.sampled_from([1_000, 5_000, 20_000, SESSION_MS, REBALANCE_MS]))
    def time_passes(self, milliseconds: int) -> None:
        known = self._consumers()
        self.driver.advance(milliseconds)
        self._remember_who_went(known)

    # --- what always holds ---

    @invariant()
    def no_partition_is_held_twice(self) -> None:
        group = self.driver.group
        if not isinstance(group, ConsumerGroup):
            return
        holder: dict[tuple[str, int], str] = {}
        for row in group.roster.members.values():
            assert pairs(row.assigned).isdisjoint(pairs(row.revoking))
            for pair in pairs(row.assigned) | pairs(row.revoking):
                assert holder.setdefault(pair, row.member_id) == row.member_id

    @invariant()
    def no_two_clients_that_may_commit_own_a_partition(self) -> None:
        owner: dict[tuple[str, int], Client] = {}
        for client in self.clients:
            if self.driver.group is None or client.member_id == "":
                continue
            if self.driver.commit(client.member_id, client.epoch) is not Error.NONE:
                continue
            for pair in client.owned:
                assert owner.setdefault(pair, client) is client, f"{pair} is owned twice"

    def _alive(self, owned: Pairs) -> Pairs:
        """Without topics that are gone: a classic member cannot even name what it has of them."""
        ids = {image.topic_id for image in self.driver.topics.values()}
        return {(topic_id, partition) for topic_id, partition in owned if topic_id in ids}

    @invariant()
    def who_may_commit_owns_only_what_is_its_own(self) -> None:
        group = self.driver.group
        if not isinstance(group, ConsumerGroup):
            return
        for client in self.clients:
            row = group.roster.members.get(client.member_id)
            if row is None or row.member_epoch != client.epoch:
                continue
            assert self._alive(client.owned) <= pairs(row.assigned) | pairs(row.revoking)

    @invariant()
    def who_was_fenced_may_not_commit(self) -> None:
        if self.driver.group is None:
            return
        for member_id, epoch in self.fenced:
            if epoch >= 0:
                assert self.driver.commit(member_id, epoch) is not Error.NONE

    @invariant()
    def who_is_silent_is_removed_in_time(self) -> None:
        group = self.driver.group
        if not isinstance(group, ConsumerGroup):
            return
        for member_id, row in group.roster.members.items():
            heard = self.heard.get(member_id)
            if row.protocol == "consumer" and heard is not None:
                assert self.driver.now.monotonic_ms < heard + 2 * SESSION_MS

    @invariant()
    def a_reload_gives_the_same_group(self) -> None:
        group = self.driver.group
        if isinstance(group, ConsumerGroup) and self.driver.store.group is not None:
            again = ConsumerGroup.load(self.driver.store.read(), group.settings, self.driver.now)
            assert again.state == group.state
            assert again.stored().group == group.stored().group
            assert again.roster.members == group.roster.members

    # --- what comes true in the end ---

    @rule()
    def everybody_gets_what_is_theirs(self) -> None:
        """When all go on for long enough, nothing is left to do, and nothing is left out."""
        for turn in range(60):
            # A classic static member that restarts with other topics rebalances nothing, until
            # somebody joins again.
            if turn in (0, 20):
                for classic in [each for each in self.clients if isinstance(each, Classic)]:
                    classic.look_at_topics()
            for client in list(self.clients):
                client.revoke()
                self._step(client, ANSWERED)
            self.time_passes(3_000)
        running = {client.member_id: client for client in self.clients}
        group = self.driver.group
        if not running:
            assert group is None or group.is_empty
            return
        assert group is not None
        assert group.state == "Stable"
        assert self._members().keys() == running.keys()
        owned = [pair for client in self.clients for pair in client.owned]
        assert len(owned) == len(set(owned))
        wanted = {
            name: image
            for name, image in self.driver.topics.items()
            if any(self._wants(client, name) for client in self.clients)
        }
        assert set(owned) == pairs(
            {image.topic_id: range(image.partitions) for image in wanted.values()}
        )
        for client in self.clients:
            names = {name for name, image in wanted.items() if image.topic_id in dict(client.owned)}
            assert all(self._wants(client, name) for name in names)
            if isinstance(group, ConsumerGroup):
                row = group.roster.members[client.member_id]
                assert pairs(row.assigned) == pairs(row.target) == client.owned
                assert row.member_epoch == client.epoch == group.group_epoch

    def _wants(self, client: Client, name: str) -> bool:
        regex = client.regex if isinstance(client, Consumer) else None
        return name in client.topics or (regex is not None and name in self.driver.resolve(regex))


TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
TestConsumerGroupMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None, print_blob=True
)

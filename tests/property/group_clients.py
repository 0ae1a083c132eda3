"""Consumers as the group machine plays them: what a client does with each answer.

They are as dangerous as honest clients can be: what they are given they own at once, what they have
to give back they own until a rule of the machine says otherwise. Each speaks through a `Driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from core.errors import Error
from core.group.assignors import Subscriber, uniform
from core.group.consumer.protocol import (
    Assignment,
    Subscription,
    encode_assignment,
    parse_assignment,
    parse_subscription,
)
from core.group.values import ConsumerHeartbeatResult, JoinedMember, JoinResult, SyncResult
from tests.core.group.consumer.driver import REBALANCE_MS, Driver

Pairs = set[tuple[str, int]]
"""(topic id, partition)."""


def pairs(partitions: Mapping[str, Iterable[int]]) -> Pairs:
    return {(topic_id, each) for topic_id, held in partitions.items() for each in held}


def by_topic(owned: Pairs) -> dict[str, tuple[int, ...]]:
    topics: dict[str, list[int]] = {}
    for topic_id, partition in sorted(owned):
        topics.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(held) for topic_id, held in topics.items()}


@dataclass(eq=False)
class Client:
    """What both kinds have. epoch: the generation, of a classic one."""

    name: str
    instance_id: str | None
    topics: tuple[str, ...]
    member_id: str = ""
    epoch: int = 0
    owned: Pairs = field(default_factory=set)
    to_revoke: Pairs = field(default_factory=set)
    is_dead: bool = False

    def revoke(self) -> None:
        """Lets go of what it was told to give back."""
        self.owned -= self.to_revoke
        self.to_revoke = set()

    def _told(self, assignment: Pairs) -> None:
        self.owned |= assignment
        self.to_revoke = self.owned - assignment

    def _begin_anew(self) -> None:
        self.epoch = 0
        self.owned = set()
        self.to_revoke = set()


@dataclass(eq=False)
class Consumer(Client):
    """Speaks KIP-848. tells_all: its next request says everything, as after any error."""

    regex: str | None = None
    tells_all: bool = True
    said: Pairs | None = None
    sent: list[Callable[[], ConsumerHeartbeatResult]] = field(default_factory=list)
    """All its requests: one may arrive again, much later."""

    def step(self, driver: Driver) -> ConsumerHeartbeatResult:
        """Its next heartbeat."""
        self.member_id = self.member_id or self.name
        full = self.tells_all or self.epoch == 0
        request = partial(
            driver.heartbeat,
            self.member_id,
            self.epoch,
            names=self.topics if full else None,
            regex=(self.regex or "") if full else None,
            owned=by_topic(self.owned) if full or self.said != self.owned else None,
            instance_id=self.instance_id,
            rebalance_timeout_ms=REBALANCE_MS if full else -1,
        )
        self.sent.append(request)
        return request()

    def hear(self, result: ConsumerHeartbeatResult, _driver: Driver) -> None:
        """What the answer does to it."""
        if result.error is Error.NONE:
            self.tells_all = False
            self.said = set(self.owned)
            self.epoch = result.member_epoch
            if result.assignment is not None:
                self._told(pairs(result.assignment))
        elif result.error in (Error.FENCED_INSTANCE_ID, Error.UNRELEASED_INSTANCE_ID):
            self.is_dead = True
        else:
            assert result.error in (
                Error.FENCED_MEMBER_EPOCH,
                Error.UNKNOWN_MEMBER_ID,
                Error.GROUP_ID_NOT_FOUND,
            ), result
            self._begin_anew()
            self.tells_all = True

    def hear_nothing(self) -> None:
        """The answer was lost: it asks again, and says everything."""
        self.tells_all = True

    def subscribe(self, topics: tuple[str, ...], regex: str | None) -> None:
        self.topics, self.regex, self.tells_all = topics, regex, True


JOINS, WAITS_FOR_JOIN, SYNCS, WAITS_FOR_SYNC, STAYS = (
    "JOINS",
    "JOINING",
    "SYNCS",
    "SYNCING",
    "STAYS",
)


@dataclass(eq=False)
class Classic(Client):
    """Speaks the classic protocol. is_eager: it gives everything back before it joins."""

    is_eager: bool = False
    phase: str = JOINS
    waiter: int = 0
    others: tuple[JoinedMember, ...] = ()
    """All members, where it is leader."""

    @property
    def protocol_name(self) -> str:
        return "range" if self.is_eager else "cooperative-sticky"

    def step(self, driver: Driver) -> JoinResult | SyncResult | Error | None:
        """What it does next; None where it waits."""
        if self.phase in (WAITS_FOR_JOIN, WAITS_FOR_SYNC):
            return driver.replies.pop(self.waiter, None)
        result: JoinResult | SyncResult | Error | None
        if self.phase == JOINS:
            if self.is_eager:
                self.owned, self.to_revoke = set(), set()
            result = driver.join(
                self.member_id,
                *self.topics,
                owned=self._names(driver),
                instance_id=self.instance_id,
                new_member_id=f"{self.name}-{driver.last_token}",
                names=(self.protocol_name,),
            )
            self.phase = WAITS_FOR_JOIN
        elif self.phase == SYNCS:
            result = driver.sync(
                self.member_id,
                self.epoch,
                instance_id=self.instance_id,
                protocol_name=self.protocol_name,
                assignments=self._assign(driver),
            )
            self.phase = WAITS_FOR_SYNC
        else:
            return driver.beat(self.member_id, self.epoch, self.instance_id)
        self.waiter = driver.last_token
        return result

    def hear(self, answer: JoinResult | SyncResult | Error, driver: Driver) -> None:
        """What the answer does to it."""
        error = answer if isinstance(answer, Error) else answer.error
        if error is Error.NONE:
            self._go_on(answer, driver)
        elif error is Error.MEMBER_ID_REQUIRED:
            assert isinstance(answer, JoinResult)
            self.member_id, self.phase = answer.member_id, JOINS
        elif error is Error.REBALANCE_IN_PROGRESS:
            self.phase = JOINS
        elif error is Error.FENCED_INSTANCE_ID:
            self.is_dead = True
        else:
            assert error in (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION), answer
            if error is Error.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._begin_anew()
            self.phase = JOINS

    def _go_on(self, answer: JoinResult | SyncResult | Error, driver: Driver) -> None:
        if isinstance(answer, JoinResult):
            self.member_id, self.epoch = answer.member_id, answer.generation_id
            self.others = answer.members if answer.leader == answer.member_id else ()
            self.phase = SYNCS
        elif isinstance(answer, SyncResult):
            assignment = parse_assignment(answer.assignment) if answer.assignment else Assignment(0)
            assert isinstance(assignment, Assignment)
            topics = driver.topics
            found = {topics[n].topic_id: p for n, p in assignment.partitions.items() if n in topics}
            self._told(pairs(found))
            self.phase = STAYS

    def hear_nothing(self) -> None:
        """The answer was lost, or its connection: it joins again, as clients do."""
        if self.phase != STAYS:
            self.phase = JOINS

    def look_at_topics(self) -> None:
        """Joins again, as a leader does when topics have changed."""
        if self.phase == STAYS:
            self.phase = JOINS

    def revoke(self) -> None:
        """A cooperative member that has given something back joins again."""
        if self.to_revoke and self.phase == STAYS:
            self.phase = JOINS
        super().revoke()

    def _names(self, driver: Driver) -> dict[str, Sequence[int]]:
        name_of = {image.topic_id: name for name, image in driver.topics.items()}
        return {
            name_of[topic_id]: held
            for topic_id, held in by_topic(self.owned).items()
            if topic_id in name_of
        }

    def _assign(self, driver: Driver) -> dict[str, bytes]:
        """As a leader: like cooperative-sticky, which gives nobody what another still has."""
        subscriptions: dict[str, Subscription] = {}
        for member in self.others:
            parsed = parse_subscription(member.metadata)
            assert isinstance(parsed, Subscription)
            subscriptions[member.member_id] = parsed
        sizes = {name: image.partitions for name, image in driver.topics.items()}
        target = uniform(
            [
                Subscriber(
                    each, None, frozenset(sizes.keys() & set(said.topics)), said.owned_partitions
                )
                for each, said in subscriptions.items()
            ],
            sizes,
        )
        owner = {
            pair: each
            for each, said in subscriptions.items()
            for pair in pairs(said.owned_partitions)
        }
        given = {
            each: by_topic({pair for pair in pairs(target[each]) if owner.get(pair, each) == each})
            for each in subscriptions
        }
        return {each: encode_assignment(Assignment(1, held)) for each, held in given.items()}

"""The server's assignors, `uniform` and `range` (KIP-848): which member gets which partition.

Pure functions of the subscriptions, the topics and the assignment so far. Every process gets the
same result, since nothing depends on the order of a hash table. Knows no epochs, and of members
only their names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace

from core.group.records import Partitions

BALANCE_PASSES = 32
"""Rounds over the topics of a heterogeneous group, after which almost balanced is good enough."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member, as an assignor sees it.

    topic_ids: existing topics that it subscribes to. assigned: its target assignment until now.
    """

    member_id: str
    instance_id: str | None
    topic_ids: frozenset[str]
    assigned: Partitions


Assignor = Callable[[Sequence[Subscriber], Mapping[str, int]], dict[str, Partitions]]
"""(subscribers, topic id → number of partitions) → member id → its partitions."""


def uniform(
    subscribers: Sequence[Subscriber], partitions: Mapping[str, int]
) -> dict[str, Partitions]:
    """Equal numbers first, then as few moves as possible (Kafka's UniformAssignor).

    In a homogeneous group no two members differ by more than one partition. In a heterogeneous
    one, no partition could go to a subscriber with at least two fewer.
    """
    members = sorted(subscribers, key=lambda each: each.member_id)
    if not members:
        return {}
    draft = _Draft(members, partitions)
    if len({each.topic_ids for each in members}) == 1:
        draft.trim()
        draft.deal()
    else:
        draft.find_subscribers()
        draft.hand_out()
        draft.balance()
    return draft.assignment()


class _Draft:
    """An assignment in the making: the owner of each partition, as an index into the members."""

    def __init__(self, members: Sequence[Subscriber], partitions: Mapping[str, int]) -> None:
        self.members = members
        self.loads = [0] * len(members)
        self.subscribers: dict[str, list[int]] = {}
        topic_ids = frozenset().union(*{each.topic_ids for each in members})
        self.owners = {topic_id: [-1] * partitions[topic_id] for topic_id in sorted(topic_ids)}
        self._keep()

    def _keep(self) -> None:
        """Each member keeps the partitions that still exist and that it still subscribes to."""
        for index, member in enumerate(self.members):
            for topic_id, held in member.assigned.items():
                if topic_id not in member.topic_ids:
                    continue
                owners = self.owners[topic_id]
                for partition in held:
                    if partition < len(owners) and owners[partition] < 0:
                        owners[partition] = index
                        self.loads[index] += 1
        self._kept = {topic_id: tuple(owners) for topic_id, owners in self.owners.items()}

    def _quotas(self) -> list[int]:
        """How many each member gets. Members with the most may keep one more: that saves moves."""
        total = sum(len(owners) for owners in self.owners.values())
        quota, extra = divmod(total, len(self.members))
        by_load = sorted(range(len(self.members)), key=lambda index: (-self.loads[index], index))
        quotas = [quota] * len(self.members)
        for index in by_load[:extra]:
            quotas[index] += 1
        return quotas

    def trim(self) -> None:
        """Takes what exceeds the quotas of a homogeneous group, from the last partitions first."""
        self.quotas = self._quotas()
        if all(load <= quota for load, quota in zip(self.loads, self.quotas, strict=True)):
            return
        for owners in reversed(self.owners.values()):
            for partition in range(len(owners) - 1, -1, -1):
                index = owners[partition]
                if index >= 0 and self.loads[index] > self.quotas[index]:
                    owners[partition] = -1
                    self.loads[index] -= 1

    def deal(self) -> None:
        """Gives out, one by one in turn, so that a topic's partitions spread over the members."""
        hungry = [i for i, quota in enumerate(self.quotas) if self.loads[i] < quota]
        turn = 0
        for owners in self.owners.values():
            for partition, owner in enumerate(owners):
                if owner >= 0:
                    continue
                turn %= len(hungry)
                index = hungry[turn]
                owners[partition] = index
                self.loads[index] += 1
                if self.loads[index] == self.quotas[index]:
                    del hungry[turn]
                else:
                    turn += 1

    def find_subscribers(self) -> None:
        """Finds the subscribers of each topic; needed only where subscriptions differ."""
        for index, member in enumerate(self.members):
            for topic_id in member.topic_ids:
                self.subscribers.setdefault(topic_id, []).append(index)

    def hand_out(self) -> None:
        """Gives each free partition to the topic's least loaded subscriber.

        Topics with many partitions per subscriber come first: they leave the least choice.
        """
        for topic_id in self._by_choice():
            owners = self.owners[topic_id]
            free = [partition for partition, owner in enumerate(owners) if owner < 0]
            if not free:
                continue
            least = [(self.loads[index], index) for index in self.subscribers[topic_id]]
            heapify(least)
            for partition in free:
                load, index = least[0]
                owners[partition] = index
                self.loads[index] = load + 1
                heapreplace(least, (load + 1, index))

    def _by_choice(self) -> list[str]:
        return sorted(
            self.owners,
            key=lambda topic_id: (
                -len(self.owners[topic_id]) / len(self.subscribers[topic_id]),
                len(self.subscribers[topic_id]),
                topic_id,
            ),
        )

    def balance(self) -> None:
        """Moves partitions until none could go to a subscriber with at least two fewer.

        Each move makes the sum of the squares smaller, so it ends. Where subscriptions overlap in
        a long chain it may take many rounds: it stops after BALANCE_PASSES.
        """
        shared = [each for each in self._by_choice() if len(self.subscribers[each]) > 1]
        for _ in range(BALANCE_PASSES):
            if not sum([self._balance_topic(topic_id) for topic_id in shared]):
                return

    def _balance_topic(self, topic_id: str) -> int:
        """Returns how many partitions of the topic it moved."""
        loads = self.loads
        subscribers = self.subscribers[topic_id]
        lightest = min([loads[index] for index in subscribers])
        if max([loads[index] for index in subscribers]) - lightest <= 1:
            return 0
        owners = self.owners[topic_id]
        held: dict[int, list[int]] = {}
        kept = self._kept[topic_id]
        # A member that must give up partitions gives up the newest first.
        for partition in sorted(range(len(owners)), key=lambda each: kept[each] != owners[each]):
            held.setdefault(owners[partition], []).append(partition)
        most = [(-loads[index], index) for index in held]
        least = [(loads[index], index) for index in subscribers]
        heapify(most)
        heapify(least)
        moved = 0
        while most:
            giver, taker = most[0][1], least[0][1]
            if -most[0][0] != loads[giver] or not held[giver]:
                heappop(most)  # stale, or nothing of this topic is left to give
                continue
            if least[0][0] != loads[taker]:
                heappop(least)
                continue
            if loads[giver] - loads[taker] <= 1:
                break
            partition = held[giver].pop()
            owners[partition] = taker
            held.setdefault(taker, []).append(partition)
            for index, change in ((giver, -1), (taker, 1)):
                loads[index] += change
                heappush(most, (-loads[index], index))
                heappush(least, (loads[index], index))
            moved += 1
        return moved

    def assignment(self) -> dict[str, Partitions]:
        parts: list[dict[str, list[int]]] = [{} for _ in self.members]
        for topic_id, owners in self.owners.items():
            for partition, index in enumerate(owners):
                parts[index].setdefault(topic_id, []).append(partition)
        return {
            member.member_id: {topic_id: tuple(held) for topic_id, held in part.items()}
            for member, part in zip(self.members, parts, strict=True)
        }


def by_range(
    subscribers: Sequence[Subscriber], partitions: Mapping[str, int]
) -> dict[str, Partitions]:
    """Each subscriber gets a contiguous range of each topic (Kafka's RangeAssignor).

    Topics with the same number of partitions and the same subscribers are cut alike, so that they
    can be joined partition by partition. Static members come first, in the order of their instance
    ids: they get the same ranges if they return with other member ids.
    """
    members = sorted(
        subscribers,
        key=lambda each: (each.instance_id is None, each.instance_id or each.member_id),
    )
    assignment: dict[str, dict[str, tuple[int, ...]]] = {each.member_id: {} for each in members}
    subscribed: dict[str, list[str]] = {}
    for member in members:
        for topic_id in member.topic_ids:
            subscribed.setdefault(topic_id, []).append(member.member_id)
    for topic_id in sorted(subscribed):
        takers = subscribed[topic_id]
        quota, extra = divmod(partitions[topic_id], len(takers))
        begin = 0
        for position, member_id in enumerate(takers):
            end = begin + quota + (position < extra)
            if begin == end:
                break
            assignment[member_id][topic_id] = tuple(range(begin, end))
            begin = end
    return dict(assignment)


ASSIGNORS: Mapping[str, Assignor] = {"uniform": uniform, "range": by_range}
"""By the names of `group.consumer.assignors`."""

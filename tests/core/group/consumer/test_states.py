"""Every event in every state of a member, and of the group: which error is answered."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from core.errors import Error
from core.group.consumer.member import (
    STABLE,
    STATIC_LEAVE_EPOCH,
    UNRELEASED_PARTITIONS,
    UNREVOKED_PARTITIONS,
)
from core.group.records import GroupRow, MemberRow
from tests.core.group.consumer.driver import (
    CLASSIC_SESSION_MS,
    CLIENT,
    GROUP,
    REBALANCE_MS,
    TIMESTAMP_MS,
    Driver,
    held,
    subscription,
)

EPOCH = 20
"""The group's, and the target assignment's unless it is being assigned."""
BEHIND = 15
PREVIOUS = 12

M = "m"
INSTANCE = "instance"


@dataclass(frozen=True)
class Situation:
    """A group at EPOCH with a member M in some state and another, O, that has the rest."""

    m: MemberRow | None
    assignment_epoch: int = EPOCH
    is_empty: bool = False
    o_has: tuple[int, ...] = (3, 4, 5)

    def driver(self) -> Driver:
        driver = Driver()
        other = replace(
            CONSUMER,
            member_id="o",
            member_epoch=EPOCH,
            assigned=held(foo=self.o_has),
            target=held(foo=self.o_has),
        )
        members = [] if self.is_empty else [other]
        if self.m is not None:
            members.append(self.m)
        row = GroupRow(
            GROUP,
            "consumer",
            "consumer",
            "uniform",
            generation_id=EPOCH,
            assignment_epoch=self.assignment_epoch,
            state_timestamp=TIMESTAMP_MS,
        )
        driver.load(row, *members)
        # What the stored target was computed from has not changed.
        driver.consumer.roster.subscribed.refresh()
        row = replace(
            row,
            metadata_hash=driver.consumer.roster.subscribed.metadata_hash(),
            state=driver.state,
        )
        driver.load(row, *members)
        return driver


CONSUMER = MemberRow(
    M,
    "consumer",
    client_id=CLIENT.client_id,
    client_host=CLIENT.client_host,
    rebalance_timeout_ms=REBALANCE_MS,
    member_epoch=EPOCH,
    previous_member_epoch=PREVIOUS,
    state=STABLE,
    subscribed_topic_names=("foo",),
    assigned=held(foo=(0, 1, 2)),
    target=held(foo=(0, 1, 2)),
)
CLASSIC = replace(
    CONSUMER,
    protocol="classic",
    protocols=(("cooperative-sticky", subscription("foo")),),
    session_timeout_ms=CLASSIC_SESSION_MS,
)
UNREVOKED = {
    "state": UNREVOKED_PARTITIONS,
    "member_epoch": BEHIND,
    "assigned": held(foo=(0, 1)),
    "revoking": held(foo=(2,)),
    "target": held(foo=(0, 1)),
}
UNRELEASED = {
    "state": UNRELEASED_PARTITIONS,
    "assigned": held(foo=(0, 1)),
    "target": held(foo=(0, 1, 2)),
}

SITUATIONS = {
    "no members": Situation(None, is_empty=True),
    "unknown": Situation(None),
    "stable": Situation(CONSUMER),
    "behind": Situation(replace(CONSUMER, member_epoch=BEHIND)),
    "assigning": Situation(replace(CONSUMER, member_epoch=BEHIND), assignment_epoch=BEHIND),
    "unrevoked": Situation(replace(CONSUMER, **UNREVOKED)),
    "unreleased": Situation(replace(CONSUMER, **UNRELEASED), o_has=(2, 3, 4, 5)),
    "static": Situation(replace(CONSUMER, group_instance_id=INSTANCE)),
    "static, away": Situation(
        replace(CONSUMER, group_instance_id=INSTANCE, member_epoch=STATIC_LEAVE_EPOCH)
    ),
    "classic": Situation(CLASSIC),
    "classic, behind": Situation(replace(CLASSIC, member_epoch=BEHIND)),
    "classic, unrevoked": Situation(replace(CLASSIC, **UNREVOKED)),
    "classic, unreleased, taken": Situation(replace(CLASSIC, **UNRELEASED), o_has=(2, 3, 4, 5)),
    "classic, unreleased, free": Situation(replace(CLASSIC, **UNRELEASED)),
    "classic, static": Situation(replace(CLASSIC, group_instance_id=INSTANCE)),
}


def member_epoch(driver: Driver) -> int:
    row = driver.consumer.roster.members.get(M)
    return EPOCH if row is None or row.member_epoch < 0 else row.member_epoch


def heartbeat(epoch: int | None = None, **said: object) -> Callable[[Driver], Error]:
    """epoch: None is the member's own."""

    def event(driver: Driver) -> Error:
        at = member_epoch(driver) if epoch is None else epoch
        return driver.heartbeat(M, at, **said).error  # type: ignore[arg-type]

    return event


FULL = {"names": ("foo",), "owned": {}, "rebalance_timeout_ms": REBALANCE_MS}


def join(instance_id: str | None = None, member_id: str = M) -> Callable[[Driver], Error]:
    def event(driver: Driver) -> Error:
        result = driver.join(member_id, "foo", instance_id=instance_id)
        return Error.NONE if result is None else result.error

    return event


def sync(behind: int = 0, **said: object) -> Callable[[Driver], Error]:
    def event(driver: Driver) -> Error:
        result = driver.sync(M, member_epoch(driver) - behind, **said)  # type: ignore[arg-type]
        assert result is not None
        return result.error

    return event


EVENTS: dict[str, Callable[[Driver], Error]] = {
    "join": heartbeat(0, **FULL),
    "join as the instance": heartbeat(0, instance_id=INSTANCE, **FULL),
    "heartbeat": heartbeat(),
    "heartbeat as the instance": heartbeat(instance_id=INSTANCE),
    "heartbeat, greater epoch": heartbeat(EPOCH + 1),
    "heartbeat, smaller epoch": heartbeat(PREVIOUS - 1, owned=held(foo=(0,))),
    "heartbeat, previous epoch": heartbeat(PREVIOUS, owned=held(foo=(0,))),
    "heartbeat, previous epoch, too much": heartbeat(PREVIOUS, owned=held(foo=(0, 5))),
    "heartbeat, previous epoch, unsaid": heartbeat(PREVIOUS),
    "leave": heartbeat(-1),
    "leave for a while": heartbeat(-2, instance_id=INSTANCE),
    "leave for a while, not static": heartbeat(-2),
    "epoch -3": heartbeat(-3),
    "commit": lambda driver: driver.commit(M, member_epoch(driver)),
    "commit, other epoch": lambda driver: driver.commit(M, PREVIOUS),
    "commit, no member": lambda driver: driver.commit("", -1),
    "fetch": lambda driver: driver.consumer.fetch_refusal(M, member_epoch(driver)),
    "fetch, other epoch": lambda driver: driver.consumer.fetch_refusal(M, PREVIOUS),
    "fetch, no member": lambda driver: driver.consumer.fetch_refusal(None, -1),
    "delete": lambda driver: driver.consumer.delete_refusal(),
    "JoinGroup": join(),
    "JoinGroup, no id": join(member_id=""),
    "JoinGroup, instance, no id": join(INSTANCE, ""),
    "JoinGroup, instance": join(INSTANCE),
    "SyncGroup": sync(),
    "SyncGroup, other generation": sync(1),
    "SyncGroup, other type": sync(protocol_type="connect"),
    "SyncGroup, other protocol": sync(protocol_name="range"),
    "SyncGroup, before v5": sync(protocol_type=None, protocol_name=None),
    "SyncGroup, instance": sync(instance_id=INSTANCE),
    "Heartbeat": lambda driver: driver.beat(M, member_epoch(driver)),
    "Heartbeat, other generation": lambda driver: driver.beat(M, PREVIOUS),
    "Heartbeat, instance": lambda driver: driver.beat(M, member_epoch(driver), INSTANCE),
    "LeaveGroup": lambda driver: driver.leave((M, None))[0],
    "LeaveGroup, instance": lambda driver: driver.leave((M, INSTANCE))[0],
    "LeaveGroup, instance, no id": lambda driver: driver.leave(("", INSTANCE))[0],
    "expire": lambda driver: driver.advance(0) or Error.NONE,
}

OK = Error.NONE
UNKNOWN = Error.UNKNOWN_MEMBER_ID
FENCED = Error.FENCED_MEMBER_EPOCH
STALE = Error.STALE_MEMBER_EPOCH
REBALANCE = Error.REBALANCE_IN_PROGRESS
GENERATION = Error.ILLEGAL_GENERATION
INVALID = Error.INVALID_REQUEST

STRANGER = {
    "join": OK,
    "join as the instance": OK,
    "heartbeat": UNKNOWN,
    "heartbeat as the instance": UNKNOWN,
    "heartbeat, greater epoch": UNKNOWN,
    "heartbeat, smaller epoch": UNKNOWN,
    "heartbeat, previous epoch": UNKNOWN,
    "heartbeat, previous epoch, too much": UNKNOWN,
    "heartbeat, previous epoch, unsaid": UNKNOWN,
    "leave": UNKNOWN,
    "leave for a while": UNKNOWN,
    "leave for a while, not static": INVALID,
    "epoch -3": INVALID,
    "commit": UNKNOWN,
    "commit, other epoch": UNKNOWN,
    "commit, no member": UNKNOWN,
    "fetch": UNKNOWN,
    "fetch, other epoch": UNKNOWN,
    "fetch, no member": OK,
    "delete": Error.NON_EMPTY_GROUP,
    "JoinGroup": OK,
    "JoinGroup, no id": Error.MEMBER_ID_REQUIRED,
    "JoinGroup, instance, no id": OK,
    "JoinGroup, instance": UNKNOWN,
    "SyncGroup": UNKNOWN,
    "SyncGroup, other generation": UNKNOWN,
    "SyncGroup, other type": UNKNOWN,
    "SyncGroup, other protocol": UNKNOWN,
    "SyncGroup, before v5": UNKNOWN,
    "SyncGroup, instance": UNKNOWN,
    "Heartbeat": UNKNOWN,
    "Heartbeat, other generation": UNKNOWN,
    "Heartbeat, instance": UNKNOWN,
    "LeaveGroup": UNKNOWN,
    "LeaveGroup, instance": UNKNOWN,
    "LeaveGroup, instance, no id": UNKNOWN,
    "expire": OK,
}
MEMBER = STRANGER | {
    "heartbeat": OK,
    "heartbeat, greater epoch": FENCED,
    "heartbeat, smaller epoch": FENCED,
    "heartbeat, previous epoch": OK,
    "heartbeat, previous epoch, too much": FENCED,
    "heartbeat, previous epoch, unsaid": FENCED,
    "leave": OK,
    "commit": OK,
    "commit, other epoch": STALE,
    "fetch": OK,
    "fetch, other epoch": STALE,
    "LeaveGroup": OK,
}
STATIC = {
    "join as the instance": OK,  # the answer to its join was lost
    "heartbeat as the instance": OK,
    "leave for a while": OK,
    "JoinGroup, instance": OK,
    "LeaveGroup, instance": OK,
    "LeaveGroup, instance, no id": OK,
}
CLASSIC_MEMBER = MEMBER | {
    "commit, other epoch": GENERATION,
    "fetch, other epoch": GENERATION,
    "SyncGroup": OK,
    "SyncGroup, other generation": GENERATION,
    "SyncGroup, other type": Error.INCONSISTENT_GROUP_PROTOCOL,
    "SyncGroup, other protocol": Error.INCONSISTENT_GROUP_PROTOCOL,
    "SyncGroup, before v5": OK,
    "Heartbeat": OK,
    "Heartbeat, other generation": GENERATION,
}
TOLD_TO_REJOIN = {"SyncGroup": REBALANCE, "SyncGroup, before v5": REBALANCE, "Heartbeat": REBALANCE}

EXPECTED = {
    "no members": STRANGER
    | {
        "commit, no member": OK,
        "delete": OK,
        # It becomes a classic group.
        "JoinGroup": UNKNOWN,
        "JoinGroup, instance, no id": OK,
    },
    "unknown": STRANGER,
    "stable": MEMBER,
    "behind": MEMBER,
    "assigning": MEMBER,
    "unrevoked": MEMBER,
    "unreleased": MEMBER,
    "static": MEMBER | STATIC,
    "static, away": MEMBER
    | STATIC
    | {
        "heartbeat": FENCED,
        "heartbeat as the instance": FENCED,
        "heartbeat, previous epoch": FENCED,
        "commit": STALE,
        "fetch": STALE,
    },
    "classic": CLASSIC_MEMBER,
    "classic, behind": CLASSIC_MEMBER | TOLD_TO_REJOIN,
    "classic, unrevoked": CLASSIC_MEMBER | {"Heartbeat": REBALANCE},
    "classic, unreleased, taken": CLASSIC_MEMBER,
    "classic, unreleased, free": CLASSIC_MEMBER | {"Heartbeat": REBALANCE},
    "classic, static": CLASSIC_MEMBER
    | STATIC
    | {"SyncGroup, instance": OK, "Heartbeat, instance": OK},
}


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_event_in_state(situation: str, event: str) -> None:
    driver = SITUATIONS[situation].driver()
    before = driver.consumer.stored()
    error = EVENTS[event](driver)
    assert error is EXPECTED[situation][event]
    if error is not Error.NONE:
        assert driver.effects is None
        if driver.group is not None and driver.group.type.value == "consumer":
            assert driver.consumer.stored() == before


def test_the_table_is_complete() -> None:
    assert EXPECTED.keys() == SITUATIONS.keys()
    for expected in EXPECTED.values():
        assert expected.keys() == EVENTS.keys()


STATES = {
    "no members": "Empty",
    "unknown": "Stable",
    "stable": "Stable",
    "behind": "Reconciling",
    "assigning": "Assigning",
    "unrevoked": "Reconciling",
    "unreleased": "Reconciling",
    "static": "Stable",
    "static, away": "Reconciling",
    "classic": "Stable",
    "classic, behind": "Reconciling",
    "classic, unrevoked": "Reconciling",
    "classic, unreleased, taken": "Reconciling",
    "classic, unreleased, free": "Reconciling",
    "classic, static": "Stable",
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_group_has_kafkas_state(situation: str) -> None:
    driver = SITUATIONS[situation].driver()
    assert driver.state == driver.consumer.describe().state == STATES[situation]

"""core.group.why: what is said of a group that does not go on."""

from collections.abc import Sequence
from typing import Any

from core.group.progress import Group, GroupView, HeldPartition, Member, Progress, Waiting
from core.group.why import HIDDEN, Finding, findings


def member(client_id: str, has: list[int], target: list[int] | None = None) -> Member:
    return Member(
        *(f"{client_id}-1", None, client_id, "/10.0.0.1", {"t": has} if has else {}),
        epoch=None if target is None else 3,
        target=None if target is None else {"t": target},
    )


def progress(partition: int, committed: int | None, end: int = 10, **others: Any) -> Progress:
    lag = None if committed is None else end - committed
    return Progress("t", partition, committed, others.pop("start", 0), end, lag, **others)


def said(
    state: str,
    members: Sequence[Member] = (),
    rows: Sequence[Progress] = (),
    held: Sequence[HeldPartition] = (),
    waiting: Waiting | None = None,
) -> list[tuple[str, str]]:
    group = Group("g", None, "classic", state, coordinator="here:9092", members=tuple(members))
    return [(each.kind, each.text) for each in found(group, rows, held, waiting)]


def found(
    group: Group,
    rows: Sequence[Progress],
    held: Sequence[HeldPartition] = (),
    waiting: Waiting | None = None,
) -> list[Finding]:
    return findings(GroupView(group, tuple(rows)), held, waiting)


def test_nothing_holds_it_back() -> None:
    told = said("Stable", [member("a", [0])], [progress(0, 10, member_id="a-1", client_id="a")])
    assert [kind for kind, _ in told] == ["up_to_date"]


def test_a_classic_rebalance_names_members_and_what_is_not_told() -> None:
    ((kind, text),) = said("PreparingRebalance", [member("a", []), member("b", [])], [])
    assert kind == "rebalance"
    assert "here:9092, waits until every member has joined again: a at 10.0.0.1, b at" in text
    assert "does not tell clients which member is late." in text
    assert said("CompletingRebalance")[0][1].endswith("If it lasts, restart it.")


def test_the_database_knows_who_is_waited_for_and_who_leads() -> None:
    members = [member("a", []), member("b", [])]
    waiting = Waiting("PreparingRebalance", "a-1", ("b-1", "pending-7"))
    ((_, text),) = said("PreparingRebalance", members, waiting=waiting)
    assert "waits for b at 10.0.0.1, pending-7 to join again. These have joined: a at" in text
    waiting = Waiting("CompletingRebalance", "a-1", ("a-1", "b-1"))
    ((_, text),) = said("CompletingRebalance", members, waiting=waiting)
    assert "until their leader, a at 10.0.0.1, has made the assignment." in text
    # The group has moved on between the two questions.
    ((_, text),) = said("PreparingRebalance", members, waiting=waiting)
    assert "does not tell clients which member is late" in text


def test_a_member_that_does_not_give_back_is_named() -> None:
    slow, new = member("slow", [0, 1], [0]), member("new", [], [1])
    told = said("Reconciling", [slow, new], [])
    assert [text.split(":")[0] for _, text in told[:2]] == [
        "slow at 10.0.0.1 has to give back t 1",
        "new at 10.0.0.1 waits for t 1, which slow at 10.0.0.1 still has.",
    ]


def test_what_retention_has_passed_and_what_was_made_anew() -> None:
    rows = [
        progress(0, 2, start=5, member_id="a-1", client_id="a", host="/h"),
        progress(1, 12),
        Progress("gone", 0, 4, None, None, None),
    ]
    told = dict(said("Stable", [member("a", [0])], rows))
    assert told["retention"].startswith("t 0: the group is at offset 2, and the log begins at 5:")
    assert told["beyond_end"].startswith("t 1: the group is at offset 12, beyond the log's end 10")
    assert told["no_partition"].startswith("gone 0 does not exist any more")


def test_partition_without_a_member_is_named() -> None:
    told = dict(said("Stable", [member("a", [0])], [progress(1, 4), progress(2, 10)]))
    assert told.keys() == {"no_member"}
    assert told["no_member"].startswith("t 1 belongs to no member, and is 6 behind")


def test_many_partitions_are_counted() -> None:
    rows = [progress(n, 4, member_id="a-1", client_id="a", host="/h") for n in range(9)]
    told = said("Stable", [member("a", list(range(9)))], rows)
    assert len(told) == 6
    assert told[-1] == ("lag", "The same of 4 more partitions.")


def test_what_an_open_transaction_holds_is_named_as_far_as_it_may_be_seen() -> None:
    at_end = [progress(0, 10)]
    held = HeldPartition("t", 0, "payments-7", 4, 10, 3, 300.0, 20.0, "/10.0.0.5")
    group = Group("g", None, "classic", "Empty")
    _, named = found(group, at_end, [held])
    assert named.text.startswith("t 0: transaction payments-7 of 10.0.0.5, open for 300 s and")
    assert named.held is held
    ((_, text),) = said("Stable", [], at_end, [HeldPartition("t", 0, HIDDEN, 4, 10, 3)])
    assert text.startswith("t 0: a transaction that you may not see holds back consumers")
    ((_, text),) = said("Stable", [], at_end, [HeldPartition("t", 0, None, 4, 10, 3)])
    assert text.startswith("t 0: a transaction of producer 4 holds back consumers")


def test_a_member_that_commits_nothing_is_told_from_a_slow_one() -> None:
    owner = {"member_id": "a-1", "client_id": "a", "host": "/h"}
    ((kind, fine),) = said("Stable", rows=[progress(0, 4, committed_age_s=2.0, **owner)])
    assert (kind, fine[-47:]) == ("reads", " It goes on: its last commit there was 2 s ago.")
    ((kind, slow),) = said("Stable", rows=[progress(0, 4, committed_age_s=20.0, **owner)])
    assert (kind, slow[-24:]) == ("lag", "if it moves, it is slow.")
    ((_, stuck),) = said("Stable", rows=[progress(0, 4, committed_age_s=200.0, **owner)])
    assert "Nothing was committed there for 200 s: that process hangs" in stuck

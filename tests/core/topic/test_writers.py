"""core.topic.writers: names, access modes, topic epochs (Pulsar's AbstractTopic)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.topic.writers import (
    AccessMode,
    Admitted,
    Denial,
    Denied,
    PartitionWriters,
    Waiting,
    Writer,
)

SHARED = Writer("shared")
EXCLUSIVE = Writer("exclusive", AccessMode.EXCLUSIVE)
WAITING = Writer("waiting", AccessMode.WAIT_FOR_EXCLUSIVE)
FENCING = Writer("fencing", AccessMode.EXCLUSIVE_WITH_FENCING)


def writers(*present: Writer) -> PartitionWriters:
    made = PartitionWriters()
    for each in present:
        assert isinstance(made.admit(each), Admitted)
    return made


def denial(verdict: object) -> Denial | None:
    return verdict.denial if isinstance(verdict, Denied) else None


def test_many_share() -> None:
    assert writers(SHARED, replace(SHARED, name="another")).admit(Writer("third")) == Admitted()


def test_a_name_in_use_is_taken() -> None:
    verdict = writers(SHARED).admit(replace(SHARED))
    assert isinstance(verdict, Denied)
    assert (verdict.denial, verdict.other) == (Denial.NAME_TAKEN, SHARED)


@pytest.mark.parametrize("mode", [AccessMode.SHARED, AccessMode.EXCLUSIVE])
@pytest.mark.parametrize("is_given", [True, False])
def test_a_client_that_comes_again_takes_its_own_place(mode: AccessMode, is_given: bool) -> None:
    first = Writer("name", mode, is_given, epoch=3, connection=1, number=7)
    for again, is_it in [
        (replace(first, epoch=4), True),  # the same connection
        (replace(first), False),  # not later
        (replace(first, epoch=4, connection=2), not is_given),  # a made name is nobody else's
    ]:
        verdict = writers(first).admit(again)
        if is_it:
            assert isinstance(verdict, Admitted)
            assert verdict.ejected == (first,)
        else:
            assert denial(verdict) is Denial.NAME_TAKEN


def test_one_that_was_replaced_frees_nothing_when_it_goes() -> None:
    first = Writer("name", is_name_given=False)
    again = replace(first, epoch=1)
    made = writers(first, again)
    assert made.remove(first) == []
    assert denial(made.admit(Writer("name"))) is Denial.NAME_TAKEN


@pytest.mark.parametrize("there", [SHARED, EXCLUSIVE])
def test_an_exclusive_one_is_alone(there: Writer) -> None:
    made = writers(there)
    assert denial(made.admit(Writer("other", AccessMode.EXCLUSIVE))) is Denial.FENCED
    made.remove(there)
    assert isinstance(made.admit(Writer("other", AccessMode.EXCLUSIVE)), Admitted)
    assert denial(made.admit(Writer("late"))) is Denial.BUSY


def test_one_that_waits_has_its_turn_when_all_have_gone() -> None:
    made = writers(SHARED, replace(SHARED, name="another"))
    assert made.admit(WAITING) == Waiting()
    second = replace(WAITING, name="second")
    assert made.admit(second) == Waiting()
    assert denial(made.admit(Writer("late"))) is Denial.BUSY  # the queue comes first
    assert made.remove(SHARED) == []
    (other,) = made._writers.values()
    assert made.remove(other) == [(WAITING, Admitted(0))]
    assert made.remove(WAITING) == [(second, Admitted(1))]


def test_one_that_gave_up_waiting_is_not_told() -> None:
    made = writers(SHARED)
    made.admit(WAITING)
    assert made.remove(WAITING) == []
    assert made.remove(SHARED) == []


def test_fencing_ejects_everybody() -> None:
    made = writers(SHARED)
    made.admit(WAITING)
    verdict = made.admit(FENCING)
    assert verdict == Admitted(0, (SHARED, WAITING))
    another = replace(FENCING, name="another")
    assert made.admit(another) == Admitted(1, (FENCING,))


@pytest.mark.parametrize("mode", list(AccessMode)[1:])
def test_one_that_was_fenced_does_not_come_back(mode: AccessMode) -> None:
    made = writers(FENCING)
    made.admit(replace(FENCING, name="another"))
    made.remove(next(iter(made._writers.values())))
    late = Writer("fencing", mode, topic_epoch=0)
    assert denial(made.admit(late)) is Denial.FENCED
    assert made.admit(replace(late, topic_epoch=1)) == Admitted(1)


def test_one_whose_turn_comes_too_late_is_told() -> None:
    made = writers(FENCING)
    late = replace(WAITING, topic_epoch=0)
    made.admit(late)
    second = Writer("second", AccessMode.EXCLUSIVE_WITH_FENCING)
    made.admit(second)  # ejects who waits
    made.admit(replace(late, topic_epoch=0))
    (told,) = made.remove(second)
    assert denial(told[1]) is Denial.FENCED


def test_the_topic_epoch_goes_on_from_what_is_stored() -> None:
    made = PartitionWriters(6)
    shared = made.admit(SHARED)
    assert shared == Admitted(6)
    made.remove(SHARED)
    assert denial(made.admit(replace(EXCLUSIVE, topic_epoch=5))) is Denial.FENCED
    assert made.admit(replace(EXCLUSIVE, topic_epoch=6)) == Admitted(6)
    made.remove(made.all[0])
    assert made.admit(EXCLUSIVE) == Admitted(7)
    assert made.admit(FENCING) == Admitted(8, (EXCLUSIVE,))
    made.remove(FENCING)
    assert made.admit(SHARED) == Admitted(8)

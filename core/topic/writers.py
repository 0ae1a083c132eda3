"""Who may write to a partition at a time: producers by name, and their access modes.

For protocols whose producers have names (Pulsar's); Kafka's write without asking. Pure, and kept in
memory: a name is free again, and nobody exclusive, once the connection or the broker has gone. The
topic epoch outlives that: it is to be stored before a writer hears that it is alone.
Sources: AbstractTopic.addProducer, incrementTopicEpochIfNeeded, Producer.isSuccessorTo.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from core.types import NO_TOPIC_EPOCH


class AccessMode(Enum):
    """Whether others may write meanwhile, and what becomes of who is there already."""

    SHARED = auto()
    EXCLUSIVE = auto()
    WAIT_FOR_EXCLUSIVE = auto()
    EXCLUSIVE_WITH_FENCING = auto()


class Denial(Enum):
    """NAME_TAKEN: by a producer that lives. BUSY: there is an exclusive one, or one waits to be.
    FENCED: an exclusive one cannot be beside others, or was replaced meanwhile. MOVED: another
    broker takes writers in."""

    NAME_TAKEN = auto()
    BUSY = auto()
    FENCED = auto()
    MOVED = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Writer:
    """A producer, compared by identity.

    is_name_given: by its application; else a broker has made the name, and nobody else has it.
    epoch: how often its client has come again. topic_epoch: of the partition, as it was told when
    it was admitted before. connection, number: where it is, and how it is called there.
    """

    name: str
    mode: AccessMode = AccessMode.SHARED
    is_name_given: bool = True
    epoch: int = 0
    topic_epoch: int | None = None
    connection: object = None
    number: int = 0

    def is_return_of(self, other: "Writer") -> bool:
        """Whether both are one producer, whose client has come again."""
        if self.name != other.name or self.epoch <= other.epoch:
            return False
        is_same_place = self.connection is other.connection and self.number == other.number
        return is_same_place or not (self.is_name_given or other.is_name_given)


@dataclass(frozen=True, slots=True)
class Admitted:
    """It may write. topic_epoch: the partition's; -1 while nobody has been alone. ejected: who may
    not any more."""

    topic_epoch: int = NO_TOPIC_EPOCH
    ejected: Sequence[Writer] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """Its turn comes when it is alone."""


@dataclass(frozen=True, slots=True)
class Denied:
    """It may not write. other: whose name it is, where the name is why."""

    denial: Denial
    message: str
    other: Writer | None = None


REPLACED: Final = Denied(Denial.FENCED, "Another producer has taken its place")
"""What an ejected writer is told."""

MOVED: Final = Denied(Denial.MOVED, "Another broker has the topic: look it up again")
"""What all writers are told."""


class PartitionWriters:
    """Those of one partition. topic_epoch: as it is stored."""

    def __init__(self, topic_epoch: int = NO_TOPIC_EPOCH) -> None:
        self._writers: dict[str, Writer] = {}
        self._exclusive: Writer | None = None
        self._waiting: list[Writer] = []
        self._topic_epoch = topic_epoch

    @property
    def present(self) -> list[Writer]:
        """Those who may write."""
        return list(self._writers.values())

    @property
    def waiting(self) -> list[Writer]:
        """Those whose turn has not come."""
        return list(self._waiting)

    @property
    def all(self) -> list[Writer]:
        """Both."""
        return [*self._writers.values(), *self._waiting]

    def admit(self, writer: Writer) -> Admitted | Waiting | Denied:
        """Takes the writer in, if it may be."""
        others = {name: each for name, each in self._writers.items() if each.name != writer.name}
        holder = self._writers.get(writer.name)
        replaced: tuple[Writer, ...] = ()
        if holder is not None:
            fences = writer.mode is AccessMode.EXCLUSIVE_WITH_FENCING
            if not fences and not writer.is_return_of(holder):
                message = f"Producer with name '{writer.name}' is already connected to topic"
                return Denied(Denial.NAME_TAKEN, message, holder)
            replaced = (holder,)
        exclusive = None if self._exclusive in replaced else self._exclusive
        if writer.mode is AccessMode.SHARED:
            if exclusive is not None or self._waiting:
                return Denied(Denial.BUSY, _exclusive_there(exclusive))
            self._leave(replaced)
            self._writers[writer.name] = writer
            return Admitted(self._topic_epoch, replaced)
        if writer.mode is AccessMode.EXCLUSIVE:
            if exclusive is not None or self._waiting:
                return Denied(Denial.FENCED, _exclusive_there(exclusive))
            if others:
                return Denied(Denial.FENCED, "Topic has existing shared producers")
        elif writer.mode is AccessMode.WAIT_FOR_EXCLUSIVE and (others or exclusive is not None):
            self._waiting.append(writer)
            return Waiting()
        if denied := self._fenced(writer):
            return denied
        ejected = replaced
        if writer.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            ejected = (*self._writers.values(), *self._waiting)
        self._leave(ejected)
        return Admitted(self._enter_alone(writer), ejected)

    def remove(self, writer: Writer) -> list[tuple[Writer, Admitted | Denied]]:
        """The writer has gone. Returns those whose turn has come, or who have waited in vain."""
        self._leave((writer,))
        told: list[tuple[Writer, Admitted | Denied]] = []
        while self._waiting and not self._writers:
            following = self._waiting.pop(0)
            denied = self._fenced(following)
            told.append((following, denied or Admitted(self._enter_alone(following))))
        return told

    def _leave(self, writers: Sequence[Writer]) -> None:
        for each in writers:
            if self._writers.get(each.name) is each:
                del self._writers[each.name]
            if self._exclusive is each:
                self._exclusive = None
        self._waiting = [each for each in self._waiting if each not in writers]

    def _fenced(self, writer: Writer) -> Denied | None:
        """One that was exclusive before, and has been replaced since."""
        if writer.topic_epoch is None or writer.topic_epoch >= self._topic_epoch:
            return None
        return Denied(
            Denial.FENCED,
            f"Topic epoch has already moved. Current epoch: {self._topic_epoch},"
            f" Producer epoch: {writer.topic_epoch}",
        )

    def _enter_alone(self, writer: Writer) -> int:
        raised = self._topic_epoch + 1
        self._topic_epoch = raised if writer.topic_epoch is None else writer.topic_epoch
        self._exclusive = self._writers[writer.name] = writer
        return self._topic_epoch


def _exclusive_there(exclusive: Writer | None) -> str:
    name = f": {exclusive.name}" if exclusive is not None else ""
    return f"Topic has an existing exclusive producer{name}"

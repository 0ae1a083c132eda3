"""The clients of the transaction machine: what a healthy producer sends, how it takes answers."""

from __future__ import annotations

from core.errors import Error
from core.transaction.values import TransitionAnswer
from tests.batches import batch
from tests.property.transaction_brokers import V1, V2, Brokers
from tests.property.transaction_world import Instance, Kind, Sent, Txn

_MEETING = (Error.CONCURRENT_TRANSACTIONS, Error.NOT_LEADER_OR_FOLLOWER)
"""What an acknowledgement may always be told: another one has the message, or the subscription."""


class Clients(Brokers):
    """Producers as librdkafka (V1) and Kafka's own (V2) behave, and clients of Pulsar's."""

    def act(
        self, instance: Instance, act: str, p: int, records: int, offsets: tuple[int, ...] = ()
    ) -> None:
        match act:
            case "write":
                self.write(instance, p, records)
            case "acks" if instance.is_single:
                self.send_acks(instance, offsets)
            case "offsets" | "recover" if instance.is_single:
                pass
            case "offsets":
                self.commit_offsets(instance)
            case "commit" | "abort" if instance.txn:
                self.end(instance, is_commit=act == "commit")
            case "recover":  # KIP-360, in the middle of a transaction or between two
                self.initialise(instance)

    def send(self, kind: Kind, instance: Instance, p: int = 0) -> Sent:
        if kind is Kind.INIT:
            sent = Sent(kind, instance, instance.producer)
        else:
            if instance.txn is None:
                instance.txn = Txn()
                self.txns.append(instance.txn)
            sent = Sent(kind, instance, instance.producer, instance.txn, p)
            instance.txn.sent.append(sent)
        self.network.append(sent)
        return sent

    def initialise(self, instance: Instance) -> None:
        instance.txn = None
        instance.needs_bump = False
        instance.init = self.send(Kind.INIT, instance)

    def write(self, instance: Instance, p: int, records: int) -> None:
        txn = instance.txn
        if txn and (txn.is_failed or any(o.partition == p for o in txn.unanswered(Kind.WRITE))):
            return  # later batches travel behind it
        if instance.version is V1 and not (txn and p in txn.joined):
            self.send(Kind.JOIN, instance, p)
            return
        sequence = instance.sequences.get(p, 0)
        instance.sequences[p] = sequence + records
        self.send(Kind.WRITE, instance, p).batch = batch(
            records,
            producer=instance.producer.producer_id,
            epoch=instance.producer.producer_epoch,
            sequence=sequence,
            transactional=True,
        )

    def commit_offsets(self, instance: Instance) -> None:
        txn = instance.txn
        if txn and (txn.is_failed or any(each.kind is Kind.OFFSETS for each in txn.sent)):
            return
        is_ready = instance.version is V2 or (txn and txn.has_group)
        self.send(Kind.OFFSETS if is_ready else Kind.JOIN_GROUP, instance)

    def send_acks(self, instance: Instance, offsets: tuple[int, ...]) -> None:
        txn = instance.txn
        if txn and not txn.is_failed and offsets:
            self.send(Kind.ACK, instance).acks = offsets

    def end(self, instance: Instance, *, is_commit: bool) -> None:
        txn = instance.txn
        assert txn is not None
        asked = (Kind.WRITE, Kind.OFFSETS, Kind.ACK, Kind.JOIN, Kind.JOIN_GROUP)
        if instance.version is V1 and txn.unanswered(Kind.WRITE):
            instance.needs_bump = True  # their sequences are lost
        is_whole = not (txn.is_failed or txn.unanswered(*asked))
        txn.end = self.send(Kind.END, instance)
        txn.end.is_commit = is_commit and is_whole

    def answer(self, sent: Sent, answer: TransitionAnswer) -> None:
        instance, txn = sent.instance, sent.txn
        if not instance.awaits(sent):
            return
        sent.is_answered = True
        if answer.error is not Error.NONE:
            self.check_refusal(sent, answer.error)
            if sent.kind in (Kind.INIT, Kind.END):
                instance.is_dead = True
            elif txn:
                txn.is_failed = True
                instance.needs_bump |= sent.kind is Kind.WRITE
            return
        assert answer.producer.producer_epoch < 32767, "that one is kept for fencing"
        if sent.kind is Kind.INIT:
            instance.init = None
            instance.become(answer.producer)
        elif sent.kind is Kind.JOIN and txn:
            txn.joined.add(sent.partition)
        elif sent.kind is Kind.JOIN_GROUP and txn:
            txn.has_group = True
        elif sent.kind is Kind.END and txn:
            txn.told = sent.is_commit
            if instance.is_single:
                instance.is_dead = True  # whatever is on its way comes late
                return
            instance.txn = None
            instance.become(answer.producer)
            if instance.version is V1:
                late = (Kind.END, Kind.OFFSETS)
                self.network = [
                    each for each in self.network if each.txn is not txn or each.kind not in late
                ]
                if instance.needs_bump:
                    self.initialise(instance)

    def check_refusal(self, sent: Sent, error: Error) -> None:
        """Whoever has done nothing wrong is not refused."""
        if sent.kind is Kind.ACK and error in _MEETING:
            return
        if sent.instance.is_disturbed:
            return
        if sent.txn and sent.txn.end and sent is not sent.txn.end:
            assert not sent.txn.end.is_commit
            return  # its abort has overtaken it
        # An abort that has overtaken its joins, after a commit: see _repeated_end.
        assert sent.kind is Kind.END
        assert error is Error.INVALID_TXN_STATE
        assert (sent.instance.version, sent.is_commit) == (V1, False)
        assert sent.txn is not None
        assert not sent.txn.joined
        assert not sent.txn.has_group

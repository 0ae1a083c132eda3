"""Pulsar's transaction ids, and which broker coordinates them.

Any broker can end any transaction, since its rows are the truth; that a coordinator has one broker
at a time only spreads the work, and is what clients look up. A TxnID's least bits are the id of the
transaction's producer in the log: it rises, is never given out twice, and (0, 0) may be one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from core.errors import Error
from core.leadership import choose_leader
from core.ports.log import StoreUnavailable
from core.security.principal import ANONYMOUS
from core.transaction.key import TransactionKey
from core.transaction.single_use import EPOCH, is_anothers
from core.transaction.values import ProducerIdAndEpoch, TransactionState
from gateway.pulsar.commands import ServerError
from gateway.pulsar.errors import server_error
from gateway.pulsar.names import TopicName
from gateway.pulsar.session import LISTENER
from gateway.runtime.flush.outcomes import Unconfirmed
from gateway.runtime.users import shown

if TYPE_CHECKING:
    from core.types import LiveBroker
    from gateway.pulsar.commands_pb2 import CommandAck, CommandSend
    from gateway.pulsar.session import Services, Session

log = structlog.get_logger(__name__)

COORDINATORS: Final = "transaction_coordinator_assign"
"""The topic of `pulsar/system` whose partitions are the coordinators; it is not in the log."""

COORDINATORS_SETTING: Final = "penstock.transaction.coordinators"
"""How many there are."""

_LEAST_TOO_LARGE: Final = 2**63


class TxnId(NamedTuple):
    """A transaction's id: of its coordinator, and of its producer (most and least bits)."""

    most: int
    least: int

    @property
    def key(self) -> TransactionKey:
        """Its name in the log."""
        return TransactionKey.of_pulsar(self.most, self.least)

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """Who writes and acknowledges in it."""
        return ProducerIdAndEpoch(self.least, EPOCH)

    @property
    def is_possible(self) -> bool:
        """Whether one may ever have been given out."""
        return self.least < _LEAST_TOO_LARGE


def txn_of(message: CommandSend | CommandAck) -> TxnId | None:
    """The transaction that a command is of; (0, 0) may be one, so the fields' presence tells."""
    if not (message.HasField("txnid_least_bits") or message.HasField("txnid_most_bits")):
        return None
    return TxnId(message.txnid_most_bits, message.txnid_least_bits)


class Failed(NamedTuple):
    """What a response to a transaction's command says instead of success."""

    error: ServerError
    message: str


def is_coordinator(name: TopicName) -> bool:
    """Whether this is the coordinators' topic, or a partition of it."""
    return (name.tenant, name.namespace, name.local_name) == ("pulsar", "system", COORDINATORS)


def count_coordinators(services: Services) -> int:
    """How many there are; every client asks for it when it starts."""
    return services.configs.broker_int(COORDINATORS_SETTING)


def owner_of_coordinator(number: int, services: Services) -> LiveBroker | None:
    """The broker that clients are sent to: the coordinators are spread over those that live and
    listen for Pulsar. None where there is no such coordinator, or no such broker."""
    if not 0 <= number < count_coordinators(services):
        return None
    brokers = {each.broker_id: each for each in services.cluster.live if each.at(LISTENER)}
    # Below all partitions, which are led by the same rule.
    leader = choose_leader(-1 - number, brokers)
    return None if leader is None else brokers[leader]


def refuse_coordinator(number: int, session: Session) -> Failed | None:
    """Why a command for a coordinator is not served here: the client looks it up again.

    A connection keeps those that it was given, though they have moved to a broker that has joined:
    Go's client looks none up again while its connection lasts, and would fail for ever.
    """
    if number in session.coordinators:
        return None
    services = session.services
    owner = owner_of_coordinator(number, services)
    if owner is not None and owner.broker_id == services.cluster.this.broker_id:
        return None
    reason = f"Transaction coordinator {number} is not here: look it up again"
    return Failed(ServerError.TRANSACTION_COORDINATOR_NOT_FOUND, reason)


async def attempt(
    txn: TxnId, session: Session, work: Callable[[], Awaitable[Error | Failed | Unconfirmed]]
) -> Failed | None:
    """Does what a command asks of a transaction; why it failed, or None.

    Where nobody knows whether it is stored, the client is told to look the coordinator up and to
    ask again, which changes nothing if it is.
    """
    if refused := refuse_coordinator(txn.most, session):
        return refused
    if not txn.is_possible:
        return failed(Error.INVALID_PRODUCER_ID_MAPPING, txn)
    try:
        if (not_his := await _refuse_others(txn, session)) is not None:
            return not_his
        outcome = await work()
    except StoreUnavailable as away:
        return Failed(
            ServerError.TRANSACTION_COORDINATOR_NOT_FOUND, f"The database is away: {away}"
        )
    if isinstance(outcome, Unconfirmed):
        return Failed(ServerError.TRANSACTION_COORDINATOR_NOT_FOUND, outcome.message)
    if isinstance(outcome, Failed):
        return outcome
    return None if outcome is Error.NONE else failed(outcome, txn)


async def _refuse_others(txn: TxnId, session: Session) -> Failed | None:
    """Why a transaction is not for this client, in Pulsar's words (failedFutureTxnNotOwned of
    ServerCnx): as if it were not there. Asked where clients log in."""
    caller = session.caller
    if caller.principal == ANONYMOUS:
        return None
    services = session.services
    owner = await services.transactions.find_owner(txn.key, txn.least)
    if owner is None or not is_anothers(owner, str(caller.principal)):
        return None
    rules = services.acls.rules
    who = [each for each in (caller.principal, caller.proxy) if each is not None]
    if all(map(rules.is_super_user, who)):
        return None
    log.warning(
        "refused",
        principal=shown(str(caller.principal)),
        host=caller.host,
        resource=f"TRANSACTION:{txn.key.name}",
        rule="another principal's",
    )
    reason = (
        f"Client ({caller.principal.name}) is neither the owner of the transaction {txn.key.name} "
        "nor a super user"
    )
    return Failed(ServerError.TRANSACTION_NOT_FOUND, reason)


async def confirm_end(txn: TxnId, session: Session, *, is_commit: bool) -> Failed | None:
    """Whether the transaction has ended this way; why not, or None."""
    try:
        if (not_his := await _refuse_others(txn, session)) is not None:
            return not_his
        found = (await session.services.transactions.describe([txn.key])).get(txn.key)
    except StoreUnavailable as away:
        return Failed(ServerError.SERVICE_NOT_READY, f"The database is away: {away}")
    if found is None:
        return failed(Error.INVALID_PRODUCER_ID_MAPPING, txn)
    done = TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
    if found.metadata.state is done:
        return None
    reason = f"Transaction {txn.key.name} is {found.metadata.state.value}: END_TXN ends it"
    return Failed(ServerError.INVALID_TXN_STATUS, reason)


_REASONS: Final = {
    Error.INVALID_PRODUCER_ID_MAPPING: "There is no transaction {}",
    Error.INVALID_TXN_STATE: "Transaction {} has ended",
    Error.TRANSACTION_ABORTABLE: "Transaction {} does not have this partition",
    Error.CONCURRENT_TRANSACTIONS: "Transaction {} meets acknowledgements that are there already",
    Error.NOT_LEADER_OR_FOLLOWER: "This broker does not dispatch the topic now (transaction {})",
    Error.INVALID_REQUEST: "Transaction {} acknowledges on a subscription that is not durable",
}


def failed(error: Error, txn: TxnId) -> Failed:
    """An error of a transaction's, as clients are told of it."""
    text = _REASONS.get(error, "Transaction {} failed: " + error.name)
    return Failed(server_error(error), text.format(txn.key.name))

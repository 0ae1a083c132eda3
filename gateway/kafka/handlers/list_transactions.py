"""ListTransactions (key 66): the transactional ids that this broker is named for (KIP-664).

Behavior: every broker could list them all; each lists those that FindCoordinator sends to it, since
clients ask all brokers and put the answers together. A filter by duration leaves what is open for
longer, by the database's clock; Kafka shows ids that never had a transaction too. A pattern must
match the whole id, in RE2's syntax. A state that does not exist is named in the answer. Open
transactions of Pulsar's are listed by ids such as `pulsar:(3,1234)` (`shown_ids.py`); those
that have ended are not: each was one of many, and only DescribeTransactions knows it for a while.

Versions: v1 filter by duration (KIP-994); v2 by pattern (KIP-1152); all flexible.
"""

from collections.abc import Iterable
from typing import Any, Final

from core.errors import Error
from core.group.subscribed_topics import InvalidRegularExpression
from core.security.operations import REQUIREMENTS
from core.transaction.key import TransactionKey
from core.transaction.shown_ids import shown_id
from core.transaction.values import TransactionMetadata, TransactionState
from gateway.kafka.api import api
from gateway.kafka.codec import ListTransactionsRequest, ListTransactionsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.runtime.groups.topic_images import compiled

_State = ListTransactionsResponse.TransactionState
(_DESCRIBE,) = REQUIREMENTS["ListTransactions"]
_STATES: Final = {state.value: state for state in TransactionState}


def _refused(error: Error) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        error_code=kafka_code(error), unknown_state_filters=[], transaction_states=[]
    )


def _unavailable(request: ListTransactionsRequest, ctx: RequestContext) -> ListTransactionsResponse:
    return _refused(Error.COORDINATOR_NOT_AVAILABLE)


@api(66, versions=range(3), unavailable=_unavailable)
async def list_transactions(
    request: ListTransactionsRequest, ctx: RequestContext
) -> ListTransactionsResponse:
    """List what passes every filter."""
    matches = None
    if request.transactional_id_pattern:
        try:
            matches = compiled(request.transactional_id_pattern).fullmatch
        except InvalidRegularExpression:
            return _refused(Error.INVALID_REGULAR_EXPRESSION)
    now, every = await ctx.transactions.list_all()
    found = [
        known
        for known in _filtered(request, every, now)
        if (matches is None or matches(shown_id(known.key).encode()))
        and ctx.may(_DESCRIBE, shown_id(known.key))
        and _coordinator_of(known.key, ctx) == ctx.cluster.broker_id
    ]
    return ListTransactionsResponse(
        error_code=0,
        unknown_state_filters=[each for each in request.state_filters if each not in _STATES],
        transaction_states=[_listed(known) for known in found],
    )


def _filtered(
    request: ListTransactionsRequest, every: Iterable[TransactionMetadata], now: int
) -> Iterable[TransactionMetadata]:
    states = {_STATES[each] for each in request.state_filters if each in _STATES}
    producer_ids = set(request.producer_id_filters)
    duration: int = request.duration_filter
    for known in every:
        if known.state is TransactionState.DEAD:
            continue
        if request.state_filters and known.state not in states:
            continue
        if producer_ids and known.producer_id not in producer_ids:
            continue
        if duration >= 0 and (known.started_at < 0 or now - known.started_at <= duration):
            continue
        yield known


def _coordinator_of(key: TransactionKey, ctx: RequestContext) -> int:
    """The broker that clients are sent to for it by the id that they are shown."""
    return ctx.cluster.coordinator_of(TransactionKey.of_kafka(shown_id(key))).broker_id


def _listed(known: TransactionMetadata) -> Any:
    return _State(
        transactional_id=shown_id(known.key),
        producer_id=known.producer_id,
        transaction_state=known.state.value,
    )

"""FindCoordinator (key 10): which broker to ask about a group, or a transactional id.

Behavior: for a group the live holder of its lease; where nobody has it, the broker that may take
it. For a transactional id every broker would do: the one that all name alike keeps memory warm.
For an id that names a subscription of Pulsar's (`subscription_groups.py`), who dispatches it.
Share groups are refused, with a sentence. The error is UNSUPPORTED_VERSION: of the codes that end
the search, it is the one whose own text says what is the matter where a client drops the sentence.

Version notes: v1 names the type of key and explains errors; v3 flexible; v4 asks for several keys
(KIP-699); v6 share groups (KIP-932).
"""

from collections.abc import Sequence
from typing import Any, Final

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from core.transaction.key import TransactionKey
from core.types import LiveBroker
from gateway.kafka.api import api
from gateway.kafka.codec import FindCoordinatorRequest, FindCoordinatorResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import NO_ERROR, kafka_code
from gateway.kafka.subscription_groups import SubscriptionGroup, find_subscription
from gateway.kafka.unavailable import COORDINATOR_AWAY

_DESCRIBE_GROUP, _DESCRIBE_ID = REQUIREMENTS["FindCoordinator"]
_GROUP, _TRANSACTION, _SHARE = range(3)  # CoordinatorType
_FIRST_VERSION_WITH_KEYS: Final = 4
_FIRST_VERSION_WITH_SHARES: Final = 6
_NO_ID: Final = Refusal(
    Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "Transactional Id authorization failed."
)
_NO_NODE: Final[dict[str, Any]] = {"node_id": -1, "host": "", "port": -1}  # Node.noNode


def _unavailable(request: FindCoordinatorRequest, ctx: RequestContext) -> FindCoordinatorResponse:
    return _answer([(key, COORDINATOR_AWAY) for key in _keys(request, ctx)], ctx)


@api(10, versions=range(7), unavailable=_unavailable)
async def find_coordinator(
    request: FindCoordinatorRequest, ctx: RequestContext
) -> FindCoordinatorResponse:
    """Name the coordinator of the key, or of each of the keys."""
    if request.key_type == _TRANSACTION:
        coordinators = [
            (
                key,
                ctx.cluster.coordinator_of(TransactionKey.of_kafka(key))
                if ctx.may(_DESCRIBE_ID, key)
                else _NO_ID,
            )
            for key in _keys(request, ctx)
        ]
        return _answer(coordinators, ctx)
    if request.key_type != _GROUP:
        refusal = _refusal(request.key_type, ctx.api_version)
        return _answer([(key, refusal) for key in _keys(request, ctx)], ctx)
    found = [(key, await _coordinator_of(key, ctx)) for key in _keys(request, ctx)]
    return _answer(found, ctx)


async def _coordinator_of(group_id: str, ctx: RequestContext) -> LiveBroker | Refusal:
    if not ctx.may(_DESCRIBE_GROUP, group_id):
        return Refusal(Error.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    named = await find_subscription(group_id, ctx)
    if isinstance(named, SubscriptionGroup):
        return await ctx.services.subscriptions.owner_of(named.partition_id)
    return await ctx.groups.find_coordinator(group_id)


def _keys(request: FindCoordinatorRequest, ctx: RequestContext) -> list[str]:
    if ctx.api_version < _FIRST_VERSION_WITH_KEYS:
        return [request.key]
    keys: list[str] = request.coordinator_keys
    return keys


def _refusal(key_type: int, version: int) -> Refusal:
    if key_type == _SHARE and version >= _FIRST_VERSION_WITH_SHARES:
        return Refusal(Error.UNSUPPORTED_VERSION, "Penstock does not serve share groups")
    return Refusal(Error.INVALID_REQUEST, f"There are no keys of type {key_type}")


def _answer(
    found: Sequence[tuple[str, LiveBroker | Refusal]], ctx: RequestContext
) -> FindCoordinatorResponse:
    if ctx.api_version < _FIRST_VERSION_WITH_KEYS:
        [(_, only)] = found
        return FindCoordinatorResponse(**_fields(only, NO_ERROR, ctx))
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key=key, **_fields(each, "", ctx))
            for key, each in found
        ]
    )


def _fields(found: LiveBroker | Refusal, no_error: str, ctx: RequestContext) -> dict[str, Any]:
    # The broker found may have no listener that this client could come by.
    node = found if isinstance(found, Refusal) else ctx.node(found) or COORDINATOR_AWAY
    if isinstance(node, Refusal):
        error = kafka_code(node.error)
        return {**_NO_NODE, "error_code": error, "error_message": node.message}
    return {
        "node_id": node.broker_id,
        "host": node.host,
        "port": node.port,
        "error_code": kafka_code(Error.NONE),
        "error_message": no_error,
    }

"""FindCoordinator (key 10): refuses every key: groups and transactions are not served yet.

It is advertised because librdkafka compresses with lz4 only for brokers that have it. The error is
UNSUPPORTED_VERSION with a sentence: of the codes that end the search, it is the one whose own text
says what is the matter where a client drops the sentence (INVALID_REQUEST reads as "malformed by
the client library", in the Java consumer). Tried with stock clients: compat/librdkafka/FINDINGS.md.

Version notes: v1 names the type of key and explains errors; v3 flexible; v4 asks for several keys
(KIP-699); v6 share groups (KIP-932).

In v2, which is what librdkafka speaks, other codes have the effect that UNSUPPORTED_VERSION has
elsewhere:
- A group is COORDINATOR_NOT_AVAILABLE. librdkafka looks for it as soon as there is a `group.id`,
  also for a consumer that only assigns, and any final error would end in that consumer's poll loop
  (rd_kafka_cgrp_handle_FindCoordinator). So a consumer that subscribes waits in silence.
  Naming a coordinator is no way out: librdkafka 2.16 then crashes for want of OffsetFetch.
- A transactional id is TRANSACTIONAL_ID_AUTHORIZATION_FAILED, with the sentence: librdkafka gives
  up at once for this, and retries anything else until `init_transactions` times out, which tells
  nobody why (rd_kafka_txn_handle_FindCoordinator).
"""

from typing import Any, Final

from core.errors import Error, Refusal
from gateway.kafka.api import api
from gateway.kafka.codec import FindCoordinatorRequest, FindCoordinatorResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code

_GROUP, _TRANSACTION, _SHARE = range(3)  # CoordinatorType
_LIBRDKAFKA: Final = 2  # the newest version that librdkafka knows, up to 2.16 at least

_SENTENCES: Final = {
    _GROUP: "Penstock does not serve consumer groups yet: assign partitions, do not subscribe",
    _TRANSACTION: "Penstock does not serve transactions yet: leave out transactional.id",
    _SHARE: "Penstock does not serve share groups",
}
_FOR_LIBRDKAFKA: Final = {
    _GROUP: Error.COORDINATOR_NOT_AVAILABLE,
    _TRANSACTION: Error.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_NO_NODE: Final[dict[str, Any]] = {"node_id": -1, "host": "", "port": -1}  # Node.noNode


@api(10, versions=range(7))
async def find_coordinator(
    request: FindCoordinatorRequest, ctx: RequestContext
) -> FindCoordinatorResponse:
    """Refuse the key, or each of the keys, with one and the same sentence."""
    refusal = _refusal(request.key_type, ctx.api_version)
    refused = {
        **_NO_NODE,
        "error_code": kafka_code(refusal.error),
        "error_message": refusal.message,
    }
    if ctx.api_version < 4:
        return FindCoordinatorResponse(**refused)
    return FindCoordinatorResponse(
        coordinators=[
            FindCoordinatorResponse.Coordinator(key=key, **refused)
            for key in request.coordinator_keys
        ]
    )


def _refusal(key_type: int, version: int) -> Refusal:
    sentence = _SENTENCES.get(key_type)
    if sentence is None or (key_type == _SHARE and version < 6):
        return Refusal(Error.INVALID_REQUEST, f"There are no keys of type {key_type}")
    if version == _LIBRDKAFKA:
        return Refusal(_FOR_LIBRDKAFKA[key_type], sentence)
    return Refusal(Error.UNSUPPORTED_VERSION, sentence)

"""AlterUserScramCredentials (key 51): makes, changes and deletes users' passwords (KIP-554).

Behavior: as Kafka's. Clients send salted passwords; what is stored is made of them. What is valid
is done though other parts are refused. It counts here when it is answered, at other brokers within
a second; whoever has logged in by what was changed is disconnected. A name has at most 1,000 bytes
(Kafka has no limit).
"""

from typing import Any

from core.errors import Error, Refusal
from core.security.credentials import Deletion, Upsertion
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.handlers.describe_user_scram_credentials import MECHANISM_TYPES
from gateway.kafka.unavailable import CHANGE_REFUSED

Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
(_ALTER,) = REQUIREMENTS["AlterUserScramCredentials"]


def _unavailable(
    request: AlterUserScramCredentialsRequest, ctx: RequestContext
) -> AlterUserScramCredentialsResponse:
    return _refused(request, CHANGE_REFUSED)


def _refused(
    request: AlterUserScramCredentialsRequest, refusal: Refusal
) -> AlterUserScramCredentialsResponse:
    names = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return AlterUserScramCredentialsResponse(results=[_result(name, refusal) for name in names])


@api(51, versions=range(1), unavailable=_unavailable)
async def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, ctx: RequestContext
) -> AlterUserScramCredentialsResponse:
    """Alter the users named, each of them once."""
    if not ctx.may(_ALTER):
        return _refused(request, Refusal(Error.CLUSTER_AUTHORIZATION_FAILED))
    deletions = [
        Deletion(each.name, MECHANISM_TYPES.get(each.mechanism)) for each in request.deletions
    ]
    upsertions = [
        Upsertion(
            each.name,
            MECHANISM_TYPES.get(each.mechanism),
            each.iterations,
            bytes(each.salt),
            bytes(each.salted_password),
        )
        for each in request.upsertions
    ]
    answers = await ctx.users.alter(deletions, upsertions, principal=ctx.principal, peer=ctx.peer)
    return AlterUserScramCredentialsResponse(
        results=[_result(name, refusal) for name, refusal in answers.items()]
    )


def _result(name: str, refusal: Refusal | None) -> Any:
    return Result(
        user=name,
        error_code=kafka_code(refusal.error) if refusal else kafka_code(Error.NONE),
        error_message=refusal.message if refusal else None,
    )

"""DescribeUserScramCredentials (key 50): which users there are, with which mechanisms (KIP-554).

Behavior: read from the database at each request. No secret is told, as in Kafka.
"""

from collections.abc import Sequence
from typing import Any, Final

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from core.security.verifier import ScramMechanism, Verifier
from gateway.kafka.api import api
from gateway.kafka.codec import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import kafka_code
from gateway.kafka.unavailable import TIMED_OUT

Result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult

MECHANISM_TYPES: Final = {1: ScramMechanism.SHA_256, 2: ScramMechanism.SHA_512}
"""Kafka's numbers (org.apache.kafka.clients.admin.ScramMechanism)."""
_TYPES: Final = {mechanism: number for number, mechanism in MECHANISM_TYPES.items()}
(_DESCRIBE,) = REQUIREMENTS["DescribeUserScramCredentials"]


def _unavailable(
    request: DescribeUserScramCredentialsRequest, ctx: RequestContext
) -> DescribeUserScramCredentialsResponse:
    return _refused(TIMED_OUT)


def _refused(refusal: Refusal) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(
        error_code=kafka_code(refusal.error), error_message=refusal.message, results=[]
    )


@api(50, versions=range(1), unavailable=_unavailable)
async def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, ctx: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Describe the users asked for, or all."""
    if not ctx.may(_DESCRIBE):
        return _refused(Refusal(Error.CLUSTER_AUTHORIZATION_FAILED))
    names = None if request.users is None else [each.name for each in request.users]
    found = await ctx.users.describe(names)
    return DescribeUserScramCredentialsResponse(
        error_code=kafka_code(Error.NONE),
        error_message="",
        results=[_result(name, each) for name, each in found.items()],
    )


def _result(name: str, found: Sequence[Verifier] | Refusal) -> Any:
    if isinstance(found, Refusal):
        return Result(
            user=name,
            error_code=kafka_code(found.error),
            error_message=found.message,
            credential_infos=[],
        )
    infos = [
        Result.CredentialInfo(mechanism=_TYPES[each.mechanism], iterations=each.iterations)
        for each in found
    ]
    return Result(
        user=name, error_code=kafka_code(Error.NONE), error_message="", credential_infos=infos
    )

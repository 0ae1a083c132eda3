"""ApiVersions (key 18): which APIs and versions this broker serves; the first request of a client.

Versions: v1 adds the throttle time; v3 is flexible and names the client's software (KIP-511); v4
lets features start at level 0, which older clients are not told of (KIP-1022). The response header
is always v0. An unknown version is answered in v0 with UNSUPPORTED_VERSION and the range of
ApiVersions alone (`ApiVersionsRequest.getErrorResponse`), so that the client can ask again.
"""

from typing import Final

from core.errors import Error
from gateway.kafka.api import REGISTRY, Api, api
from gateway.kafka.codec import ApiVersionsRequest, ApiVersionsResponse
from gateway.kafka.context import ClientSoftware, RequestContext
from gateway.kafka.errors import kafka_code

_VERSIONS = range(5)

# What this broker does, whatever it is told: the level is both supported and finalized.
FEATURES: Final = {"group.version": 1, "transaction.version": 2}
_FEATURES_EPOCH: Final = 1
_SUPPORTED: Final = [
    ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=0, max_version=level)
    for name, level in FEATURES.items()
]
_FINALIZED: Final = [
    ApiVersionsResponse.FinalizedFeatureKey(
        name=name, max_version_level=level, min_version_level=level
    )
    for name, level in FEATURES.items()
]


def _entry(key: int, versions: range) -> ApiVersionsResponse.ApiVersion:
    return ApiVersionsResponse.ApiVersion(
        api_key=key, min_version=versions[0], max_version=versions[-1]
    )


def _unsupported() -> ApiVersionsResponse:
    return ApiVersionsResponse(
        error_code=kafka_code(Error.UNSUPPORTED_VERSION), api_keys=[_entry(18, _VERSIONS)]
    )


def _entries(apis: tuple[Api, ...]) -> list[ApiVersionsResponse.ApiVersion]:
    return [_entry(served.key, served.advertised) for served in apis if served.advertised]


@api(18, versions=_VERSIONS, unsupported=_unsupported)
async def api_versions(request: ApiVersionsRequest, ctx: RequestContext) -> ApiVersionsResponse:
    """List the registry; INVALID_REQUEST for a malformed software name (v3 and later)."""
    if ctx.api_version >= 3:
        software = ClientSoftware(request.client_software_name, request.client_software_version)
        if not software.is_valid:
            return ApiVersionsResponse(error_code=kafka_code(Error.INVALID_REQUEST))
    if ctx.login is not None:
        ctx.login.told_versions()
    return ApiVersionsResponse(
        api_keys=_entries(REGISTRY.table()),
        supported_features=_SUPPORTED if ctx.api_version >= 4 else [],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=_FINALIZED,
    )

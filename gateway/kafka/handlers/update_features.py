"""UpdateFeatures (key 57): features are what this broker does, so their levels stay as they are.

Behavior: the level a feature has already is no error; any other one is INVALID_UPDATE_VERSION for
the whole request, in Kafka's words where it would refuse it as well (FeatureControlManager).

Versions: v1 names the kind of change and may only ask; v2 leaves out the results of each feature.
"""

from typing import Any, Final

from core.errors import Error, Refusal
from core.security.operations import REQUIREMENTS
from gateway.kafka.api import api
from gateway.kafka.codec import UpdateFeaturesRequest, UpdateFeaturesResponse
from gateway.kafka.context import RequestContext
from gateway.kafka.errors import NO_ERROR, kafka_code
from gateway.kafka.handlers.api_versions import FEATURES

_Result = UpdateFeaturesResponse.UpdatableFeatureResult
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
(_ALTER,) = REQUIREMENTS["UpdateFeatures"]
_FIRST_VERSION_WITH_KIND: Final = 1
_NONE_DONE: Final = "The update failed for all features since the following feature had an error: "


@api(57, versions=range(3))
async def update_features(
    request: UpdateFeaturesRequest, ctx: RequestContext
) -> UpdateFeaturesResponse:
    """Refuse what would change anything."""
    if not ctx.may(_ALTER):
        return _refused(Refusal(Error.CLUSTER_AUTHORIZATION_FAILED))
    for update in request.feature_updates:
        if reason := _why_not(update, ctx.cluster.broker_id, _kind(update, ctx)):
            return _refused(Refusal(Error.INVALID_UPDATE_VERSION, reason))
    return UpdateFeaturesResponse(
        error_code=0,
        error_message=None,
        results=[
            _Result(feature=update.feature, error_code=0, error_message=NO_ERROR)
            for update in request.feature_updates
        ],
    )


def _kind(update: Any, ctx: RequestContext) -> int:
    if ctx.api_version >= _FIRST_VERSION_WITH_KIND:
        kind: int = update.upgrade_type
        return kind
    return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE


def _why_not(update: Any, broker_id: int, kind: int) -> str | None:
    level, current = update.max_version_level, FEATURES.get(update.feature, 0)
    is_known = update.feature in FEATURES
    if kind not in {_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE}:
        reason = "The controller does not support the given upgrade type."
    elif level < 0:
        reason = "A feature version cannot be less than 0."
    elif not is_known and level == 0:
        reason = f"Feature {update.feature} not found."
    elif not is_known:
        reason = f"Broker {broker_id} does not support this feature."
    elif level > current:
        reason = f"Broker {broker_id} only supports versions 0-{current}"
    elif level < current and kind == _UPGRADE:
        reason = (
            "Can't downgrade the version of this feature without setting the upgrade type to either"
            " safe or unsafe downgrade."
        )
    elif level < current:
        reason = f"Penstock always works at version {current}."
    else:
        return None
    return f"{_NONE_DONE}Invalid update version {level} for feature {update.feature}. {reason}"


def _refused(refusal: Refusal) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(
        error_code=kafka_code(refusal.error), error_message=refusal.message, results=[]
    )

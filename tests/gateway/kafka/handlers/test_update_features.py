"""UpdateFeatures: nothing can be changed, and what is asked for already is so."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.kafka.codec import ApiVersionsRequest, UpdateFeaturesRequest
from tests.gateway.kafka.handlers.conftest import Broker
from tests.kafka_codes import Code

VERSIONS = range(3)
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
PREFIX = "The update failed for all features since the following feature had an error: "


async def ask(
    broker: Broker, version: int, *updates: tuple[str, int], kind: int = UPGRADE, **fields: Any
) -> Any:
    how = {"upgrade_type": kind} if version else {"allow_downgrade": kind != UPGRADE}
    wanted = [
        UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, **how)
        for name, level in updates
    ]
    request = UpdateFeaturesRequest(timeout_ms=1000, feature_updates=wanted, **fields)
    return await broker.ask(request, version)


@pytest.mark.parametrize("kind", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
@pytest.mark.parametrize("version", VERSIONS)
async def test_update_to_the_current_level_succeeds(
    broker: Broker, version: int, kind: int
) -> None:
    both = ("transaction.version", 2), ("group.version", 1)
    answer = await ask(broker, version, *both, kind=kind)
    assert (answer.error_code, answer.error_message) == (Code.NONE, None)
    if version < 2:
        told = [(each.feature, each.error_code, each.error_message) for each in answer.results]
        assert told == [(name, Code.NONE, "NONE") for name, _ in both]
    assert (await ask(broker, version)).error_code == Code.NONE


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "level", "kind", "reason"),
    [
        ("transaction.version", 3, UPGRADE, "Broker 1 only supports versions 0-2"),
        ("group.version", 2, UPGRADE, "Broker 1 only supports versions 0-1"),
        ("transaction.version", -1, UPGRADE, "A feature version cannot be less than 0."),
        ("metadata.version", 27, UPGRADE, "Broker 1 does not support this feature."),
        ("metadata.version", 0, SAFE_DOWNGRADE, "Feature metadata.version not found."),
        (
            "transaction.version",
            1,
            UPGRADE,
            "Can't downgrade the version of this feature without setting the upgrade type to either"
            " safe or unsafe downgrade.",
        ),
        ("transaction.version", 0, SAFE_DOWNGRADE, "Penstock always works at version 2."),
        ("transaction.version", 1, UNSAFE_DOWNGRADE, "Penstock always works at version 2."),
    ],
)
async def test_another_level_is_refused(
    broker: Broker, version: int, name: str, level: int, kind: int, reason: str
) -> None:
    answer = await ask(broker, version, ("group.version", 1), (name, level), kind=kind)
    assert answer.error_code == Code.INVALID_UPDATE_VERSION
    assert (
        answer.error_message
        == f"{PREFIX}Invalid update version {level} for feature {name}. {reason}"
    )
    assert not (answer.results if version < 2 else [])
    features = await broker.ask(api_versions(), 3)
    assert {each.name: each.max_version_level for each in features.finalized_features} == {
        "group.version": 1,
        "transaction.version": 2,
    }


def api_versions() -> Any:
    return ApiVersionsRequest(client_software_name="me", client_software_version="1")


@pytest.mark.parametrize("kind", [0, 9])
@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_unknown_upgrade_type_is_refused(broker: Broker, version: int, kind: int) -> None:
    answer = await ask(broker, version, ("transaction.version", 2), kind=kind)
    assert answer.error_code == Code.INVALID_UPDATE_VERSION
    assert "does not support the given upgrade type" in answer.error_message


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_asking_only(broker: Broker, version: int) -> None:
    for level, error in ((2, Code.NONE), (1, Code.INVALID_UPDATE_VERSION)):
        answer = await ask(
            broker, version, ("transaction.version", level), kind=2, validate_only=True
        )
        assert answer.error_code == error

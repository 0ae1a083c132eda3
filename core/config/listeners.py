"""A listener's own values: `listener.name.<listener>.<property>`, or with a mechanism of SASL in
front of the property, all in lower case (Kafka's ListenerName.configPrefix).

Knows which properties a listener may have for itself. They are read when the broker starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from core.config.definitions import BROKER_CONFIGS
from core.config.types import ConfigValue, parse

OWN: Final = frozenset(
    {
        "ssl.client.auth",
        "ssl.principal.mapping.rules",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
"""Properties that a listener may have for itself."""

_OF_A_LISTENER: Final = re.compile(r"listener\.name\.(?P<listener>[^.]+)\.(?P<property>.+)")


def listener_and_property(name: str) -> tuple[str, str] | None:
    """Whose own value of what a property is; None where it is no listener's, or not to be had."""
    found = _OF_A_LISTENER.fullmatch(name)
    if found is None or found["property"] not in OWN:
        return None
    return found["listener"], found["property"]


def own_value(name: str, listener: str, broker: Mapping[str, str]) -> ConfigValue | None:
    """A listener's own typed value of a property; None where it has none. broker: values by name.
    Raises ConfigError for text that should have been refused."""
    key = f"listener.name.{listener.lower()}.{name}"
    return parse(key, broker[key], BROKER_CONFIGS[name]) if key in broker else None

"""A listener's own values: `listener.name.<listener>.<property>`, or with a mechanism of SASL in
front of the property, all in lower case (Kafka's ListenerName.configPrefix, and
ListenerName.saslMechanismConfigPrefix).

Knows which properties a listener may have for itself. They are read when the broker starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from core.config.definitions import BROKER_CONFIGS
from core.config.types import ConfigValue, parse
from core.config.values import broker_value

BEARER: Final = "sasl.oauthbearer."
_JWKS: Final = "sasl.oauthbearer.jwks.endpoint."
OWN: Final = frozenset(
    {
        "penstock.ssl.crl.location",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "ssl.client.auth",
        "ssl.principal.mapping.rules",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
"""Properties that a listener may have for itself."""

_OF_A_LISTENER: Final = re.compile(
    rf"listener\.name\.(?P<listener>[^.]+)\.(?:oauthbearer\.(?={re.escape(BEARER)}))?(?P<property>.+)"
)


def listener_and_property(name: str) -> tuple[str, str] | None:
    """Whose own value of what a property is; None where it is no listener's, or not to be had."""
    found = _OF_A_LISTENER.fullmatch(name)
    if found is None or found["property"] not in OWN:
        return None
    return found["listener"], found["property"]


def own_value(name: str, listener: str, broker: Mapping[str, str]) -> ConfigValue | None:
    """A listener's own typed value of a property; None where it has none. broker: values by name.
    Raises ConfigError for text that should have been refused."""
    prefix = f"listener.name.{listener.lower()}."
    for key in (f"{prefix}oauthbearer.{name}", f"{prefix}{name}"):
        if key in broker and listener_and_property(key):
            return parse(key, broker[key], BROKER_CONFIGS[name])
    return None


def listener_value(name: str, listener: str, broker: Mapping[str, str]) -> ConfigValue | None:
    """The typed value that holds for a listener: its own, else the broker's."""
    own = own_value(name, listener, broker)
    return broker_value(name, broker) if own is None else own


# --- OAUTHBEARER ---


@dataclass(frozen=True, slots=True)
class BearerSettings:
    """What tokens are held against (KIP-768), and how keys are looked for. Times in ms, or s."""

    url: str
    issuer: str
    audiences: tuple[str, ...]
    name_claim: str
    scope_claim: str
    skew_s: int
    refresh_ms: int
    backoff_ms: int
    backoff_max_ms: int


def missing_for_bearer(listener: str, broker: Mapping[str, str]) -> list[str]:
    """The properties without which a listener cannot offer OAUTHBEARER: with them unset, tokens of
    anybody would be good (CVE-2026-33557)."""
    needed = (f"{_JWKS}url", f"{BEARER}expected.issuer", f"{BEARER}expected.audience")
    return [name for name in needed if not listener_value(name, listener, broker)]


def bearer_settings(listener: str, broker: Mapping[str, str]) -> BearerSettings | None:
    """A listener's; None where something is missing."""
    if missing_for_bearer(listener, broker):
        return None

    def text(name: str) -> str:
        return str(listener_value(BEARER + name, listener, broker))

    audiences = listener_value(f"{BEARER}expected.audience", listener, broker)
    assert isinstance(audiences, tuple), "it is a list"
    return BearerSettings(
        url=text("jwks.endpoint.url"),
        issuer=text("expected.issuer"),
        audiences=audiences,
        name_claim=text("sub.claim.name"),
        scope_claim=text("scope.claim.name"),
        skew_s=int(text("clock.skew.seconds")),
        refresh_ms=int(text("jwks.endpoint.refresh.ms")),
        backoff_ms=int(text("jwks.endpoint.retry.backoff.ms")),
        backoff_max_ms=int(text("jwks.endpoint.retry.backoff.max.ms")),
    )

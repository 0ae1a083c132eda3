"""Listeners as Kafka's properties name them: `listeners`, `advertised.listeners` and
`listener.security.protocol.map`.

Reads text into values, or says in one sentence what is wrong, by the rules of
SocketServerConfigs.listenerListToEndPoints and KafkaConfig.validateValues. Knows no socket, and no
other setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from core.config.types import ConfigError


class SecurityProtocol(Enum):
    """How bytes travel on a listener, and whether clients say who they are (Kafka's)."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def is_tls(self) -> bool:
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}

    @property
    def is_sasl(self) -> bool:
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}


class ClientAuth(Enum):
    """Whether clients show a certificate where TLS is spoken (`ssl.client.auth`)."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


DEFAULT_PROTOCOL_MAP: Final = (
    "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
)


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """NAME://HOST:PORT. An empty host means every address of the machine; port 0 any free one."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class NamedListener:
    """One of a broker's listeners. advertised: what clients are told; None: where it listens."""

    listen: ListenerAddress
    advertised: ListenerAddress | None
    protocol: SecurityProtocol

    @property
    def name(self) -> str:
        return self.listen.name


_ADDRESS: Final = re.compile(
    r"(?P<name>[a-zA-Z0-9_.-]+)://(?P<host>\[[0-9a-fA-F:%._a-z]+\]|[^\[\]:/,]*):(?P<port>[0-9]{1,5})"
)


def read_addresses(text: str, what: str) -> tuple[ListenerAddress, ...]:
    """Those of a list. what: the property, for the sentence. Raises ConfigError."""
    addresses = []
    for each in filter(None, (part.strip() for part in text.split(","))):
        found = _ADDRESS.fullmatch(each)
        if found is None or int(found["port"]) > 65535:
            raise ConfigError(
                f"{what}: '{each}' is not NAME://HOST:PORT; write for example "
                "SASL_SSL://0.0.0.0:9093"
            )
        host = found["host"].strip("[]")
        addresses.append(ListenerAddress(found["name"].upper(), host, int(found["port"])))
    names = [each.name for each in addresses]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{what}: each listener must have a different name; {name} is twice")
    return tuple(addresses)


def read_protocol_map(text: str) -> Mapping[str, SecurityProtocol]:
    """Protocols by listeners' names. Raises ConfigError."""
    protocols = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        name, _, protocol = each.rpartition(":")
        try:
            protocols[name.strip().upper()] = SecurityProtocol(protocol.strip().upper())
        except ValueError:
            known = ", ".join(one.value for one in SecurityProtocol)
            raise ConfigError(
                f"listener.security.protocol.map: '{each}' is not NAME:PROTOCOL with one of {known}"
            ) from None
    return protocols


def read_listeners(
    listeners: str, advertised: str | None, protocol_map: str | None
) -> tuple[NamedListener, ...]:
    """A broker's listeners, in the order of `listeners`. Raises ConfigError."""
    protocols = read_protocol_map(protocol_map or DEFAULT_PROTOCOL_MAP)
    addresses = read_addresses(listeners, "listeners")
    told = {each.name: each for each in read_addresses(advertised or "", "advertised.listeners")}
    if not addresses:
        raise ConfigError("listeners: there is none; write for example SASL_SSL://0.0.0.0:9093")
    if unknown := sorted(told.keys() - {each.name for each in addresses}):
        raise ConfigError(
            f"advertised.listeners: {', '.join(unknown)} is not among the names in listeners"
        )
    for each in addresses:
        if each.name not in protocols:
            raise ConfigError(
                f"listeners: no security protocol is defined for listener {each.name}; "
                "name one in listener.security.protocol.map"
            )
    return tuple(
        NamedListener(each, told.get(each.name), protocols[each.name]) for each in addresses
    )


def named_listeners(broker: Mapping[str, str]) -> tuple[NamedListener, ...]:
    """Those that a broker's properties name, if they do. Raises ConfigError."""
    listeners = broker.get("listeners")
    if listeners is None:
        return ()
    return read_listeners(
        listeners, broker.get("advertised.listeners"), broker.get("listener.security.protocol.map")
    )

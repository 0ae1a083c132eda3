"""Who asks. Does not know how it was proved, nor what it may do."""

import ipaddress
from dataclasses import dataclass, field
from typing import Final

USER: Final = "User"
"""The kind of whoever logs in (KafkaPrincipal.USER_TYPE)."""
ROLE: Final = "Role"
"""The kind of roles of the database, whose applications call functions in SQL."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Kafka's KafkaPrincipal. kind: USER or ROLE.

    is_by_token: whether it has come by a delegation token; it is the same principal all the same.
    """

    name: str
    kind: str = USER
    is_by_token: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def as_owner(self) -> str:
        """As what belongs to somebody has it; "" where nobody was asked who he is."""
        return "" if self == ANONYMOUS else str(self)


ANONYMOUS: Final = Principal("ANONYMOUS")
"""Whoever comes by a listener that asks nobody (KafkaPrincipal.ANONYMOUS)."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and from where.

    host: an address as Java writes it; ACLs are compared with it. proxy: who passes on what
    `principal` asks, if it has come by a proxy.
    """

    principal: Principal
    host: str
    proxy: Principal | None = None


def java_host(peer: str) -> str:
    """The host of a client's address, HOST:PORT, as Java writes it (`InetAddress`)."""
    host = peer.rpartition(":")[0].strip("[]") or peer
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))

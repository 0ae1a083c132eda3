"""How many connections an address may have: `max.connections.per.ip.overrides`."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address

from core.quota.rules import read_address


def read_connections_per_ip(text: str) -> Mapping[IPv4Address | IPv6Address, int]:
    """Addresses and numbers of "10.0.0.1:5,0:0:0:0:0:0:0:1:9". Raises ValueError with a reason.

    Kafka looks up names of hosts, too.
    """
    found: dict[IPv4Address | IPv6Address, int] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        host, _, count = part.rpartition(":")
        address = read_address(host.strip().strip("[]"))
        if address is None:
            raise ValueError(f"{host or part} is not an address")
        if not count.strip().isdecimal():
            raise ValueError(f"{count} is not a number of connections")
        found[address] = int(count)
    return found

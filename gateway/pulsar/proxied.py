"""Clients that come by another address than the broker's: `proxy_to_broker_url` of CONNECT.

A client that LOOKUP told to go on by its own address (`proxy_through_service_url`, which is said
while no other listens) names the broker that it wants to reach there, as LOOKUP named it. Pulsar's
proxy takes that as an order, and passes bytes on; its broker does not look at it, and Pulsar's
proxy does not pass it to brokers. Here it is looked at, but nothing is passed on: no client is told
to come by a broker that is not meant. But behind what maps ports or balances load it may still be
another one that answers, once there are several. That connection must not stay: C++'s clients (and
Python's and Node's) keep it under the name of the broker that they wanted, and would use it again
whenever LOOKUP names that one. Refused, they look the topic up again, and are told where to go.

Sources: ProxyConnection.completeConnect, ServerCnx.handleConnect, ConnectionPool (Java and C++).
"""

from __future__ import annotations

import contextlib
from ipaddress import ip_address
from typing import TYPE_CHECKING

from gateway.pulsar.session import LISTENER

if TYPE_CHECKING:
    from core.types import Endpoint, LiveBroker
    from gateway.runtime.cluster.membership import Cluster


def named_elsewhere(proxy_to_broker_url: str, cluster: Cluster) -> LiveBroker | None:
    """The live broker that a client wants to reach, if that is another one than this. An address
    that no live broker has is none: LOOKUP will not tell it, so nothing comes of it."""
    named = _normal(proxy_to_broker_url)
    if named in _addresses(cluster.this):
        return None
    return next((each for each in cluster.live if named in _addresses(each)), None)


def _addresses(broker: LiveBroker) -> set[str]:
    endpoint: Endpoint | None = broker.at(LISTENER)
    return set() if endpoint is None else {_normal(f"{endpoint.host}:{endpoint.port}")}


def _normal(address: str) -> str:
    """HOST:PORT, however it is written: some clients send a URL, Java no brackets around IPv6."""
    host, _, port = address.rpartition("://")[2].rstrip("/").rpartition(":")
    host = host.strip("[]").lower()
    with contextlib.suppress(ValueError):
        host = ip_address(host).compressed
    return f"{host}:{port}"

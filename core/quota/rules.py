"""Which quota holds for a client, as Kafka decides (ClientQuotaManager.DefaultQuotaCallback).

The quota of the most exact entity counts, for each key by itself, in eight levels. Does not know
how a rate is kept to (`bucket.py`), nor how quotas are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from core.quota.entities import DEFAULT, QuotaEntity, QuotaKey, Quotas


@dataclass(frozen=True, slots=True)
class SharedBy:
    """All connections that use up one rate together: of a user, a client id, or of both.

    A default is a rate for each: whom it holds for does not share it with others.
    """

    key: QuotaKey
    user: str | None
    client_id: str | None


@dataclass(frozen=True, slots=True)
class Limit:
    """rate: of `shared_by.key`, per second."""

    rate: float
    shared_by: SharedBy


class QuotaRules:
    """All quotas, as a value."""

    __slots__ = ("_by_entity", "_by_ip", "_default_by_ip")

    def __init__(self, quotas: Mapping[QuotaEntity, Quotas]) -> None:
        self._by_entity = dict(quotas)
        self._by_ip: dict[IPv4Address | IPv6Address, float] = {}
        self._default_by_ip: float | None = None
        for entity, values in quotas.items():
            rate = values.get(QuotaKey.CONNECTION_CREATION_RATE)
            if entity.ip is None or rate is None:
                continue
            if entity.ip == DEFAULT:
                self._default_by_ip = rate
            elif (address := read_address(entity.ip)) is not None:
                self._by_ip[address] = rate

    def __iter__(self) -> Iterator[tuple[QuotaEntity, Quotas]]:
        return iter(self._by_entity.items())

    @property
    def limits_clients(self) -> bool:
        """Whether there is a quota of a user or a client id."""
        return any(entity.ip is None for entity in self._by_entity)

    def find(self, key: QuotaKey, user: str, client_id: str | None) -> Limit | None:
        """What holds for a client; None without a limit. client_id: None where its protocol has
        none (Pulsar's): then only quotas of users hold."""
        if client_id is None:
            of_user = SharedBy(key, user, None)
            rate = self._rate(QuotaEntity(user), key) or self._rate(QuotaEntity(DEFAULT), key)
            return None if rate is None else Limit(rate, of_user)
        of_both = SharedBy(key, user, client_id)
        of_user = SharedBy(key, user, None)
        of_client = SharedBy(key, None, client_id)
        for entity, shared_by in (
            (QuotaEntity(user, client_id), of_both),
            (QuotaEntity(user, DEFAULT), of_both),
            (QuotaEntity(user), of_user),
            (QuotaEntity(DEFAULT, client_id), of_both),
            (QuotaEntity(DEFAULT, DEFAULT), of_both),
            (QuotaEntity(DEFAULT), of_user),
            (QuotaEntity(client_id=client_id), of_client),
            (QuotaEntity(client_id=DEFAULT), of_client),
        ):
            rate = self._rate(entity, key)
            if rate is not None:
                return Limit(rate, shared_by)
        return None

    def _rate(self, entity: QuotaEntity, key: QuotaKey) -> float | None:
        return self._by_entity.get(entity, {}).get(key)

    def connection_rate(self, host: str) -> float | None:
        """Connections per second that an address may make; None without a limit (KIP-612)."""
        if not self._by_ip:
            return self._default_by_ip
        address = read_address(host)
        return (
            self._default_by_ip
            if address is None
            else self._by_ip.get(address, self._default_by_ip)
        )


def read_address(text: str) -> IPv4Address | IPv6Address | None:
    """One of IPv4 that is written as one of IPv6 is the same address, as in Java."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address

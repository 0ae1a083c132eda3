"""Which quota holds for a client: Kafka's eight levels, and addresses."""

from __future__ import annotations

import pytest

from core.quota.entities import DEFAULT, QuotaEntity, QuotaKey
from core.quota.rules import Limit, QuotaRules, SharedBy

RATE = QuotaKey.PRODUCER_BYTE_RATE
CONNECTIONS = QuotaKey.CONNECTION_CREATION_RATE

# From the most exact on, each with who shares the rate (ClientQuotaManager's order and tags).
LEVELS = [
    (QuotaEntity("alice", "app"), ("alice", "app")),
    (QuotaEntity("alice", DEFAULT), ("alice", "app")),
    (QuotaEntity("alice"), ("alice", None)),
    (QuotaEntity(DEFAULT, "app"), ("alice", "app")),
    (QuotaEntity(DEFAULT, DEFAULT), ("alice", "app")),
    (QuotaEntity(DEFAULT), ("alice", None)),
    (QuotaEntity(client_id="app"), (None, "app")),
    (QuotaEntity(client_id=DEFAULT), (None, "app")),
]


@pytest.mark.parametrize("level", range(len(LEVELS)))
def test_the_most_exact_level_counts(level: int) -> None:
    quotas = {entity: {RATE: 10.0 + n} for n, (entity, _) in enumerate(LEVELS) if n >= level}
    quotas[QuotaEntity("bob", "app")] = {RATE: 1.0}
    found = QuotaRules(quotas).find(RATE, "alice", "app")
    assert found == Limit(10.0 + level, SharedBy(RATE, *LEVELS[level][1]))


def test_each_key_has_its_own_level() -> None:
    other = QuotaKey.CONSUMER_BYTE_RATE
    rules = QuotaRules({QuotaEntity("alice"): {RATE: 1.0}, QuotaEntity(DEFAULT): {other: 2.0}})
    assert rules.find(RATE, "alice", "app") == Limit(1.0, SharedBy(RATE, "alice", None))
    assert rules.find(other, "alice", "app") == Limit(2.0, SharedBy(other, "alice", None))
    assert rules.find(QuotaKey.REQUEST_PERCENTAGE, "alice", "app") is None
    assert rules.find(RATE, "bob", "app") is None


def test_who_sends_no_client_id_has_the_default() -> None:
    rules = QuotaRules({QuotaEntity(client_id=DEFAULT): {RATE: 1.0}})
    assert rules.find(RATE, "ANONYMOUS", "") == Limit(1.0, SharedBy(RATE, None, ""))


def test_a_protocol_without_client_ids_knows_users_only() -> None:
    both, default = QuotaEntity("alice", DEFAULT), QuotaEntity(client_id=DEFAULT)
    rules = QuotaRules({both: {RATE: 1.0}, default: {RATE: 2.0}, QuotaEntity("bob"): {RATE: 3.0}})
    assert rules.find(RATE, "alice", None) is None
    assert rules.find(RATE, "bob", None) == Limit(3.0, SharedBy(RATE, "bob", None))
    rules = QuotaRules({QuotaEntity(DEFAULT): {RATE: 4.0}})
    assert rules.find(RATE, "alice", None) == Limit(4.0, SharedBy(RATE, "alice", None))


def test_addresses() -> None:
    rules = QuotaRules(
        {
            QuotaEntity(ip=DEFAULT): {CONNECTIONS: 5.0},
            QuotaEntity(ip="10.0.0.1"): {CONNECTIONS: 1.0},
            QuotaEntity(ip="0:0:0:0:0:0:0:1"): {CONNECTIONS: 2.0},
        }
    )
    assert not rules.limits_clients
    assert rules.connection_rate("10.0.0.1") == 1.0
    assert rules.connection_rate("::ffff:10.0.0.1") == 1.0
    assert rules.connection_rate("::1") == 2.0
    assert rules.connection_rate("10.0.0.2") == 5.0
    assert rules.connection_rate("unix") == 5.0
    assert QuotaRules({}).connection_rate("10.0.0.1") is None

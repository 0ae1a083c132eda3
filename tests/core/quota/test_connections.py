"""`max.connections.per.ip.overrides`."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from core.config.definitions import BROKER_CONFIGS
from core.config.types import ConfigError, parse
from core.quota.connections import read_connections_per_ip

NAME = "max.connections.per.ip.overrides"


def test_addresses_and_numbers() -> None:
    assert read_connections_per_ip(" 10.0.0.1:5, ::1:0,[fe80::1]:7,") == {
        ip_address("10.0.0.1"): 5,
        ip_address("::1"): 0,
        ip_address("fe80::1"): 7,
    }
    assert read_connections_per_ip("") == {}


@pytest.mark.parametrize("text", ["nowhere:5", "10.0.0.1", "10.0.0.1:many", "10.0.0.1:-1"])
def test_what_cannot_be_set(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(NAME, text, BROKER_CONFIGS[NAME])

"""Listeners as Kafka's properties name them."""

import pytest

from core.config.types import ConfigError
from core.security.listeners import (
    ListenerAddress,
    NamedListener,
    SecurityProtocol,
    read_addresses,
    read_listeners,
    read_protocol_map,
)


def test_a_broker_with_one_listener_for_others_and_one_for_itself() -> None:
    found = read_listeners(
        "internal://127.0.0.1:9092, EXTERNAL://:9093",
        "EXTERNAL://kafka.example:443",
        "INTERNAL:PLAINTEXT,EXTERNAL:SASL_SSL",
    )
    assert found == (
        NamedListener(
            ListenerAddress("INTERNAL", "127.0.0.1", 9092), None, SecurityProtocol.PLAINTEXT
        ),
        NamedListener(
            ListenerAddress("EXTERNAL", "", 9093),
            ListenerAddress("EXTERNAL", "kafka.example", 443),
            SecurityProtocol.SASL_SSL,
        ),
    )


def test_names_of_protocols_need_no_map() -> None:
    for protocol in SecurityProtocol:
        [found] = read_listeners(f"{protocol.value}://[::1]:0", None, None)
        assert (found.protocol, found.listen.host, found.name) == (protocol, "::1", protocol.value)
        assert str(found.listen) == f"{protocol.value}://[::1]:0"
    assert {each for each in SecurityProtocol if each.is_sasl and each.is_tls} == {
        SecurityProtocol.SASL_SSL
    }


@pytest.mark.parametrize(
    ("listeners", "advertised", "protocols", "sentence"),
    [
        ("", None, None, "there is none"),
        ("localhost:9092", None, None, "'localhost:9092' is not NAME://HOST:PORT"),
        ("PLAINTEXT://h", None, None, "is not NAME://HOST:PORT"),
        ("PLAINTEXT://h:65536", None, None, "is not NAME://HOST:PORT"),
        ("PLAINTEXT://::1:9092", None, None, "is not NAME://HOST:PORT"),
        ("://h:1", None, None, "is not NAME://HOST:PORT"),
        ("A://h:1,a://h:2", None, "A:SSL", "A is twice"),
        ("OURS://h:1", None, None, "no security protocol is defined for listener OURS"),
        ("A://h:1", None, "A:TLS", "'A:TLS' is not NAME:PROTOCOL"),
        ("A://h:1", None, "A", "'A' is not NAME:PROTOCOL"),
        ("SSL://h:1", "PLAINTEXT://h:2", None, "PLAINTEXT is not among the names in listeners"),
        ("SSL://h:1", "SSL://h:2,SSL://h:3", None, "SSL is twice"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    listeners: str, advertised: str | None, protocols: str | None, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("://", "://")):
        read_listeners(listeners, advertised, protocols)


def test_maps_take_any_case_and_spaces() -> None:
    assert read_protocol_map(" a : ssl , B:SASL_PLAINTEXT,") == {
        "A": SecurityProtocol.SSL,
        "B": SecurityProtocol.SASL_PLAINTEXT,
    }
    assert read_addresses("a-b_c.1://h:1", "listeners") == (ListenerAddress("A-B_C.1", "h", 1),)

"""How a client is known to groups."""

import pytest

from gateway.kafka.context import shown_host


@pytest.mark.parametrize(
    ("peer", "shown"),
    [
        ("127.0.0.1:54321", "/127.0.0.1"),
        ("[::1]:54321", "/0:0:0:0:0:0:0:1"),  # java.net.Inet6Address leaves no zeros out
        ("[2001:db8::a:0]:1", "/2001:db8:0:0:0:0:a:0"),
        ("[::ffff:10.1.2.3]:1", "/10.1.2.3"),
        ("[fe80::1%eth0]:1", "/fe80:0:0:0:0:0:0:1"),
        ("?:0", "/?"),
    ],
)
def test_a_host_is_shown_as_kafka_does(peer: str, shown: str) -> None:
    assert shown_host(peer) == shown

"""The benchmark's Pulsar cases: they do what they measure, on a broker of this checkout."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import psycopg
import pytest

from bench.brokers import Broker, started_penstock
from bench.case import Skipped
from bench.clients import pulsar_unavailable
from bench.macro import pulsar
from bench.peer.pulsar import PulsarBroker
from tests.conftest import memory, open_directory

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    if reason := pulsar_unavailable():
        pytest.skip(reason)
    with (
        open_directory(memory()) as directory,
        started_penstock(directory / "data") as (started, _),
    ):
        yield started


def test_produced_messages_are_confirmed_and_counted(broker: Broker) -> None:
    figures = pulsar.produce(600, 4, 100, broker, batched=True)
    assert figures["mb_per_s"] > 0
    assert {"gateway_us_per_record", "postgres_us_per_record"} <= figures.keys()


def test_each_message_of_a_turn_is_acknowledged_in_the_database(broker: Broker) -> None:
    assert broker.database_url is not None
    with psycopg.connect(broker.database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE seen AS SELECT * FROM subscription WHERE false")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN INSERT INTO seen SELECT NEW.*; RETURN NULL; END'"
        )
        connection.execute(
            "CREATE TRIGGER noted AFTER UPDATE ON subscription FOR EACH ROW EXECUTE FUNCTION note()"
        )
        assert pulsar.acknowledge(120, broker, grouped=False)["acks_per_s"] > 0
        reached = connection.execute("SELECT max(mark_delete) FROM seen").fetchone()
        connection.execute("DROP TRIGGER noted ON subscription")
    assert reached == (140,)  # a sixth more come first


def test_a_broker_without_an_address_for_pulsar_is_left_out() -> None:
    with pytest.raises(Skipped):
        pulsar.address(Broker("kafka-sync", "127.0.0.1:9092"))


def test_topics_of_apache_pulsar_are_made_by_rest() -> None:
    calls: list[tuple[str, str, bytes]] = []

    class Rest(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            calls.append((self.command, self.path.rpartition("/default/")[2], body))
            self.send_response(409 if body == b"13" else 204)
            self.end_headers()

        do_DELETE = do_PUT

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Rest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        peer = PulsarBroker("pulsar-sync", f"127.0.0.1:{server.server_port}")
        with peer.topic(1) as plain, peer.topic(4) as partitioned:
            pass
        with pytest.raises(OSError, match="409"), peer.topic(13):
            pass
        server.shutdown()
    assert calls[:4] == [
        ("PUT", plain, b""),
        ("PUT", f"{partitioned}/partitions", b"4"),
        ("DELETE", f"{partitioned}/partitions?force=true", b""),
        ("DELETE", f"{plain}?force=true", b""),
    ]

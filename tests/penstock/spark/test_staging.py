"""Staging and publishing against gateways: what is cut off, refused or taken for another broker."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from penstock.connection import METADATA, metadata_request
from penstock.spark import staging, wire
from penstock.spark.columns import rows_of
from penstock.spark.options import SinkOptions, parse
from penstock.spark.staging import Cluster, SinkError, Staged, cluster_of
from penstock.spark.task import Encoder, stage
from tests.conftest import Gateway, StartGateway, free_port
from tests.entrance import MECHANISMS, PASSWORD, entrance, java_properties
from tests.faults.proxies import BrokerProxy, running


def make_topic(bootstrap: str, partitions: int = 3) -> str:
    name = f"staging-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(20)
    return name


def options(bootstrap: str, topic: str, **further: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery.timeout.ms": "30000"}
    return parse(given | further, is_stream=True)


def columns(numbers: range) -> Iterator[pa.RecordBatch]:
    """Values of a kilobyte, as Spark would give them."""
    for first in range(numbers.start, numbers.stop, 1000):
        part = range(first, min(first + 1000, numbers.stop))
        yield pa.record_batch({"value": [str(number).ljust(1000) for number in part]})


def numbers_in(bootstrap: str, topic: str) -> list[int]:
    """Everything that is visible, sorted."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, api_version=(2, 6))
    places = [TopicPartition(topic, each) for each in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(places)
    consumer.seek_to_beginning()
    total = sum(consumer.end_offsets(places).values())
    found: list[int] = []
    while len(found) < total:
        for records in consumer.poll(10_000).values():
            found += [int(record.value) for record in records]
    consumer.close()
    return sorted(found)


def tokens(*tasks: Staged) -> list[tuple[uuid.UUID, int]]:
    return [(task.token, task.batches) for task in tasks if task.token is not None]


def test_nothing_is_visible_before_it_is_published(gateway: Gateway) -> None:
    given = options(gateway.bootstrap, make_topic(gateway.bootstrap))
    cluster = cluster_of(given)
    assert given.topic is not None

    staged = stage(columns(range(5_000)), given, cluster)
    assert (staged.rows, numbers_in(gateway.bootstrap, given.topic)) == (5_000, [])

    first = staging.publish(cluster, "query", given.topic, 0, tokens(staged))
    second = staging.publish(cluster, "query", given.topic, 0, tokens(staged))
    assert (first.is_new, second.is_new) == (True, False)
    assert sum(partition.record_count for partition in first.partitions) == 5_000
    assert numbers_in(gateway.bootstrap, given.topic) == list(range(5_000))


def test_whether_it_is_published_can_be_asked(gateway: Gateway) -> None:
    """Asking changes nothing: the number can be published afterwards."""
    given = options(gateway.bootstrap, make_topic(gateway.bootstrap))
    cluster = cluster_of(given)
    assert given.topic is not None
    of = (cluster, "query", given.topic)
    for number in (0, 1):
        assert not staging.is_published(*of, number)
        staged = stage(columns(range(10)), given, cluster)
        assert staging.publish(*of, number, tokens(staged)).is_new
        assert staging.is_published(*of, number)
    assert [staging.is_published(*of, number) for number in range(3)] == [True, True, False]
    assert not staging.is_published(cluster, "another query", given.topic, 0)


def test_no_rows_are_no_token(gateway: Gateway) -> None:
    given = options(gateway.bootstrap, "not asked for")

    assert stage(columns(range(0)), given, cluster_of(given)) == Staged(None, 0, 0)


def test_connections_that_are_cut(start_gateway: StartGateway, database_url: str) -> None:
    """Requests and answers cut short anywhere: everything is staged once and published once."""
    seed = random.randrange(2**31)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with the failure
    port, behind = free_port(), free_port()
    start_gateway("--advertise", f"127.0.0.1:{port}", database_url=database_url, port=behind)
    proxy = BrokerProxy(port, [behind], seed)
    with running(proxy):
        topic = make_topic(f"127.0.0.1:{port}")
        given = options(f"127.0.0.1:{port}", topic)
        cluster = cluster_of(given)
        proxy.cut_share, proxy.cuts_max = 0.03, 10
        tasks = [stage(columns(range(at, at + 5_000)), given, cluster) for at in (0, 5_000)]
        proxy.cut_share, proxy.cuts_max = 0.7, proxy.cuts + 5
        for batch_id, task in enumerate(tasks):
            staging.publish(cluster, "query", "", batch_id, tokens(task))
        cuts, proxy.cut_share = proxy.cuts, 0.0
        assert cuts > 2
        assert numbers_in(f"127.0.0.1:{port}", topic) == list(range(10_000))


def test_a_gateway_that_goes_and_comes_back(start_gateway: StartGateway, database_url: str) -> None:
    first = start_gateway(database_url=database_url)
    given = options(first.bootstrap, make_topic(first.bootstrap))
    assert given.topic is not None
    cluster = cluster_of(given)

    def interrupted() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(columns(range(30_000))):
            if number == 20:
                first.kill()
                timer.start()
            yield batch

    timer = threading.Timer(
        1.0, lambda: start_gateway(database_url=database_url, port=first.port, wait=False)
    )
    staged = stage(interrupted(), given, cluster)
    timer.join()

    staging.publish(cluster, "query", "", 0, tokens(staged))
    assert numbers_in(first.bootstrap, given.topic) == list(range(30_000))


def test_a_token_that_is_lost_fails_the_task(gateway: Gateway) -> None:
    given = options(gateway.bootstrap, make_topic(gateway.bootstrap))
    cluster = cluster_of(given)

    stager = staging.Stager(cluster)
    rows = list(columns(range(10_000)))
    encoder = Encoder(given, cluster, stager)
    for batch in rows[:5]:
        encoder.write(rows_of(batch, given.topic, include_headers=True))
    stager.flush()
    # What a crash of the database does to what it has not on disk.
    staging.drop(cluster, [stager.token])

    with pytest.raises(
        SinkError, match=r"The cluster has lost .* batches that this task had staged"
    ):
        for batch in rows[5:]:
            encoder.write(rows_of(batch, given.topic, include_headers=True))
        stager.finish()
    stager.close()


def test_nobody_listens() -> None:
    given = options(f"127.0.0.1:{free_port()}", "t", **{"delivery.timeout.ms": "500"})

    with pytest.raises(SinkError, match=r"The cluster cannot be reached: cannot connect to 127"):
        stage(columns(range(1)), given, cluster_of(given))
    with pytest.raises(SinkError, match="Whether the batch was published is not known"):
        staging.publish(cluster_of(given), "query", "", 0, [(uuid.uuid4(), 1)])


def test_what_came_of_a_publication_is_said_only_where_it_is_known(
    start_gateway: StartGateway, database_url: str
) -> None:
    gateway = start_gateway(database_url=database_url)
    given = options(gateway.bootstrap, make_topic(gateway.bootstrap))
    cluster = cluster_of(given)
    assert given.topic is not None

    staged = stage(columns(range(10)), given, cluster)
    with pytest.raises(SinkError, match=r"^The batch was not published\. RESOURCE_NOT_FOUND: "):
        staging.publish(cluster, "query", "", 0, [*tokens(staged), (uuid.uuid4(), 1)])
    assert staging.publish(cluster, "query", "", 0, tokens(staged)).is_new
    # The answer is lost, say, and the database fails in a way that nobody has thought of.
    with psycopg.connect(database_url, autocommit=True) as psql:
        psql.execute("ALTER TABLE published_batch ADD CHECK (published_at < now()) NOT VALID")
    unknown = r"^Whether the batch was published is not known: UNKNOWN_SERVER_ERROR: "
    with pytest.raises(SinkError, match=unknown):
        staging.publish(cluster, "query", "", 0, tokens(staged))
    assert numbers_in(gateway.bootstrap, given.topic) == list(range(10))


def test_a_broker_that_cannot_stage(gateway: Gateway) -> None:
    """Apache Kafka closes the connection at a request that it does not know."""
    topic = make_topic(gateway.bootstrap)
    with kafka_in_front_of(gateway) as port:
        given = options(f"127.0.0.1:{port}", topic)
        cluster = OnlyBootstrap(given.servers, given.delivery_timeout_s)

        with pytest.raises(SinkError, match=r"ends the connection whenever.*Apache Kafka cannot"):
            stage(columns(range(10)), given, cluster)
        with pytest.raises(SinkError, match=r"ends the connection whenever.*Apache Kafka cannot"):
            staging.is_published(cluster, "query", topic, 0)


class OnlyBootstrap(Cluster):
    """Does not learn that there is a gateway behind what it talks to."""

    def topic(self, name: str) -> staging.Topic:
        found = super().topic(name)
        self._addresses = self._addresses[:1]
        return found


@contextlib.contextmanager
def kafka_in_front_of(gateway: Gateway) -> Iterator[int]:
    """A proxy that hands on what Kafka knows, and ends the connection at all else."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    threading.Thread(target=hand_on, args=(connection,), daemon=True).start()

        def hand_on(client: socket.socket) -> None:
            with client, socket.create_connection(("127.0.0.1", gateway.port)) as server:
                while request := frame(client):
                    if int.from_bytes(request[:2], "big") >= 10_000:
                        return
                    server.sendall(len(request).to_bytes(4, "big") + request)
                    answer = frame(server)
                    client.sendall(len(answer).to_bytes(4, "big") + answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def frame(source: socket.socket) -> bytes:
    size = source.recv(4, socket.MSG_WAITALL)
    return source.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL) if size else b""


def test_tls(start_gateway: StartGateway, database_url: str, certificate: Path) -> None:
    port, authority = free_port(), str(certificate.with_suffix(".crt"))
    start_gateway(
        *("--tls-cert", authority, "--tls-key", certificate),
        *("--advertise", f"localhost:{port}"),
        database_url=database_url,
        port=port,
        wait=False,
    )
    tls = {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": authority}
    given = options(f"localhost:{port}", "made-by-itself", **tls)
    cluster = cluster_of(given)

    staged = stage(columns(range(10)), given, cluster)

    assert staging.publish(cluster, "query", "", 0, tokens(staged)).is_new
    stranger = options(f"localhost:{port}", "t", **tls | {"delivery.timeout.ms": "300"})
    with pytest.raises(SinkError, match="CERTIFICATE_VERIFY_FAILED"):
        stage(
            columns(range(1)),
            stranger,
            Cluster(stranger.servers, 0.3, ssl.create_default_context()),
        )


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_login(
    start_gateway: StartGateway, database_url: str, certificate: Path, mechanism: str, tls: bool
) -> None:
    reauth = "connections.max.reauth.ms=2500"
    with entrance(start_gateway, certificate, database_url, reauth) as at:
        topic, address = make_topic(at.open), at.secure if tls else at.plain

        def known_as(password: str) -> SinkOptions:
            named = java_properties(at, mechanism, password, tls=tls)
            return options(address, topic, **{f"kafka.{name}": named[name] for name in named})

        given = known_as(PASSWORD)
        cluster = cluster_of(given)
        staged = stage(columns(range(10)), given, cluster)
        assert staging.publish(cluster, "query", "", 0, tokens(staged)).is_new
        assert numbers_in(at.open, topic) == list(range(10))
        with cluster.connect() as connection:
            for _ in range(3):  # its time is over more than once meanwhile
                request = metadata_request([topic], may_create=False)
                answer = wire.read_metadata(connection.ask(METADATA, request))
                assert answer.partitions == {topic: 3}
                time.sleep(1.75)
        with pytest.raises(SinkError, match=f"{address} does not let 'alice' in: SASL_AUTH"):
            stage(columns(range(1)), known_as("wrong"), cluster_of(known_as("wrong")))
        nobody = options(at.plain, topic, **{"delivery.timeout.ms": "300"})
        with pytest.raises(SinkError, match=r"does it want TLS, or a login\?"):
            stage(columns(range(1)), nobody, cluster_of(nobody))


def test_a_gateway_that_stands_still_is_left_for_another(
    start_gateway: StartGateway, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections to it are made (by its kernel), but nothing is answered."""
    monkeypatch.setattr(staging, "_ANSWER_WITHIN_S", 2.0)
    first, second = (start_gateway(database_url=database_url) for _ in range(2))
    given = options(f"{first.bootstrap},{second.bootstrap}", make_topic(second.bootstrap))
    cluster = cluster_of(given)
    first.pause()

    staged = stage(columns(range(100)), given, cluster)

    cluster = cluster_of(given)  # the driver's, which does not know it yet
    assert staging.publish(cluster, "query", "", 0, tokens(staged)).is_new
    first.resume()

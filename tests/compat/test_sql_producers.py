"""Applications produce in SQL, with any driver; stock clients consume what they would of Kafka."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
from kafka import KafkaProducer
from psycopg.types.json import Jsonb
from sqlalchemy.dialects.postgresql import JSONB

from compat.java import tools
from tests.compat.clients import AIOKafka, Confluent, EventLoop, Read, read_to_end
from tests.compat.conftest import MakeTopic

PARTITIONS = 3
KEYS = ["", "a", "ab", "abc", "abcd", "ключ", "user-17", *(f"key {n}" for n in range(30))]
JDBC = Path(tools.__file__).with_name("jdbc")

Produce = Callable[[str, str], None]


@pytest.fixture
def database_url(gateway: Any) -> str:
    """The database of the broker that is tested."""
    url = getattr(gateway, "database_url", None)
    if url is None:
        pytest.skip("a Kafka has no tables")
    return str(url)


def psycopg_binds_at_the_server(url: str, topic: str) -> None:
    with psycopg.connect(url) as session:
        for key in KEYS:
            session.execute(
                "SELECT penstock.produce(%s, %s, %s, %s)",
                [topic, key, key.encode(), Jsonb({"h": key})],
            )


def psycopg_binds_at_the_client(url: str, topic: str) -> None:
    with psycopg.connect(url, cursor_factory=psycopg.ClientCursor) as session:
        for key in KEYS:
            session.execute(
                "SELECT penstock.produce(%s, %s, %s, %s)", [topic, key, key, Jsonb({"h": key})]
            )


def psycopg_in_a_pipeline(url: str, topic: str) -> None:
    with psycopg.connect(url) as session, session.pipeline(), session.cursor() as cursor:
        cursor.executemany(
            "SELECT penstock.produce(%s, %s, %s, %s)",
            [(topic, key.encode(), key, Jsonb([["h", key]])) for key in KEYS],
        )


def psycopg_copies(url: str, topic: str) -> None:
    columns = "(topic, key, value, headers)"
    with (
        psycopg.connect(url) as session,
        session.cursor().copy(f"COPY penstock.outbox {columns} FROM STDIN".encode()) as copy,
    ):
        for key in KEYS:
            copy.write_row((topic, key, key, Jsonb({"h": key})))


def asyncpg_produces(url: str, topic: str) -> None:
    async def produce() -> None:
        parts = urlsplit(url)
        session = await asyncpg.connect(
            host=parse_qs(parts.query)["host"][0],
            user=parts.username,
            database=parts.path[1:],
        )
        try:
            async with session.transaction():
                for key in KEYS[:10]:
                    await session.execute(
                        "SELECT penstock.produce($1, $2, $3, jsonb_build_object('h', $4::text))",
                        topic, key, key, key,
                    )  # fmt: skip
                await session.executemany(
                    "INSERT INTO penstock.outbox (topic, key, value, headers)"
                    " VALUES ($1, $2, $3, jsonb_build_object('h', $2::text))",
                    [(topic, key, key) for key in KEYS[10:]],
                )
        finally:
            await session.close()

    asyncio.run(produce())


def sqlalchemy_produces(url: str, topic: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:", 1))
    statement = sqlalchemy.text("SELECT penstock.produce(:topic, :key, :value, :headers)")
    headers = sqlalchemy.bindparam("headers", type_=JSONB)
    with engine.begin() as session:
        for key in KEYS:
            session.execute(
                statement.bindparams(headers),
                {"topic": topic, "key": key, "value": key, "headers": {"h": key}},
            )
    engine.dispose()


DRIVERS = [
    psycopg_binds_at_the_server,
    psycopg_binds_at_the_client,
    psycopg_in_a_pipeline,
    psycopg_copies,
    asyncpg_produces,
    sqlalchemy_produces,
]


def read_until(client: Any, topic: str, partitions: int, count: int) -> list[Read]:
    """All of a topic once there are so many."""
    deadline = time.monotonic() + 30
    while len(found := read_to_end(client, topic, partitions)) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records"
    return found


def of_kafkas_producer(bootstrap: str, topic: str, keys: Sequence[str]) -> dict[bytes, int]:
    """The partition of each key, as kafka-python's producer chooses it."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=bootstrap)) as producer:
        sent = {key.encode(): producer.send(topic, key=key.encode(), value=b"") for key in keys}
        producer.flush()
        return {key: each.get(30).partition for key, each in sent.items()}


def test_every_driver_produces_what_clients_consume(
    database_url: str,
    bootstrap: str,
    make_topic: MakeTopic,
    confluent_client: Confluent,
    event_loop_thread: EventLoop,
) -> None:
    expected = of_kafkas_producer(bootstrap, make_topic(PARTITIONS), KEYS)
    assert set(expected.values()) == set(range(PARTITIONS))
    topics = {driver: make_topic(PARTITIONS) for driver in DRIVERS}
    for driver, topic in topics.items():
        driver(database_url, topic)
    with contextlib.closing(AIOKafka(bootstrap, event_loop_thread)) as aiokafka:
        for driver, topic in topics.items():
            for client in (confluent_client, aiokafka):
                found = read_until(client, topic, PARTITIONS, len(KEYS))
                assert {each.key: each.partition for each in found} == expected, driver
                assert all(each.value == each.key for each in found), driver
                assert all(each.headers == (("h", each.key),) for each in found), driver
                for number in range(PARTITIONS):  # in the order of the calls
                    keys = [
                        (each.key or b"").decode() for each in found if each.partition == number
                    ]
                    assert keys == sorted(keys, key=KEYS.index), driver


def test_topics_have_their_records_as_they_want_them(
    database_url: str, make_topic: MakeTopic, confluent_client: Confluent
) -> None:
    kinds = {
        "plain": make_topic(),
        "stamped": make_topic(config={"message.timestamp.type": "LogAppendTime"}),
        "packed": make_topic(config={"compression.type": "zstd"}),
        "compacted": make_topic(config={"cleanup.policy": "compact"}),
    }
    with psycopg.connect(database_url) as session:
        for topic in kinds.values():
            session.execute(
                "SELECT penstock.produce(%s, 'k', repeat('x', 1000), NULL, 0, 'epoch')", [topic]
            )
            session.execute(
                "SELECT penstock.produce(%s, 'k', NULL, ARRAY[('a', '\\xff'), ('b', NULL),"
                " ('a', '')]::penstock.header[])",
                [topic],
            )
    for kind, topic in kinds.items():
        first, tombstone = read_until(confluent_client, topic, 1, 2)
        assert (first.key, first.value, first.headers) == (b"k", b"x" * 1000, ())
        assert (tombstone.key, tombstone.value or b"") == (b"k", b"")
        assert tombstone.headers == (("a", b"\xff"), ("b", None), ("a", b""))
        if kind == "stamped":
            assert first.is_append_time
            assert abs(first.timestamp / 1000 - time.time()) < 300
        else:
            assert not first.is_append_time
            assert first.timestamp == 0
            assert abs(tombstone.timestamp / 1000 - time.time()) < 300


def test_clients_of_a_pooler_share_a_session(
    database_url: str, topic: str, confluent_client: Confluent
) -> None:
    """What a pooler in transaction mode does: one session runs transactions of one after the other,
    without a reset between them. Nothing of one is left to the next."""
    with psycopg.connect(database_url) as session:
        for n in range(6):
            session.execute("SELECT penstock.produce(%s, 'k', %s)", [topic, f"{n} first"])
            if n % 3 == 1:
                session.rollback()
                continue
            session.execute("SELECT penstock.produce(%s, 'k', %s)", [topic, f"{n} second"])
            if n % 3 == 2:
                with pytest.raises(psycopg.Error):
                    session.execute("SELECT penstock.produce('no such', 'k', 'v')")
                session.rollback()
                continue
            session.commit()
            left = "SELECT nullif(current_setting('penstock.bytes_in_transaction', true), '')"
            assert session.execute(left.encode()).fetchone() == (None,)
            session.commit()
        own = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
        assert session.execute(own.encode()).fetchone() == (0,)
    found = read_until(confluent_client, topic, 1, 4)
    assert [each.value for each in found] == [
        b"0 first", b"0 second", b"3 first", b"3 second",
    ]  # fmt: skip


@pytest.fixture
def address(database_url: str) -> Iterator[tuple[str, int]]:
    """The database's address by TCP, for who knows no sockets of files."""
    (directory,) = parse_qs(urlsplit(database_url).query)["host"]
    (path,) = Path(directory).glob(".s.PGSQL.*[0-9]")

    def pump(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65_536):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)

    def relay(client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(str(path))
            back = threading.Thread(target=pump, args=(server, client), daemon=True)
            back.start()
            pump(client, server)
            back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                threading.Thread(target=relay, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[:2]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.java
def test_jdbc_produces(
    database_url: str, address: tuple[str, int], topic: str, confluent_client: Confluent
) -> None:
    pom = JDBC / "pom.xml"
    if reason := tools.unavailable(pom):
        pytest.skip(reason)
    parts = urlsplit(database_url)
    url = f"jdbc:postgresql://{address[0]}:{address[1]}{parts.path}?user={parts.username}"
    for end in ("rollback", "commit"):
        told = tools.java_tool(
            JDBC / "Producing.java", url, topic, end, jvm=tools.SHORT_LIVED, pom=pom
        )
        assert told.stdout.split() == ["PS101"]
    found = read_until(confluent_client, topic, 1, 24)
    assert [(each.key, each.value, each.headers) for each in found] == [
        (b"strings", "ä".encode(), ()),
        (None, None, ()),
        (b"bytes", b"\0\xff", ()),
        (b"jsonb", b'{"a": 1}', (("h", b"1"),)),
        *((b"batch %d" % n, b"v", ()) for n in range(20)),
    ]

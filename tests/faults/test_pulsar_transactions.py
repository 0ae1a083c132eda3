"""Pulsar's transactions, one at a time, cut at a chosen place: the database killed after each
answer, a broker killed or cut off at any statement of END_TXN's commit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.pulsar.commands import AckType, ServerError, SubType, TxnAction
from gateway.pulsar.commands_pb2 import (
    CommandAck,
    CommandAddPartitionToTxn,
    CommandEndTxn,
    CommandLookupTopic,
    CommandNewTxn,
    CommandProducer,
    MessageMetadata,
)
from gateway.pulsar.entries import encode_entry
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, Gateway, StartGateway
from tests.faults.conftest import create_topic, query, url_through
from tests.faults.consumption import Consumption, Place
from tests.faults.proxies import CommitProxy, Cut
from tests.faults.pulsar_txn_load import COORDINATORS, Consumer, Link, Lost, Refused
from tests.variants import variants

pytestmark = pytest.mark.fault

TOPIC = "load-partition-0"
OTHER = "other-partition-0"
SUBSCRIPTION = Place("s", 0)
TTL_MS = 120_000
WITHIN_S = 40.0
PATIENT_S = WITHIN_S / 2  # so that who may ask again can do so once
NEW_TXN = CommandNewTxn(tc_id=3, txn_ttl_seconds=TTL_MS)
FORGOTTEN_FAST = ("--override", "penstock.broker.session.timeout.ms=2000")

Txn = dict[str, int]


class Client:
    """One connection with a producer and a consumer, made anew where it is lost. Whatever is silent
    or slow is waited for: not every caller can ask again.

    ports: of brokers, by which the topic and the coordinators are looked up. delivered: everything
    that came, in order, by any of the connections.
    """

    def __init__(self, *ports: int, topic: str = TOPIC) -> None:
        self._ports = ports
        self.topic = topic
        self._links: dict[int, Link] = {}
        self._consumption = Consumption()
        self.consumer: Consumer
        self._producer: tuple[Link, int]
        self._sequence_id = 0

    @property
    def delivered(self) -> list[bytes]:
        return [each.value for each in self._consumption.deliveries]

    async def connect(self) -> None:
        """Anew, and as often as it takes."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            self.close()
            try:
                link = await self._at(self.topic)
                number = link.next_id()
                await link.ask(CommandProducer(topic=self.topic, producer_id=number))
                self._producer = link, number
                self._sequence_id = 0
                self.consumer = Consumer(link, SUBSCRIPTION, self._consumption, is_greedy=True)
                await self.consumer.begin(self.topic, SubType.SHARED)
            except (Lost, Refused):
                assert time.monotonic() < deadline, "the brokers do not come back"
                await asyncio.sleep(0.1)
            else:
                return

    def close(self) -> None:
        for link in self._links.values():
            link.end()
        self._links.clear()

    async def _at(self, topic: str) -> Link:
        found = None
        for port in self._ports:
            with contextlib.suppress(Lost):
                found = await (await self._link(port)).ask(CommandLookupTopic(topic=topic))
                break
        if found is None or not found.broker_service_url:
            raise Lost("nobody has it")
        return await self._link(int(found.broker_service_url.rsplit(":", 1)[1]))

    async def _link(self, port: int) -> Link:
        if port not in self._links or self._links[port].is_over:
            self._links[port] = await Link.to(port, PATIENT_S, PATIENT_S)
        return self._links[port]

    async def told(self, message: Any, coordinator: int = 3) -> Any:
        """The coordinator's answer, asked again until it is one; an error's code instead."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                return await (await self._at(COORDINATORS.format(coordinator))).ask(message)
            except Refused as refused:
                if refused.code is not ServerError.TRANSACTION_COORDINATOR_NOT_FOUND:
                    return refused.code
            except Lost:
                pass
            assert time.monotonic() < deadline, "no answer"
            await asyncio.sleep(0.05)

    async def begin(self) -> Txn:
        return _txn_of(await self.told(NEW_TXN))

    async def join(self, txn: Txn) -> ServerError | None:
        return _error(await self.told(CommandAddPartitionToTxn(partitions=[self.topic], **txn)))

    async def end(self, txn: Txn, action: TxnAction) -> ServerError | None:
        return _error(await self.told(CommandEndTxn(txn_action=action, **txn)))

    async def send(self, value: bytes, txn: Txn | None = None) -> ServerError | None:
        """Raises Lost."""
        link, number = self._producer
        sequence_id = self._sequence_id
        self._sequence_id += 1
        answer = link.expect((number, sequence_id))
        metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
        sent = {"producer_id": number, "sequence_id": sequence_id, **(txn or {})}
        link.wire.send(encode_entry(metadata, value), **sent)
        heard = await link.within(answer)
        is_error = heard.DESCRIPTOR.name == "CommandSendError"
        return ServerError(heard.error) if is_error else None

    async def ack(self, txn: Txn | None) -> ServerError | None:
        """Of the next that comes. Raises Lost."""
        deadline = time.monotonic() + WITHIN_S
        while not self.consumer.inbox:
            assert time.monotonic() < deadline, "nothing comes"
            await asyncio.sleep(0.01)
        got = self.consumer.inbox.popleft()
        found = got.id_of(got.offsets)
        wanted = CommandAck(
            consumer_id=self.consumer.number,
            ack_type=AckType.INDIVIDUAL,
            message_id=[found],
            **(txn or {}),
        )
        try:
            await self.consumer.link.ask(wanted)
        except Refused as refused:
            return refused.code
        return None

    async def left(self, last: bytes) -> list[bytes]:
        """What a consumer gets that comes now, up to a message that is sent last."""
        before = len(self._consumption.deliveries)
        await self.connect()
        assert await self.send(last) is None
        deadline = time.monotonic() + WITHIN_S
        while last not in self.delivered[before:]:
            assert time.monotonic() < deadline, "the last message is held back"
            await asyncio.sleep(0.01)
        return self.delivered[before:-1]


def _txn_of(begun: Any) -> Txn:
    return {"txnid_most_bits": 3, "txnid_least_bits": begun.txnid_least_bits}


def _error(answer: Any) -> ServerError | None:
    return answer if isinstance(answer, ServerError) else None


@pytest.fixture
def own_server(migrated_dir: Path) -> Iterator[EmbeddedPostgres]:
    """Its WAL writer sleeps, so that a crash does lose what did not wait for the disk."""
    quiet = {"wal_writer_delay": "10s", "wal_writer_flush_after": "64MB"}
    with EmbeddedPostgres(migrated_dir, settings={**SMALL_POSTGRES, **quiet}) as server:
        yield server


@contextlib.asynccontextmanager
async def connected(*ports: int) -> AsyncIterator[Client]:
    client = Client(*ports)
    await client.connect()
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("action", variants(TxnAction.COMMIT, TxnAction.ABORT))
async def test_the_database_is_killed_after_each_answer(
    own_server: EmbeddedPostgres,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    action: TxnAction,
) -> None:
    """What was answered durably holds; of a transaction that was lost nothing is taken."""
    (port,) = ports(1)
    gateway = start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=own_server.url)
    for name in (TOPIC, OTHER):
        create_topic(gateway.bootstrap, name.removesuffix("-partition-0"), 1)
    lost = 0
    async with connected(port) as client:
        for killed_after in ("begin", "join", "send", "ack", "end"):
            was_lost = await _one_killed(client, port, own_server, killed_after, action)
            lost += was_lost
            assert not was_lost or killed_after in ("begin", "join")
        # What somebody else flushes takes a join with it: on a busy machine that is often.
        chances = 10
        while not lost and chances:
            chances -= 1
            lost = await _one_killed(client, port, own_server, "join", action)
    assert lost, "no NEW_TXN was lost: the disk was always faster"


async def _one_killed(
    client: Client, port: int, server: EmbeddedPostgres, killed_after: str, action: TxnAction
) -> bool:
    """One transaction of a message and an acknowledgement; whether it was lost."""
    name = f"{killed_after} {action.name}".encode()
    consumed, produced = b"to be consumed: " + name, b"produced: " + name
    assert await client.send(consumed) is None
    steps: dict[str, Any] = {
        "join": lambda: client.join(txn),
        "send": lambda: client.send(produced, txn),
        "ack": lambda: client.ack(txn),
        "end": lambda: client.end(txn, action),
    }
    txn = await client.begin()
    said: dict[str, ServerError | None] = {}
    for step, act in (("begin", None), *steps.items()):
        if act is not None:
            said[step] = await act()
        if step == killed_after:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            await wait_until_all_goes(port)
            await client.connect()
    found = said["end"]
    is_lost = found is ServerError.TRANSACTION_NOT_FOUND
    if is_lost:
        refusals = {ServerError.TRANSACTION_NOT_FOUND, ServerError.NOT_ALLOWED_ERROR}
        assert said["send"] in refusals, said
        assert said["ack"] in refusals, said
    else:
        assert (found, said["ack"]) == (None, None), said
        assert await client.end(txn, action) is None  # once more
        other = TxnAction.ABORT if action is TxnAction.COMMIT else TxnAction.COMMIT
        assert await client.end(txn, other) is ServerError.INVALID_TXN_STATUS
    least = txn["txnid_least_bits"]
    hanging = f"SELECT 1 FROM transaction_state WHERE producer_id = {least} AND started_at >= 0"
    pending = f"SELECT 1 FROM pending_ack WHERE producer_id = {least} AND NOT is_committed"
    assert query(server.url, hanging) + query(server.url, pending) == []
    is_committed = not is_lost and action is TxnAction.COMMIT
    expected = [] if is_committed else [consumed]
    if is_committed and said["send"] is None:
        expected.append(produced)
    last = b"last: " + name
    assert await client.left(last) == expected, said
    for _ in range(len(expected) + 1):
        assert await client.ack(None) is None
    return is_lost


async def wait_until_all_goes(port: int) -> None:
    """Until each of the broker's sessions has found that the database is another one."""
    deadline = time.monotonic() + WITHIN_S
    client = Client(port, topic=OTHER)
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(Lost):
                await client.connect()
                txn = await client.begin()
                said = [await client.send(b"first"), await client.join(txn)]
                said += [await client.send(b"second", txn), await client.ack(txn)]
                if [*said, await client.end(txn, TxnAction.COMMIT)] == [None] * 5:
                    return
    finally:
        client.close()
    raise AssertionError("the broker does not find its database")


async def test_what_is_begun_while_the_database_is_away(
    own_server: EmbeddedPostgres, start_gateway: StartGateway, ports: Callable[[int], list[int]]
) -> None:
    """Its first join is stored once the database is back, and the transaction with it."""
    (port,) = ports(1)
    gateway = start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=own_server.url)
    create_topic(gateway.bootstrap, TOPIC.removesuffix("-partition-0"), 1)
    async with connected(port) as client:
        first = await client.begin()
        assert await client.end(first, TxnAction.COMMIT) is None
        await asyncio.to_thread(own_server.kill)
        link = await client._link(port)  # a LOOKUP would wait for the database
        joined, idle = [_txn_of(await link.ask(NEW_TXN)) for _ in range(2)]
        with pytest.raises(Refused) as refused:
            await link.ask(CommandAddPartitionToTxn(partitions=[TOPIC], **joined))
        assert refused.value.code is ServerError.TRANSACTION_COORDINATOR_NOT_FOUND  # ask again
        await asyncio.to_thread(own_server.start)
        await client.connect()
        assert await client.join(joined) is None
        assert await client.end(joined, TxnAction.COMMIT) is None
        assert await client.end(idle, TxnAction.COMMIT) is None


async def begun(client: Client, number: int) -> Txn:
    """A transaction that has written a message and acknowledged another one."""
    assert await client.send(b"consumed %d" % number) is None
    txn = await client.begin()
    assert await client.join(txn) is None
    assert await client.send(b"produced %d" % number, txn) is None
    assert await client.ack(txn) is None
    return txn


async def test_the_connection_is_cut_at_each_statement_of_an_end(
    server: EmbeddedPostgres,
    commit_proxy: CommitProxy,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
) -> None:
    """It is wholly open or wholly ended, and asked again it ends as it was to."""
    (port,) = ports(1)
    url = url_through(commit_proxy)
    gateway = start_gateway("--pulsar-listen", f"127.0.0.1:{port}", database_url=url)
    create_topic(gateway.bootstrap, "load", 1)
    half: list[Any] = []

    def look() -> None:
        """While the server has the cut commit's statements: nobody else sees them."""
        half.append(
            query(
                server.url,
                "SELECT (SELECT count(*) FROM transaction_state WHERE started_at >= 0),"
                " (SELECT count(*) FROM pending_ack WHERE NOT is_committed),"
                " (SELECT count(*) FROM transaction_participant),"
                " (SELECT count(*) FROM producer_state WHERE txn_first_offset >= 0)",
            )
        )

    commit_proxy.on_cut = look
    async with connected(port) as client:
        cuts = 0
        while True:
            txn = await begun(client, cuts)
            commit_proxy.cut_next_after(cuts)
            action = TxnAction.COMMIT if cuts % 3 else TxnAction.ABORT
            assert await client.end(txn, action) is None
            kept = [] if action is TxnAction.COMMIT else [b"consumed %d" % cuts]
            kept += [b"produced %d" % cuts] if action is TxnAction.COMMIT else []
            assert sorted(await client.left(b"last")) == sorted(kept)
            for _ in range(len(kept) + 1):
                assert await client.ack(None) is None
            if commit_proxy.executed < cuts:
                break
            cuts += 1
    assert cuts > 4
    assert half == [[(1, 1, 1, 1)]] * (cuts + 1)


@pytest.mark.parametrize("place", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT, 3])
async def test_a_broker_killed_in_an_end_leaves_it_to_another(
    place: Cut | int,
    server: EmbeddedPostgres,
    commit_proxy: CommitProxy,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
) -> None:
    numbers = ports(2)
    gateways: list[Gateway] = []
    for port, url in zip(numbers, (url_through(commit_proxy), server.url), strict=True):
        listen = ("--pulsar-listen", f"127.0.0.1:{port}")
        gateways.append(start_gateway(*listen, *FORGOTTEN_FAST, database_url=url))
    first = gateways[0]
    create_topic(first.bootstrap, "load", 1)
    async with connected(*numbers) as client:
        coordinator = await _coordinator_at(client, numbers[0])
        assert await client.send(b"consumed") is None
        wanted = CommandNewTxn(tc_id=coordinator, txn_ttl_seconds=TTL_MS)
        made = await client.told(wanted, coordinator)
        txn = {"txnid_most_bits": coordinator, "txnid_least_bits": made.txnid_least_bits}
        joining = CommandAddPartitionToTxn(partitions=[TOPIC], **txn)
        assert _error(await client.told(joining, coordinator)) is None
        assert await client.send(b"produced", txn) is None
        assert await client.ack(txn) is None
        commit_proxy.on_cut = first.kill
        if isinstance(place, Cut):
            commit_proxy.cut_next(place)
        else:
            commit_proxy.cut_next_after(place)
        ending = CommandEndTxn(txn_action=TxnAction.COMMIT, **txn)
        assert _error(await client.told(ending, coordinator)) is None
        assert first.process.poll() is not None
        turned = CommandEndTxn(txn_action=TxnAction.ABORT, **txn)
        answer = await client.told(turned, coordinator)
        assert answer is ServerError.INVALID_TXN_STATUS
        assert await client.left(b"last") == [b"produced"]


async def _coordinator_at(client: Client, port: int) -> int:
    """The number of a coordinator that this broker has, once both know of each other."""
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        owners = {}
        for number in range(16):
            found = await (await client._link(port)).ask(
                CommandLookupTopic(topic=COORDINATORS.format(number))
            )
            owners[int(found.broker_service_url.rsplit(":", 1)[1])] = number
        if len(owners) == 2:
            return owners[port]
        await asyncio.sleep(0.1)
    raise AssertionError("the brokers do not share the coordinators")

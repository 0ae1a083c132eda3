"""The least that a gateway in Python could do: it stores what producers send, and answers.

It checks nothing and decides nothing, tells no offsets and serves no consumers. What it does is
what Penstock cannot do without: framing, Kafka's messages, a flush that serves all who wait, and
the same commits (batches, ends of transactions; joins without waiting for the disk), each with as
few statements as it takes. So its figures bound what any Penstock in Python may reach on the
machine; without storing, what anything may that answers these clients from Python. Every topic is
there once it was created, with its partitions, until the process ends.

Several share a PostgreSQL as workers do: each leads every so-many-th partition, and coordinates as
many of the transactions. They know nothing of each other but their addresses, so they cost
what N brokers cost at least that each commit what their own clients send.

Run by `bench --peer-least`, or by hand: `python -m bench.peer.least --listen HOST:PORT --data DIR`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import psycopg

from bench.brokers import Broker, postmaster_of, wait_until_ready
from bench.processes import ProcessGroup, free_port, stop_process
from core.ports.log import Payload
from gateway.event_loop import new_event_loop
from gateway.framing import Framer, make_scratch
from gateway.kafka import codec
from gateway.kafka.codec import RequestHeader, made
from storage.connection.binary import bigint_array
from storage.connection.pool import HOT_SESSION, HotConnection
from storage.connection.session import HotSession, Statement
from storage.flush.handover import Handover
from storage.flush.payload import FlushPayload, PayloadWriter
from storage.schema import SCHEMA, chunk_table_name
from storage.server.embedded import EmbeddedPostgres

KINDS: Final = ("storing", "answering", "two-storing")
"""Whether what comes is stored before it is answered; two processes, over one PostgreSQL."""

_SERVES: Final = ("produce/*", "ack/*", "transactions/confluent/*p")
# The newest ones that name topics by their names; clients take older ones here than of Penstock.
_VERSIONS: Final = {0: 9, 3: 8, 10: 2, 18: 3, 19: 4, 20: 3, 22: 1, 24: 2, 26: 2}
_PRODUCE, _METADATA, _FIND_COORDINATOR, _API_VERSIONS, _CREATE, _DELETE, _INIT, _JOIN, _END = (
    _VERSIONS
)
_UNSUPPORTED_VERSION: Final = 35
_MAX_FRAME: Final = 100 * 2**20
_FLUSH_BYTES: Final = 4 * 2**20
_PRODUCER_ID: Final = slice(43, 51)  # of a record batch
_MARKER: Final = bytes(78)  # as long as a control batch

_SEGMENT: Final = 1
_CHUNKS: Final = chunk_table_name(_SEGMENT)
_TABLES = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {_CHUNKS} (payload_id bigint, seq integer, data bytea, PRIMARY KEY (payload_id, seq));
ALTER TABLE {_CHUNKS} ALTER data SET STORAGE PLAIN;
CREATE TABLE batch (log_id bigint, base_offset bigint, payload_id bigint,
                    PRIMARY KEY (log_id, base_offset));
CREATE TABLE log (log_id bigint PRIMARY KEY, next_offset bigint) WITH (fillfactor = 50);
CREATE TABLE txn (producer_id bigint PRIMARY KEY, version bigint) WITH (fillfactor = 50);
CREATE TABLE member (producer_id bigint, log_id bigint);
CREATE TABLE topic (name text PRIMARY KEY, partitions integer NOT NULL)
"""
_STATEMENTS: Mapping[bytes, str] = {
    b"batches": """
        INSERT INTO batch SELECT log_id, base_offset, $3::bigint
        FROM unnest($1::bigint[], $2::bigint[]) AS e (log_id, base_offset)""",
    b"logs": """
        INSERT INTO log SELECT * FROM unnest($1::bigint[], $2::bigint[])
        ON CONFLICT (log_id) DO UPDATE SET next_offset = excluded.next_offset""",
    b"ends": """
        INSERT INTO txn SELECT producer_id, 1 FROM unnest($1::bigint[]) AS producer_id
        ON CONFLICT (producer_id) DO UPDATE SET version = txn.version + 1""",
    b"join": """
        INSERT INTO member SELECT $1::bigint, log_id FROM unnest($2::bigint[]) AS log_id""",
}
_BIGINT = struct.Struct(">q")
_IDS_EACH: Final = 2**40
"""Of a process, for payload, logs and producers: nothing of one's is another's."""


@dataclass(slots=True)
class _Write:
    """One record batch for each of some logs, and whom to tell; or the end of a transaction."""

    logs: Sequence[int]
    payload: Sequence[Payload]
    tell: Callable[[], None]
    ends: int | None = None  # its producer's id


class _Payload(FlushPayload):
    """All of a flush's, in one segment."""

    def __init__(self, payload_id: int, parts: Sequence[Payload]) -> None:
        self._id = payload_id
        self._parts = parts

    def by_segment(self) -> Iterator[tuple[int, int, Sequence[Payload]]]:
        yield _SEGMENT, self._id, self._parts


class Store:
    """What comes while a flush is under way goes with the next."""

    def __init__(
        self, flushes: HotSession, joins: HotSession, writer: PayloadWriter, first_id: int
    ) -> None:
        self._flushes = flushes
        self._joins = joins
        self._writer = writer
        self._waiting: list[_Write] = []
        self._flushing: asyncio.Task[None] | None = None
        self._ids = itertools.count(first_id)
        self._next_offsets: dict[int, int] = {}

    @classmethod
    async def open(cls, server: EmbeddedPostgres, number: int) -> Store:
        """number: of the process."""
        sessions: list[HotSession] = []
        for _ in range(2):
            connection = await HotConnection.connect(server.url, autocommit=True, **HOT_SESSION)
            sessions.append(HotSession(connection))
            await sessions[-1].prepare_all(_STATEMENTS)
        flushes, joins = sessions
        await joins.execute(b"SET synchronous_commit = off")
        owner = (server.data_dir / "pgdata").stat()  # reads files for the server
        writer = PayloadWriter(flushes, Handover.make((owner.st_uid, owner.st_gid)))
        await writer.prepare(_Payload(0, ()))
        return cls(flushes, joins, writer, _IDS_EACH * number + 1)

    async def join(self, producer_id: int, logs: Sequence[int]) -> None:
        """A commit of its own that waits for no disk."""
        parameters = (_BIGINT.pack(producer_id), bigint_array(logs))
        await self._joins.run([(b"join", parameters)], commits=True)

    def put(self, write: _Write) -> None:
        """Tells once it is durable."""
        self._waiting.append(write)
        if self._flushing is None:
            self._flushing = asyncio.ensure_future(self._flush())

    async def _flush(self) -> None:
        while self._waiting:
            writes = self._take()
            await self._flushes.run(self._statements(writes), commits=True)
            for write in writes:
                write.tell()
        self._flushing = None

    def _take(self) -> list[_Write]:
        """What waits, in order, up to as much as Penstock flushes at once."""
        size = count = 0
        while count < len(self._waiting) and size < _FLUSH_BYTES:
            size += sum(map(len, self._waiting[count].payload))
            count += 1
        writes, self._waiting = self._waiting[:count], self._waiting[count:]
        return writes

    def _statements(self, writes: Sequence[_Write]) -> list[Statement]:
        offsets = self._next_offsets
        touched: dict[int, int] = {}
        logs, bases = [], []
        for write in writes:
            for log in write.logs:
                logs.append(log)
                bases.append(offsets.get(log, 0))
                touched[log] = offsets[log] = bases[-1] + 1
        payload_id = next(self._ids)
        parts = [part for write in writes for part in write.payload]
        ordered = sorted(touched)
        statements = [
            *self._writer.statements(_Payload(payload_id, parts)),
            (b"batches", (bigint_array(logs), bigint_array(bases), _BIGINT.pack(payload_id))),
            (b"logs", (bigint_array(ordered), bigint_array([touched[log] for log in ordered]))),
        ]
        if ended := [write.ends for write in writes if write.ends is not None]:
            statements.append((b"ends", (bigint_array(ended),)))
        return statements


@dataclass(slots=True)
class _Announced:
    """What V1 of transactions has announced; librdkafka sends a request for each partition."""

    logs: Sequence[int]
    batches: list[tuple[int, Payload]] = field(default_factory=list)
    answers: list[Callable[[], None]] = field(default_factory=list)


class Least:
    """The state of all connections."""

    def __init__(
        self, addresses: Sequence[str], number: int, store: Store | None, url: str | None
    ) -> None:
        pairs = [address.rsplit(":", 1) for address in addresses]
        self.addresses = [(host, int(port)) for host, port in pairs]
        self.number = number
        self.store = store
        self.scratch = make_scratch()
        self._url = url
        self._topics: dict[str, int] = {}
        self.logs: dict[tuple[str, int], int] = {}
        self.announced: dict[int, _Announced] = {}
        self.joined: dict[int, Sequence[int]] = {}
        self.ids = itertools.count(_IDS_EACH * number + 1)

    def log(self, topic: str, partition: int) -> int:
        """A number for it, of this process."""
        own = _IDS_EACH * self.number
        return self.logs.setdefault((topic, partition), own + len(self.logs))

    def leader(self, partition: int) -> int:
        """The number of its process."""
        return partition % len(self.addresses)

    # Topics are few, and asked for rarely: what others made may be looked up while clients wait.

    @property
    def topics(self) -> Mapping[str, int]:
        """The partitions of each topic."""
        if self._url is not None and len(self.addresses) > 1:
            with psycopg.connect(self._url) as connection:
                self._topics = dict(connection.execute("SELECT * FROM topic").fetchall())
        return self._topics

    def create(self, name: str, partitions: int) -> None:
        """At once; an existing one is left."""
        self._topics.setdefault(name, partitions)
        if self._url is not None:
            with psycopg.connect(self._url) as connection:
                connection.execute(
                    "INSERT INTO topic VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, partitions)
                )

    def delete(self, name: str) -> None:
        """Its batches stay."""
        self._topics.pop(name, None)
        if self._url is not None:
            with psycopg.connect(self._url) as connection:
                connection.execute("DELETE FROM topic WHERE name = %s", [name])


class Connection(asyncio.BufferedProtocol):
    """Requests are answered as soon as they can be; clients wait for what has to come first."""

    def __init__(self, least: Least) -> None:
        self._least = least
        self._framer = Framer(_MAX_FRAME, least.scratch)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._framer.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._framer.buffer_updated(nbytes):
            self._serve(frame)

    def _send(self, header: RequestHeader, response: Any) -> None:
        if not self._transport.is_closing():
            parts = codec.encode_response(response, header.api_version, header.correlation_id)
            self._transport.writelines(parts)

    def _serve(self, frame: memoryview) -> None:
        header = codec.decode_header(frame)
        if header.api_key == _API_VERSIONS:
            self._serve_api_versions(header)
            return
        request = codec.decode_body(header, frame)
        if header.api_key == _PRODUCE:
            self._serve_produce(header, request)
        elif header.api_key == _JOIN:
            self._serve_join(header, request)
        elif header.api_key == _END:
            self._serve_end(header, request)
        else:
            self._send(header, _OTHERS[header.api_key](request, self._least))

    def _serve_api_versions(self, header: RequestHeader) -> None:
        kind = codec.ApiVersionsResponse
        is_known = header.api_version <= _VERSIONS[_API_VERSIONS]
        version = header.api_version if is_known else 0
        keys = [
            kind.ApiVersion(api_key=key, min_version=0, max_version=newest)
            for key, newest in _VERSIONS.items()
        ]
        response = kind(error_code=0 if is_known else _UNSUPPORTED_VERSION, api_keys=keys)
        self._send(RequestHeader(_API_VERSIONS, version, header.correlation_id, "", 0), response)

    def _serve_produce(self, header: RequestHeader, request: Any) -> None:
        least = self._least
        topic_kind = codec.ProduceResponse.TopicProduceResponse
        kind = topic_kind.PartitionProduceResponse
        batches, topics = [], []
        for topic in request.topic_data:
            answers = []
            for part in topic.partition_data:
                batches.append((least.log(topic.name, part.index), part.records))
                answers.append(
                    made(
                        kind,
                        index=part.index,
                        error_code=0,
                        base_offset=0,
                        log_append_time_ms=-1,
                        log_start_offset=0,
                        error_message=None,
                    )
                )
            topics.append(topic_kind(name=topic.name, partition_responses=answers))
        response = codec.ProduceResponse(responses=topics)
        if least.store is None:
            self._send(header, response)
            return

        def answer() -> None:
            self._send(header, response)

        if request.transactional_id is not None:
            producer_id = int.from_bytes(batches[0][1][_PRODUCER_ID], "big")
            if (announced := least.announced.get(producer_id)) is not None:
                announced.batches += batches
                announced.answers.append(answer)
                if len(announced.batches) == len(announced.logs):
                    del least.announced[producer_id]
                    self._put(announced.batches, announced.answers)
                return
        self._put(batches, [answer])

    def _put(
        self, batches: Sequence[tuple[int, Payload]], answers: Sequence[Callable[[], None]]
    ) -> None:
        def tell() -> None:
            for answer in answers:
                answer()

        assert self._least.store is not None
        payload = [records for _, records in batches]
        self._least.store.put(_Write([log for log, _ in batches], payload, tell))

    def _serve_join(self, header: RequestHeader, request: Any) -> None:
        least = self._least
        topic_kind = codec.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        kind = topic_kind.AddPartitionsToTxnPartitionResult
        topics = request.v3_and_below_topics
        response = codec.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                topic_kind(
                    name=topic.name,
                    results_by_partition=[
                        made(kind, partition_index=number, partition_error_code=0)
                        for number in topic.partitions
                    ],
                )
                for topic in topics
            ]
        )
        if least.store is None:
            self._send(header, response)
            return
        producer_id = request.v3_and_below_producer_id
        logs = [least.log(topic.name, number) for topic in topics for number in topic.partitions]
        # Those that come here: the others' batches go to their leaders.
        led = [
            least.log(topic.name, number)
            for topic in topics
            for number in topic.partitions
            if least.leader(number) == least.number
        ]
        if led:
            least.announced[producer_id] = _Announced(led)
        least.joined[producer_id] = [*least.joined.get(producer_id, ()), *logs]
        joining = asyncio.ensure_future(least.store.join(producer_id, logs))
        joining.add_done_callback(lambda _: self._send(header, response))

    def _serve_end(self, header: RequestHeader, request: Any) -> None:
        store = self._least.store
        response = codec.EndTxnResponse(error_code=0)
        if store is None:
            self._send(header, response)
            return
        producer_id = request.producer_id
        logs = self._least.joined.pop(producer_id, ())
        store.put(_Write(logs, [_MARKER], lambda: self._send(header, response), producer_id))


def _metadata(request: Any, least: Least) -> Any:
    kind = codec.MetadataResponse
    topic_kind = kind.MetadataResponseTopic
    known = least.topics
    names = known if request.topics is None else [topic.name for topic in request.topics]
    return kind(
        brokers=[
            kind.MetadataResponseBroker(node_id=number, host=host, port=port)
            for number, (host, port) in enumerate(least.addresses, 1)
        ],
        cluster_id="least",
        controller_id=1,
        topics=[
            topic_kind(
                error_code=0 if name in known else 3,  # UNKNOWN_TOPIC_OR_PARTITION
                name=name,
                partitions=[
                    topic_kind.MetadataResponsePartition(
                        error_code=0,
                        partition_index=number,
                        leader_id=least.leader(number) + 1,
                        replica_nodes=[least.leader(number) + 1],
                        isr_nodes=[least.leader(number) + 1],
                        offline_replicas=[],
                    )
                    for number in range(known.get(name, 0))
                ],
            )
            for name in names
        ],
    )


def _create(request: Any, least: Least) -> Any:
    kind = codec.CreateTopicsResponse
    for topic in request.topics:
        least.create(topic.name, topic.num_partitions)
    return kind(topics=[kind.CreatableTopicResult(name=t.name) for t in request.topics])


def _delete(request: Any, least: Least) -> Any:
    kind = codec.DeleteTopicsResponse
    for name in request.topic_names:
        least.delete(name)
    return kind(responses=[kind.DeletableTopicResult(name=name) for name in request.topic_names])


def _coordinator(request: Any, least: Least) -> Any:
    number = zlib.crc32(request.key.encode()) % len(least.addresses)
    host, port = least.addresses[number]
    return codec.FindCoordinatorResponse(node_id=number + 1, host=host, port=port)


def _producer_id(_: Any, least: Least) -> Any:
    return codec.InitProducerIdResponse(producer_id=next(least.ids), producer_epoch=0)


_OTHERS: Final[Mapping[int, Callable[[Any, Least], Any]]] = {
    _METADATA: _metadata,
    _FIND_COORDINATOR: _coordinator,
    _CREATE: _create,
    _DELETE: _delete,
    _INIT: _producer_id,
}


async def _make_tables(server: EmbeddedPostgres) -> None:
    async with await psycopg.AsyncConnection.connect(server.url) as connection:
        await connection.execute(_TABLES)


async def serve(addresses: Sequence[str], number: int, server: EmbeddedPostgres | None) -> None:
    """Until the process ends. number: of this process, by its address. server: where to store;
    None: nothing is stored."""
    store = await Store.open(server, number) if server else None
    least = Least(addresses, number, store, server.url if server else None)
    loop = asyncio.get_running_loop()
    host, port = least.addresses[number]
    listener = await loop.create_server(lambda: Connection(least), host, port)
    gc.freeze()
    await listener.serve_forever()


@contextlib.contextmanager
def started_least(home: Path, kind: str) -> Iterator[Broker]:
    """One of KINDS on free loopback ports, with its database under `home`."""
    home.mkdir(exist_ok=True)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2 if kind == "two-storing" else 1)]
    data = home / "data"
    program = [sys.executable, "-m", "bench.peer.least", "--listen", *addresses]
    stored = [] if kind == "answering" else ["--data", str(data)]
    process = subprocess.Popen([*program, *stored], text=True, start_new_session=True)
    try:
        for address in addresses:
            wait_until_ready(address, process, patience_s=60)
        postmaster = postmaster_of(home)
        processes = {"gateway": ProcessGroup(process.pid, tuple(filter(None, [postmaster])))}
        if postmaster:
            processes["postgres"] = ProcessGroup(postmaster)
        url = EmbeddedPostgres(data).url if stored else None
        yield Broker(f"least-{kind}", addresses[0], processes, database_url=url, serves=_SERVES)
    finally:
        stop_process(process)


@contextlib.contextmanager
def _others(options: argparse.Namespace) -> Iterator[None]:
    """The processes at the other addresses, of the first one."""
    arguments = [sys.executable, *sys.orig_argv[1:]]
    others = [
        subprocess.Popen([*arguments, "--number", str(number)], text=True)
        for number in range(1, len(options.listen))
    ]
    try:
        yield
    finally:
        for other in others:
            stop_process(other)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="The least a gateway in Python could do.")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", nargs="+")
    parser.add_argument("--data", type=Path, metavar="DIR", help="without: nothing is stored")
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
        server = EmbeddedPostgres(options.data) if options.data else None
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        if server and options.number == 0:
            stack.enter_context(server)
            runner.run(_make_tables(server))
            stack.enter_context(_others(options))
        runner.run(serve(options.listen, options.number, server))


if __name__ == "__main__":
    main()

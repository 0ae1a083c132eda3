"""A connection over real sockets: order, back-pressure, bad input, slow clients, shutdown."""

import asyncio
import random
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import psutil
import pytest
from structlog.testing import capture_logs

from core.quota.entities import QuotaEntity, QuotaKey
from core.quota.rules import QuotaRules
from core.security.listeners import ClientAuth
from core.security.principal import Principal
from core.security.principal_mapping import read_mapping
from gateway.kafka.api import CLOSE_CONNECTION, Registry
from gateway.kafka.codec import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
    StageRecordsRequest,
    StageRecordsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from gateway.kafka.connection import ConnectionLimits, KafkaFrontEnd
from gateway.kafka.context import RequestContext, Services
from gateway.listener import Listener
from gateway.request_memory import RequestMemory
from gateway.runtime.quotas import Quotas
from gateway.runtime.throttling import Throttles
from gateway.runtime.topics.configs import Configs
from gateway.tls import TlsContext, TlsFiles
from tests.certificates import Authority
from tests.gateway.event_loops import on_every_loop

LIMITS = ConnectionLimits()
SERVICES = cast(Services, object())  # the test's handlers ask no service


@dataclass
class Script:
    """Handlers whose progress the test decides; it notes what happens to them."""

    registry: Registry = field(default_factory=Registry)
    started: list[Any] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)
    cancelled: list[Any] = field(default_factory=list)
    gates: dict[Any, asyncio.Event] = field(default_factory=dict)
    contexts: list[RequestContext] = field(default_factory=list)
    fetch_bytes: int = 0

    def __post_init__(self) -> None:
        self.registry.api(
            0,
            versions=range(3, 14),
            advertised=range(14),
            runs_side_by_side=True,
            brings_records=True,
        )(self.produce)
        self.registry.api(1, versions=range(4, 19), is_long_poll=True)(self.fetch)
        self.registry.api(
            2,
            versions=range(1, 12),
            runs_side_by_side=True,
            comes_in_bursts=lambda request: request.replica_id >= 50,
        )(self.offsets)
        self.registry.api(3, versions=range(14))(self.metadata)
        self.registry.api(11, versions=range(10), is_long_poll=True)(self.join)
        self.registry.api(14, versions=range(6), is_long_poll=True)(self.sync)
        self.registry.api(10_000, versions=range(1), runs_side_by_side=True)(self.stage)
        self.registry.api(18, versions=range(5), unsupported=self.unsupported)(self.versions)

    def gate(self, name: Any) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def work(self, name: Any) -> None:
        self.started.append(name)
        try:
            if name in self.gates:
                await self.gates[name].wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        self.ended.append(name)

    async def produce(self, request: ProduceRequest, ctx: RequestContext) -> Any:
        await self.work(request.transactional_id)
        if request.transactional_id == "bug":
            raise RuntimeError("a bug in a handler")
        if request.acks == 0:
            return CLOSE_CONNECTION if request.transactional_id == "refused" else None
        return ProduceResponse(throttle_time_ms=request.timeout_ms)

    async def fetch(self, request: FetchRequest, ctx: RequestContext) -> Any:
        await self.work(request.max_wait_ms if request.max_wait_ms else "fetch")
        if request.max_wait_ms == 7777:
            await asyncio.sleep(60)
        if request.max_wait_ms == 6666:
            assert ctx.behind is not None
            await ctx.behind.arrival()
        records = memoryview(bytes(self.fetch_bytes))
        partition = FetchResponse.FetchableTopicResponse.PartitionData(
            partition_index=0, records=[records]
        )
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
        return FetchResponse(responses=[topic], session_id=request.session_id)

    async def offsets(self, request: ListOffsetsRequest, ctx: RequestContext) -> Any:
        await self.work(("offsets", request.replica_id))
        return ListOffsetsResponse(topics=[])

    async def metadata(self, request: MetadataRequest, ctx: RequestContext) -> Any:
        self.contexts.append(ctx)
        name = request.topics[0].name if request.topics else "all"
        await self.work(name)
        return MetadataResponse(brokers=[], cluster_id=name, controller_id=1, topics=[])

    async def join(self, request: JoinGroupRequest, ctx: RequestContext) -> Any:
        await self.work(request.group_id)
        return JoinGroupResponse(members=[])

    async def sync(self, request: SyncGroupRequest, ctx: RequestContext) -> Any:
        await self.work(request.group_id)
        return SyncGroupResponse(assignment=b"".join(e.assignment for e in request.assignments))

    async def versions(self, request: ApiVersionsRequest, ctx: RequestContext) -> Any:
        return ApiVersionsResponse(error_code=0, api_keys=[])

    async def stage(self, request: StageRecordsRequest, ctx: RequestContext) -> Any:
        await self.work(request.first_batch)
        return StageRecordsResponse(staged=request.first_batch)

    @staticmethod
    def unsupported() -> Any:
        return ApiVersionsResponse(error_code=35, api_keys=[])


@pytest.fixture
def script() -> Script:
    return Script()


@asynccontextmanager
async def serving(
    script: Script,
    limits: ConnectionLimits = LIMITS,
    tls: Callable[[], ssl.SSLContext] | None = None,
    **options: Any,
) -> AsyncIterator[Listener]:
    memory = RequestMemory(limits)
    front_end = KafkaFrontEnd(script.registry, SERVICES, limits, memory, **options)
    listener = Listener(front_end, "127.0.0.1", 0, limits, tls)
    await listener.start()
    try:
        yield listener
    finally:
        for gate in script.gates.values():
            gate.set()
        await listener.shutdown(5)
        await front_end.drain(5)
        assert memory.held_bytes == 0, "every byte of every request was given back"


@dataclass
class Client:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *requests: bytes) -> None:
        self.writer.write(b"".join(requests))

    async def receive(self, timeout_s: float = 30) -> tuple[int, bytes]:
        """The next answer: correlation id and what follows it."""
        async with asyncio.timeout(timeout_s):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            frame = await self.reader.readexactly(size)
        return struct.unpack_from(">i", frame)[0], frame[4:]

    async def is_closed(self, timeout_s: float = 30) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True


@asynccontextmanager
async def connected(listener: Listener, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1",
        listener.port,
        limit=1 << 20,
        ssl=tls,
        server_hostname="localhost" if tls else None,
    )
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        await asyncio.sleep(0)


def framed(message: Any, version: int, correlation_id: int, client_id: str = "test") -> bytes:
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=client_id)
    return bytes(message.encode(version=version, header=True, framed=True))


def produce(correlation_id: int, name: str | None = None, acks: int = -1) -> bytes:
    request = ProduceRequest(
        transactional_id=name, acks=acks, timeout_ms=correlation_id, topic_data=[]
    )
    return framed(request, 9, correlation_id)


def stage(correlation_id: int) -> bytes:
    request = StageRecordsRequest(token=UUID(int=1), first_batch=correlation_id, partitions=[])
    return framed(request, 0, correlation_id)


def metadata(correlation_id: int, topic: str = "m") -> bytes:
    topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
    return framed(MetadataRequest(topics=topics), 5, correlation_id)


def fetch(correlation_id: int, max_wait_ms: int = 0) -> bytes:
    request = FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, topics=[], forgotten_topics_data=[]
    )
    return framed(request, 11, correlation_id)


def join(correlation_id: int, name: str) -> bytes:
    request = JoinGroupRequest(group_id=name, protocols=[])
    return framed(request, 5, correlation_id)


def sync(correlation_id: int, name: str, assignment: bytes = b"") -> bytes:
    assignments = [
        SyncGroupRequest.SyncGroupRequestAssignment(member_id="m", assignment=assignment)
    ]
    return framed(SyncGroupRequest(group_id=name, assignments=assignments), 3, correlation_id)


async def eventually(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


# Order.


@on_every_loop
async def test_pipelined_requests_are_answered_in_order(script: Script) -> None:
    kinds = [produce, metadata, fetch]
    requests = [random.Random(i).choice(kinds)(i) for i in range(200)]
    async with serving(script) as listener, connected(listener) as client:
        client.send(*requests)
        assert [(await client.receive())[0] for _ in range(200)] == list(range(200))


@on_every_loop
async def test_produce_requests_run_side_by_side_and_start_in_order(script: Script) -> None:
    names = [f"p{i}" for i in range(10)]
    script.gate("p0")
    async with serving(script) as listener, connected(listener) as client:
        client.send(*(produce(i, name) for i, name in enumerate(names)))
        await eventually(lambda: len(script.ended) == 9)
        assert script.started == names, "all have started, in order, though the first waits"
        with pytest.raises(TimeoutError):
            await client.receive(0.05)
        script.gates["p0"].set()
        assert [(await client.receive())[0] for _ in names] == list(range(10))


async def test_stage_requests_run_side_by_side_but_not_beside_produce_requests(
    script: Script,
) -> None:
    script.gate("p0")
    script.gate(1)
    async with serving(script) as listener, connected(listener) as client:
        client.send(produce(0, "p0"), stage(1), stage(2), produce(3, "p3"))
        await eventually(lambda: script.started == ["p0"])
        script.gates["p0"].set()
        await eventually(lambda: script.ended == ["p0", 2])
        assert script.started == ["p0", 1, 2]
        script.gates[1].set()
        assert [(await client.receive())[0] for _ in range(4)] == [0, 1, 2, 3]


@on_every_loop
async def test_another_request_waits_for_the_produce_requests_before_it(script: Script) -> None:
    script.gate("p0")
    async with serving(script) as listener, connected(listener) as client:
        client.send(produce(0, "p0"), metadata(1), produce(2, "p2"))
        await eventually(lambda: script.started == ["p0"])
        await asyncio.sleep(0.05)
        assert script.started == ["p0"]
        script.gates["p0"].set()
        assert [(await client.receive())[0] for _ in range(3)] == [0, 1, 2]
        assert script.started == ["p0", "m", "p2"]


@on_every_loop
async def test_produce_waits_for_another_request_before_it(script: Script) -> None:
    script.gate("m")
    async with serving(script) as listener, connected(listener) as client:
        client.send(metadata(0), produce(1, "p1"))
        await eventually(lambda: script.started == ["m"])
        await asyncio.sleep(0.05)
        assert script.started == ["m"]
        script.gates["m"].set()
        assert [(await client.receive())[0] for _ in range(2)] == [0, 1]


@on_every_loop
async def test_no_answer_to_acks_0(script: Script) -> None:
    async with serving(script) as listener, connected(listener) as client:
        client.send(produce(0, acks=0), metadata(1))
        assert (await client.receive())[0] == 1


@on_every_loop
async def test_refused_acks_0_closes_the_connection_after_the_answers_before_it(
    script: Script,
) -> None:
    async with serving(script) as listener, connected(listener) as client:
        client.send(metadata(0), produce(1, "refused", acks=0), metadata(2))
        assert (await client.receive())[0] == 0
        assert await client.is_closed()
        assert "m" in script.ended
        assert len(script.started) == 2, "nothing after it was served"


@on_every_loop
async def test_in_flight_limit_stops_reading_and_resumes(script: Script) -> None:
    limits = replace(LIMITS, max_in_flight_requests_per_connection=4)
    script.gate("held")
    async with serving(script, limits) as listener, connected(listener) as client:
        client.send(*(produce(i, "held") for i in range(50)))
        await eventually(lambda: len(script.started) == 4)
        await asyncio.sleep(0.05)
        assert len(script.started) == 4
        script.gates["held"].set()
        assert [(await client.receive())[0] for _ in range(50)] == list(range(50))


# Versions.


@on_every_loop
async def test_unknown_version_of_api_versions_is_answered_in_version_0(script: Script) -> None:
    # header v2 (flexible), version 999, and a body nobody understands
    request = struct.pack(">hhih", 18, 999, 5, 2) + b"me" + b"\0" + b"\xff" * 9
    async with serving(script) as listener, connected(listener) as client:
        client.send(struct.pack(">i", len(request)) + request, metadata(6))
        assert await client.receive() == (5, struct.pack(">hi", 35, 0))
        assert (await client.receive())[0] == 6, "the connection goes on"


@pytest.mark.parametrize("version", [3, 4])
@on_every_loop
async def test_api_versions_is_answered_with_header_version_0(script: Script, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="me", client_software_version="1.0")
    async with serving(script) as listener, connected(listener) as client:
        client.send(framed(request, version, 7), metadata(8))
        correlation_id, body = await client.receive()
        assert (correlation_id, body[:3]) == (7, b"\0\0\1"), "error code, empty compact array"
        await client.receive()
        software = script.contexts[0].client_software
        assert software is not None
        assert (software.name, software.version) == ("me", "1.0")
        assert script.contexts[0].client_id == "test"
        assert script.contexts[0].peer.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("request_bytes", "reason"),
    [
        (struct.pack(">hhih", 32_000, 0, 1, -1), "unknown API key"),
        (struct.pack(">hhih", 44, 0, 1, -1) + bytes(40), "not served"),
        (struct.pack(">hhih", 3, 99, 1, -1) + b"\0", "not served"),
        (struct.pack(">hhih", 0, 2, 1, -1) + bytes(10), "Produce v2 is not served"),
        (struct.pack(">hhih", 3, 5, 1, -1) + b"\x7f\xff\xff\xff", "cut short"),
        (b"", "header"),
        (b"\0", "header"),
    ],
    ids=["unknown key", "unserved key", "version", "Produce v2", "huge array", "empty", "1 byte"],
)
@on_every_loop
async def test_malformed_request_closes_its_connection_with_one_log_line(
    script: Script, request_bytes: bytes, reason: str
) -> None:
    async with serving(script) as listener, connected(listener) as other:
        with capture_logs() as logs:
            async with connected(listener) as client:
                client.send(metadata(0))
                client.send(struct.pack(">i", len(request_bytes)) + request_bytes, metadata(2))
                assert (await client.receive())[0] == 0
                assert await client.is_closed()
        assert [line["event"] for line in logs] == ["connection closed"]
        assert reason in logs[0]["reason"]
        assert logs[0]["peer"].startswith("127.0.0.1:")
        other.send(metadata(9))
        assert (await other.receive())[0] == 9, "nobody else is disturbed"


@pytest.mark.parametrize("size", [-1, -(2**31), LIMITS.socket_request_max_bytes + 1, 2**31 - 1])
@on_every_loop
async def test_impossible_size_closes_after_the_answers_before_it(
    script: Script, size: int
) -> None:
    script.gate("p0")
    async with serving(script) as listener, connected(listener) as client:
        with capture_logs() as logs:
            client.send(produce(0, "p0"), struct.pack(">i", size), b"xyz")
            await eventually(lambda: script.started == ["p0"])
            script.gates["p0"].set()
            assert (await client.receive())[0] == 0
            assert await client.is_closed()
        assert [line["event"] for line in logs] == ["connection closed"]
        assert str(size) in logs[0]["reason"]


@on_every_loop
async def test_a_long_client_id_does_not_fill_the_log(script: Script) -> None:
    request = framed(MetadataRequest(topics=[]), 5, 1, client_id="c" * 32_000)
    async with serving(script) as listener, connected(listener) as client:
        with capture_logs() as logs:
            client.send(request, struct.pack(">i", -1))
            assert (await client.receive())[0] == 1
            assert await client.is_closed()
        assert logs[0]["client_id"] == "c" * 100
    assert script.contexts[0].client_id == "c" * 32_000


@on_every_loop
async def test_random_bytes_disturb_nobody(script: Script) -> None:
    noise = random.Random(7)
    async with serving(script) as listener, connected(listener) as other:
        with capture_logs():
            for length in (1, 3, 4, 5, 100, 10_000, 300_000):
                async with connected(listener) as client:
                    client.send(noise.randbytes(length))
                    other.send(metadata(length))
                    assert (await other.receive())[0] == length
        await eventually(lambda: listener.connection_count == 1)


@on_every_loop
async def test_frame_cut_by_a_close_is_forgotten(script: Script) -> None:
    async with serving(script) as listener:
        async with connected(listener) as client:
            client.send(metadata(0)[:-3])
            await client.writer.drain()
            await asyncio.sleep(0.02)
        await eventually(lambda: listener.connection_count == 0)
        assert script.started == []


@on_every_loop
async def test_partial_frame_held_open_is_cut_off(script: Script) -> None:
    limits = replace(LIMITS, request_receive_timeout_ms=200)
    async with serving(script, limits) as listener, connected(listener) as idle:
        with capture_logs() as logs:
            async with connected(listener) as client:
                client.send(metadata(0), metadata(1)[:9])
                assert (await client.receive())[0] == 0
                assert await client.is_closed()
        assert "within 200 ms" in logs[0]["reason"]
        idle.send(metadata(2))
        assert (await idle.receive())[0] == 2, "a connection without a partial frame stays"


@on_every_loop
async def test_a_trickle_of_whole_requests_is_not_a_partial_frame(script: Script) -> None:
    limits = replace(LIMITS, request_receive_timeout_ms=3_000)
    stream = b"".join(metadata(i) for i in range(20))
    async with serving(script, limits) as listener, connected(listener) as client:
        for start in range(0, len(stream), 10):  # always in the middle of one, 4.5 s in all
            client.send(stream[start : start + 10])
            await asyncio.sleep(0.09)
        assert [(await client.receive())[0] for _ in range(20)] == list(range(20))


@on_every_loop
async def test_waiting_behind_back_pressure_is_not_the_clients_delay(script: Script) -> None:
    limits = replace(
        LIMITS, request_receive_timeout_ms=150, max_in_flight_requests_per_connection=1
    )
    script.gate("p0")
    async with serving(script, limits) as listener, connected(listener) as client:
        client.send(produce(0, "p0"), metadata(1)[:9])
        await eventually(lambda: script.started == ["p0"])
        await asyncio.sleep(0.4)
        client.send(metadata(1)[9:])
        script.gates["p0"].set()
        assert [(await client.receive())[0] for _ in range(2)] == [0, 1]


@on_every_loop
async def test_idle_connection_is_closed(script: Script) -> None:
    limits = replace(LIMITS, connections_max_idle_ms=500)
    async with serving(script, limits) as listener, connected(listener) as client:
        client.send(metadata(0))
        assert (await client.receive())[0] == 0
        assert await client.is_closed()


@on_every_loop
async def test_waiting_for_an_answer_is_not_idle(script: Script) -> None:
    limits = replace(LIMITS, connections_max_idle_ms=400)
    script.gate("m")
    async with serving(script, limits) as listener, connected(listener) as client:
        client.send(metadata(0))
        await asyncio.sleep(1)
        script.gates["m"].set()
        assert (await client.receive())[0] == 0


# Handlers that fail, clients that leave.


@on_every_loop
async def test_bug_in_a_handler_is_logged_once_and_closes_its_connection(script: Script) -> None:
    async with serving(script) as listener, connected(listener) as other:
        with capture_logs() as logs:
            async with connected(listener) as client:
                client.send(produce(0, "fine"), produce(1, "bug"), metadata(2))
                assert (await client.receive())[0] == 0
                assert await client.is_closed()
        assert [line["event"] for line in logs] == ["request failed"]
        assert isinstance(logs[0]["exc_info"][1], RuntimeError)
        other.send(metadata(3))
        assert (await other.receive())[0] == 3


@on_every_loop
async def test_unencodable_response_is_logged_and_closes(script: Script) -> None:
    async def broken(request: Any, ctx: RequestContext) -> Any:
        return MetadataResponse(brokers=None, topics=[])

    registry = Registry()
    registry.api(3, versions=range(14))(broken)
    script.registry = registry
    async with serving(script) as listener, connected(listener) as client:
        with capture_logs() as logs:
            client.send(metadata(0))
            assert await client.is_closed()
        assert [line["event"] for line in logs] == ["response cannot be encoded"]


LONG_POLLS = pytest.mark.parametrize(
    ("name", "request_bytes"),
    [(5000, fetch(0, max_wait_ms=5000)), ("j", join(0, "j")), ("s", sync(0, "s"))],
    ids=["fetch", "join", "sync"],
)


@LONG_POLLS
@on_every_loop
async def test_long_poll_ends_when_its_client_leaves(
    script: Script, name: Any, request_bytes: bytes
) -> None:
    script.gate(name)
    async with serving(script) as listener:
        async with connected(listener) as client:
            client.send(request_bytes)
            await eventually(lambda: script.started == [name])
        await eventually(lambda: script.cancelled == [name])


@on_every_loop
async def test_a_fetch_hears_of_what_comes_behind_it_but_not_of_another_fetch(
    script: Script,
) -> None:
    async with serving(script) as listener, connected(listener) as client:
        client.send(fetch(0, max_wait_ms=6666))
        await eventually(lambda: script.started == [6666])
        client.send(fetch(1, max_wait_ms=5))
        await asyncio.sleep(0.1)
        assert script.started == [6666]
        client.send(metadata(2, "behind"))
        assert [(await client.receive())[0] for _ in range(3)] == [0, 1, 2]
        assert script.started == [6666, 5, "behind"]


@on_every_loop
async def test_a_join_that_waits_holds_up_its_own_connection_only(script: Script) -> None:
    limits = replace(LIMITS, connections_max_idle_ms=2_000)
    script.gate("j")
    async with (
        serving(script, limits) as listener,
        connected(listener) as member,
        connected(listener) as other,
    ):
        member.send(join(0, "j"), metadata(1, "later"))
        await eventually(lambda: script.started == ["j"])
        for i in range(60):  # longer than a connection may idle
            other.send(metadata(i))
            assert (await other.receive())[0] == i
            await asyncio.sleep(0.04)
        assert "later" not in script.started
        script.gates["j"].set()
        assert [(await member.receive())[0] for _ in range(2)] == [0, 1]


@on_every_loop
async def test_an_assignment_of_50_mb(script: Script) -> None:
    assignment = bytes(50 << 20)
    async with serving(script) as listener, connected(listener) as leader:
        leader.send(sync(0, "s", assignment), metadata(1))
        number, answer = await leader.receive()
        assert number == 0
        assert len(answer) > len(assignment)
        assert (await leader.receive())[0] == 1


@on_every_loop
async def test_produce_in_flight_survives_its_client(script: Script) -> None:
    script.gate("p0")
    async with serving(script) as listener:
        async with connected(listener) as client:
            client.send(produce(0, "p0"))
            await eventually(lambda: script.started == ["p0"])
        await eventually(lambda: listener.connection_count == 0)
        script.gates["p0"].set()
        await eventually(lambda: script.ended == ["p0"])
        assert script.cancelled == []


# Memory.


@on_every_loop
async def test_slow_reader_is_not_served_ahead_of_itself(script: Script) -> None:
    script.fetch_bytes = 4 * 1024 * 1024
    limits = replace(LIMITS, max_in_flight_requests_per_connection=50)
    async with serving(script, limits) as listener, connected(listener) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*(fetch(i) for i in range(40)))
        await eventually(lambda: len(script.ended) > 0)
        await asyncio.sleep(0.2)
        served = len(script.ended)
        assert served < 10, "40 answers of 4 MiB must not pile up"
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await client.receive())[0] for _ in range(40)] == list(range(40))


@on_every_loop
async def test_announced_but_unsent_frames_cost_no_memory(script: Script) -> None:
    count = 1_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * count), hard))
    async with serving(script) as listener, connected(listener) as other:
        before = psutil.Process().memory_info().rss
        slow: list[socket.socket] = []
        loop = asyncio.get_running_loop()
        try:
            for _ in range(count):
                sock = socket.socket()
                sock.setblocking(False)
                slow.append(sock)
                await loop.sock_connect(sock, ("127.0.0.1", listener.port))
                await loop.sock_sendall(
                    sock, struct.pack(">ihh", LIMITS.socket_request_max_bytes, 0, 9)
                )
            await eventually(lambda: listener.connection_count == count + 1)
            other.send(metadata(1))
            assert (await other.receive())[0] == 1
            grown = psutil.Process().memory_info().rss - before
            assert grown < 60 * 1024 * 1024, f"{grown / count:.0f} bytes for each slow client"
        finally:
            for sock in slow:
                sock.close()
        await eventually(lambda: listener.connection_count == 1)


STUCK = "it holds the largest part of the memory for requests that are stuck"


async def others_are_served(
    script: Script,
    *requests: bytes,
    opened: str | None = None,
    throttles: Throttles | None = None,
) -> None:
    """Whoever sends these, and takes no answer. opened: a gate they wait at until all is held."""
    limits = replace(LIMITS, socket_request_max_bytes=100_000, queued_max_request_bytes=400_000)
    with capture_logs() as logs:
        async with AsyncExitStack() as stack:
            listener = await stack.enter_async_context(serving(script, limits, throttles=throttles))
            other = await stack.enter_async_context(connected(listener))
            for _ in range(6):
                client = await stack.enter_async_context(connected(listener))
                client.writer.transport.pause_reading()  # type: ignore[attr-defined]
                client.send(*requests)
            await eventually(lambda: any("used up" in line["event"] for line in logs))
            if opened is not None:
                await asyncio.sleep(0.1)
                assert [line["event"] for line in logs] == [logs[0]["event"]], "nobody was cut"
                script.gates[opened].set()
            await eventually(lambda: any(line["event"] == "connection closed" for line in logs))
            other.send(framed(MetadataRequest(topics=[]), 5, 1, "other"))
            assert (await other.receive(5))[0] == 1
    reasons = [line["reason"] for line in logs if line["event"] == "connection closed"]
    assert set(reasons) == {STUCK}
    assert len(reasons) < 6, "no more are cut than must be"


@on_every_loop
async def test_who_is_held_by_a_quota_cannot_take_all_memory(script: Script) -> None:
    """Though what it holds was read before the hold began."""
    rules = QuotaRules({QuotaEntity(client_id="test"): {QuotaKey.PRODUCER_BYTE_RATE: 0.1}})
    quotas = SimpleNamespace(rules=rules, watch=lambda on_change: on_change())
    configs = SimpleNamespace(broker_int=lambda name: 1)
    throttles = Throttles(cast(Quotas, quotas), cast(Configs, configs))
    script.gate("m")
    requests = metadata(0), produce(1), sync(2, "g", bytes(90_000))
    # The first of them starts what owes minutes, the moment it is answered.
    await others_are_served(script, *requests, opened="m", throttles=throttles)


@on_every_loop
async def test_who_takes_no_answers_cannot_take_all_memory(script: Script) -> None:
    script.fetch_bytes = 20 * 1024 * 1024
    await others_are_served(script, fetch(0), sync(1, "g", bytes(90_000)))


@on_every_loop
async def test_who_waits_for_others_cannot_take_all_memory(script: Script) -> None:
    """For others whom nobody reads, then."""
    script.gate("waits")
    await others_are_served(script, join(0, "waits"), sync(1, "g", bytes(90_000)))


@on_every_loop
async def test_parts_of_requests_cannot_take_all_memory(script: Script) -> None:
    limits = replace(LIMITS, socket_request_max_bytes=1_000_000, queued_max_request_bytes=4_000_000)
    part = struct.pack(">i", 1_000_000) + bytes(900_000)
    async with serving(script, limits) as listener, connected(listener) as other:
        with capture_logs() as logs:
            hoarders = [
                await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(12)
            ]
            for _, writer in hoarders:
                writer.write(part)
            await eventually(lambda: any(line["event"] == "connection closed" for line in logs))
            await asyncio.sleep(0.1)
            other.send(metadata(1))
            assert (await other.receive())[0] == 1, "somebody else is served meanwhile"
            for _, writer in hoarders:
                writer.transport.abort()
            await eventually(lambda: listener.connection_count == 1)
        reasons = {line["reason"] for line in logs if line["event"] == "connection closed"}
        assert reasons == {STUCK}


@on_every_loop
async def test_full_request_memory_pauses_reading_until_answers_free_it(script: Script) -> None:
    limits = replace(LIMITS, socket_request_max_bytes=1_000, queued_max_request_bytes=2_000)
    script.gate("p" * 400)
    async with (
        serving(script, limits) as listener,
        connected(listener) as client,
        connected(listener) as other,
    ):
        client.send(*(produce(i, "p" * 400) for i in range(20)))
        await eventually(lambda: len(script.started) >= 4)
        other.send(metadata(1))
        with pytest.raises(TimeoutError):
            await other.receive(0.1)
        script.gates["p" * 400].set()
        assert (await other.receive())[0] == 1
        assert [(await client.receive())[0] for _ in range(20)] == list(range(20))


@on_every_loop
async def test_large_frames_arrive_whole(script: Script) -> None:
    sizes = [1, 10_000, 30_000]  # bytes of a transactional id; a string holds 32,767
    names = ["n" * size for size in sizes]
    async with serving(script) as listener, connected(listener) as client:
        client.send(*(produce(i, name) for i, name in enumerate(names * 20)))
        assert [(await client.receive())[0] for _ in range(60)] == list(range(60))
        assert script.ended == names * 20


@on_every_loop
async def test_large_frames_and_answers_over_tls(script: Script, certificate: Path) -> None:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(certificate)
    tls = ssl.create_default_context(cafile=certificate.with_suffix(".crt"))
    script.fetch_bytes = 3_000_000
    names = ["n" * size for size in (1, 30_000, 20_000)] * 10
    async with serving(script, tls=lambda: server) as listener, connected(listener, tls) as client:
        client.send(*(produce(i, name) for i, name in enumerate(names)), fetch(30), metadata(31))
        answers = [await client.receive() for _ in range(32)]
        assert [correlation_id for correlation_id, _ in answers] == list(range(32))
        assert len(answers[30][1]) > 3_000_000
        assert script.ended[:30] == names


# Certificates.


@on_every_loop
async def test_whom_no_rule_has_a_name_for_is_closed(script: Script, tmp_path: Path) -> None:
    """Others are who their certificate says, with each request."""
    authority = Authority.made(tmp_path)
    server = authority.write("server.pem", "CN=x", host="localhost")
    files = TlsFiles(server, server, authority.write_own(), ClientAuth.REQUESTED)
    names = read_mapping("RULE:^CN=([a-z]+)$/$1/U")
    async with serving(script, tls=TlsContext(files), names=names) as listener:
        for subject, user in (("CN=alice", "ALICE"), ("CN=Alice", None), ("", "ANONYMOUS")):
            client_tls = ssl.create_default_context(cafile=files.client_ca)
            if subject:
                client_tls.load_cert_chain(authority.write("client.pem", subject))
            with capture_logs() as logs:
                async with connected(listener, client_tls) as client:
                    if user is None:
                        assert await client.is_closed()
                    else:
                        client.send(metadata(1))
                        await client.receive()
                        assert script.contexts[-1].principal == Principal(user)
            reasons = [line["reason"] for line in logs if line["event"] == "connection closed"]
            expected = "no rule of ssl.principal.mapping.rules fits its certificate's name CN=Alice"
            assert reasons == ([expected] if user is None else [])


# The end.


@on_every_loop
async def test_shutdown_finishes_what_is_in_flight(script: Script) -> None:
    script.gate("p0")
    async with serving(script) as listener, connected(listener) as client:
        client.send(produce(0, "p0"), produce(1, "p1"))
        await eventually(lambda: len(script.started) == 2)
        ending = asyncio.create_task(listener.shutdown(5))
        await asyncio.sleep(0.05)
        client.send(metadata(2))
        assert not ending.done()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", listener.port)
        script.gates["p0"].set()
        assert [(await client.receive())[0] for _ in range(2)] == [0, 1]
        assert await client.is_closed()
        await ending
        assert script.started == ["p0", "p1"]


@LONG_POLLS
@on_every_loop
async def test_shutdown_does_not_wait_for_long_polls_and_idle_clients(
    script: Script, name: Any, request_bytes: bytes
) -> None:
    script.gate(name)
    async with serving(script) as listener, connected(listener) as idle, connected(listener) as one:
        one.send(request_bytes)
        await eventually(lambda: script.started == [name])
        async with asyncio.timeout(30):
            await listener.shutdown(60)
        assert await idle.is_closed()
        assert await one.is_closed()
        assert script.cancelled == [name]


@on_every_loop
async def test_shutdown_ends_at_its_deadline(script: Script) -> None:
    script.gate("p0")
    async with serving(script) as listener, connected(listener) as client:
        client.send(produce(0, "p0"))
        await eventually(lambda: script.started == ["p0"])
        with capture_logs() as logs:
            async with asyncio.timeout(30):
                await listener.shutdown(0.1)
        assert logs[0]["event"] == "connections cut at shutdown"
        assert await client.is_closed()


@on_every_loop
async def test_observer_sees_every_answer(script: Script) -> None:
    seen: list[tuple[int, int, float, int, int]] = []
    requests = [produce(0), metadata(1), produce(2, acks=0), fetch(3)]
    async with (
        serving(script, observer=lambda *call: seen.append(call)) as listener,
        connected(listener) as client,
    ):
        client.send(*requests)
        sizes = {}
        for _ in range(3):
            correlation_id, body = await client.receive()
            sizes[correlation_id] = len(body) + 8
    assert [call[:2] for call in seen] == [(0, 9), (3, 5), (0, 9), (1, 11)]
    assert [call[3] for call in seen] == [len(request) - 4 for request in requests]
    assert [call[4] for call in seen] == [sizes[0], sizes[1], 0, sizes[3]]
    assert all(0 <= call[2] < 60 for call in seen)


def list_offsets(correlation_id: int) -> bytes:
    request = ListOffsetsRequest(replica_id=correlation_id, isolation_level=0, topics=[])
    return framed(request, 7, correlation_id)


async def test_answers_to_a_burst_are_in_order_with_those_of_other_apis(script: Script) -> None:
    count = 1_000  # many times what may be in flight
    requests = [list_offsets(number) for number in range(count)]
    requests.insert(500, metadata(count, "amid"))
    async with serving(script) as listener, connected(listener) as client:
        client.send(*requests)
        order = [(await client.receive())[0] for _ in requests]
        assert order == [*range(500), count, *range(500, count)]
        client.send(list_offsets(7))
        assert (await client.receive())[0] == 7


async def test_a_burst_that_is_not_over_is_answered_when_the_broker_stops(script: Script) -> None:
    gate = script.gate(("offsets", 99))
    async with serving(script) as listener, connected(listener) as client:
        client.send(*map(list_offsets, range(100)))
        while ("offsets", 98) not in script.ended:
            await asyncio.sleep(0.005)
        stopping = asyncio.create_task(listener.shutdown(30))
        await asyncio.sleep(0)
        gate.set()
        assert [(await client.receive())[0] for _ in range(100)] == list(range(100))
        assert await client.is_closed()
        await stopping

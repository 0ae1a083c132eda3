"""Groups whose coordinator dies, stops or loses its database, under load, with stock clients."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from gateway.kafka.codec import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import Gateway, StartGateway
from tests.faults.conftest import create_topic
from tests.faults.coordination import (
    BROKER_SETTINGS,
    CLASSIC,
    HEARTBEAT_S,
    PARTITIONS,
    WAYS,
    Member,
    Wire,
    committing,
    coordinator_of,
    eventually,
)
from tests.kafka_codes import Code
from tests.variants import variants

pytestmark = pytest.mark.fault

OVERRIDES = [
    word for name, value in BROKER_SETTINGS.items() for word in ("--override", f"{name}={value}")
]

GROUP = "group"
TOPIC = "load"


@pytest.fixture
def start(server: EmbeddedPostgres, start_gateway: StartGateway) -> Callable[..., Gateway]:
    """Starts gateways over the test's server."""

    def start(**where: Any) -> Gateway:
        return start_gateway(*OVERRIDES, database_url=server.url, **where)

    return start


def bootstrap_of(gateways: list[Gateway]) -> str:
    return ",".join(each.bootstrap for each in gateways)


def wait_for_commits(members: list[Member], after: float) -> float:
    """Until every member has committed since; gives the seconds that the last one took."""
    eventually(
        lambda: all(member.first_commit_after(after) for member in members),
        "every member commits again",
    )
    firsts = [member.first_commit_after(after) for member in members]
    return max(each.ended for each in firsts if each is not None) - after


def assert_undisturbed(members: list[Member], events: list[list[tuple[str, Any]]]) -> None:
    """Nobody has lost, or been given, a partition since."""
    assert [member.events for member in members] == events


@pytest.mark.parametrize("way", variants("consumer", "classic"))
def test_members_go_on_when_their_coordinator_is_killed(
    way: str, server: EmbeddedPostgres, start: Callable[..., Gateway]
) -> None:
    """In under two session heartbeats as measured, where the machine is left to itself."""
    gateways = [start() for _ in range(3)]
    bootstrap = bootstrap_of(gateways)
    create_topic(bootstrap, TOPIC, PARTITIONS)
    took = []
    with committing(bootstrap, server.url, GROUP, TOPIC, WAYS[way]) as members:
        events = [list(member.events) for member in members]
        for _ in range(2):
            coordinator = coordinator_of(GROUP, gateways, server.url)
            coordinator.kill()
            gateways.remove(coordinator)
            took.append(wait_for_commits(members, time.monotonic()))
        assert_undisturbed(members, events)
    print(f"seconds until all went on, {way}: {took}")  # noqa: T201 - shown with -rP
    # Members are not cast out, however busy the machine is; the bound is many times what is usual.
    assert max(took) < 10 * 2 * HEARTBEAT_S


@pytest.mark.parametrize("way", variants("classic", "consumer"))
def test_members_go_on_when_their_coordinator_stops_in_order(
    way: str, server: EmbeddedPostgres, start: Callable[..., Gateway]
) -> None:
    gateways = [start() for _ in range(2)]
    bootstrap = bootstrap_of(gateways)
    create_topic(bootstrap, TOPIC, PARTITIONS)
    with committing(bootstrap, server.url, GROUP, TOPIC, WAYS[way]) as members:
        events = [list(member.events) for member in members]
        coordinator = coordinator_of(GROUP, gateways, server.url)
        assert coordinator.stop() == 0, coordinator.log()[-2000:]
        took = wait_for_commits(members, time.monotonic())
        assert_undisturbed(members, events)
    print(f"seconds until all went on, {way}: {took}")  # noqa: T201 - shown with -rP


@pytest.mark.parametrize("way", variants("consumer", "classic"))
@pytest.mark.parametrize("ending", variants("killed", "stopped"))
def test_a_restarted_broker_keeps_its_groups(
    way: str, ending: str, server: EmbeddedPostgres, start: Callable[..., Gateway]
) -> None:
    """Alone, and at the same port: members keep their partitions and their ids."""
    gateway = start()
    create_topic(gateway.bootstrap, TOPIC, PARTITIONS)
    with committing(gateway.bootstrap, server.url, GROUP, TOPIC, WAYS[way]) as members:
        events = [list(member.events) for member in members]
        before = group_rows(server.url)
        if ending == "stopped":
            assert gateway.stop() == 0, gateway.log()[-2000:]
        else:
            gateway.kill()
        start(port=gateway.port)
        took = wait_for_commits(members, time.monotonic())
        time.sleep(2 * HEARTBEAT_S)  # long enough to be told of a rebalance, if there were one
        assert_undisturbed(members, events)
        assert group_rows(server.url) == before
    print(f"seconds until all went on, {way}, {ending}: {took}")  # noqa: T201 - shown with -rP


def group_rows(database_url: str) -> list[tuple[Any, ...]]:
    """The group's generation and members, as stored."""
    with psycopg.connect(database_url, autocommit=True) as psql:
        return psql.execute(
            "SELECT generation_id, member_id, member_epoch FROM consumer_group"
            " JOIN group_member USING (group_key) ORDER BY member_id"
        ).fetchall()


@pytest.mark.parametrize("way", variants("classic", "consumer"))
def test_the_database_is_killed_under_commits(
    way: str, server: EmbeddedPostgres, start: Callable[..., Gateway]
) -> None:
    gateways = [start() for _ in range(2)]
    bootstrap = bootstrap_of(gateways)
    create_topic(bootstrap, TOPIC, PARTITIONS)
    with committing(bootstrap, server.url, GROUP, TOPIC, WAYS[way]) as members:
        for pause_s in (0.1, 2.0, 6.0):  # the last is longer than a broker's session
            server.kill()
            time.sleep(pause_s)
            server.start()
            wait_for_commits(members, time.monotonic())
    for gateway in gateways:
        assert gateway.process.poll() is None, gateway.log()[-4000:]


def test_a_stopped_coordinator_answers_nothing_when_it_goes_on(
    server: EmbeddedPostgres, start: Callable[..., Gateway]
) -> None:
    """SIGSTOP, others take over, SIGCONT: neither what it was asked before, nor what it finds in
    its sockets, is answered as by a coordinator, and nothing of it is stored."""
    gateways = [start() for _ in range(2)]
    create_topic(bootstrap_of(gateways), TOPIC, PARTITIONS)
    first = Wire(gateways[0])
    member_id, generation = form_group(first)
    former = coordinator_of(GROUP, gateways, server.url)
    assert former is gateways[0]
    assert commit(first, member_id, generation, 5) == 0

    waiting, late = Wire(former), Wire(former)
    waiting.send(join_request(""), 5, JoinGroupResponse)
    joiner = waiting.receive().member_id
    waiting.send(join_request(joiner), 5, JoinGroupResponse)  # waits for the first member
    eventually(lambda: beat(first, member_id, generation) == 27, "the group rebalances")

    former.pause()
    late.send(heartbeat_request(member_id, generation), 3, HeartbeatResponse)
    late.send(commit_request(member_id, generation, 99), 7, OffsetCommitResponse)
    late.send(join_request(member_id), 5, JoinGroupResponse)
    late.send(offset_fetch_request(), 5, OffsetFetchResponse)
    second = Wire(gateways[1])
    eventually(
        lambda: beat(second, member_id, generation) == 0, "the other broker takes the group over"
    )
    assert commit(second, member_id, generation, 7) == 0

    former.resume()
    assert late.receive().error_code == Code.NOT_COORDINATOR
    assert late.receive().topics[0].partitions[0].error_code == Code.NOT_COORDINATOR
    assert late.receive().error_code == Code.NOT_COORDINATOR
    assert late.receive().error_code == Code.NOT_COORDINATOR
    assert waiting.receive().error_code == Code.NOT_COORDINATOR
    for _ in range(20):
        assert commit(first, member_id, generation, 99) == Code.NOT_COORDINATOR
        assert beat(first, member_id, generation) == Code.NOT_COORDINATOR
        time.sleep(0.05)
    assert beat(second, member_id, generation) == 0
    assert committed(server.url) == {0: 7}

    # The next generation fences who was in the last one.
    joined = second.ask(join_request(member_id), 5, JoinGroupResponse)
    assert (joined.error_code, joined.generation_id > generation) == (0, True)
    assert commit(second, member_id, generation, 99) == Code.ILLEGAL_GENERATION
    assert committed(server.url) == {0: 7}
    for wire in (first, second, waiting, late):
        wire.close()


def test_stops_of_any_length_do_no_harm(
    server: EmbeddedPostgres, start: Callable[..., Gateway], seed: int, seconds: float
) -> None:
    """The coordinator is stopped for as long as its lease lasts, about: it may be told so by
    nobody but its own clock."""
    chance = random.Random(seed)
    gateways = [start() for _ in range(2)]
    bootstrap = bootstrap_of(gateways)
    create_topic(bootstrap, TOPIC, PARTITIONS)
    with committing(bootstrap, server.url, GROUP, TOPIC, CLASSIC) as members:
        end = time.monotonic() + seconds
        stops = 0
        while time.monotonic() < end or stops < 3:
            coordinator = coordinator_of(GROUP, gateways, server.url)
            coordinator.pause()
            time.sleep(chance.uniform(3.0, 6.0))
            coordinator.resume()
            stops += 1
            wait_for_commits(members, time.monotonic())


# --- requests, each in a version that stock clients of old still speak ---


def join_request(member_id: str) -> Any:
    protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")
    return JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=120_000,
        member_id=member_id,
        group_instance_id=None,
        protocol_type="consumer",
        protocols=[protocol],
    )


def heartbeat_request(member_id: str, generation: int) -> Any:
    return HeartbeatRequest(
        group_id=GROUP, generation_id=generation, member_id=member_id, group_instance_id=None
    )


def commit_request(member_id: str, generation: int, offset: int) -> Any:
    topic = OffsetCommitRequest.OffsetCommitRequestTopic
    partition = topic.OffsetCommitRequestPartition(
        partition_index=0,
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="",
    )
    return OffsetCommitRequest(
        group_id=GROUP,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=None,
        topics=[topic(name=TOPIC, partitions=[partition])],
    )


def offset_fetch_request() -> Any:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])
    return OffsetFetchRequest(group_id=GROUP, topics=[topic])


def form_group(wire: Wire) -> tuple[str, int]:
    """A stable group of one member; gives its id and generation."""
    member_id = wire.ask(join_request(""), 5, JoinGroupResponse).member_id
    joined = wire.ask(join_request(member_id), 5, JoinGroupResponse)
    assert joined.error_code == 0
    assignment = SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")
    synced = wire.ask(
        SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=member_id,
            group_instance_id=None,
            assignments=[assignment],
        ),
        3,
        SyncGroupResponse,
    )
    assert synced.error_code == 0
    return member_id, joined.generation_id


def beat(wire: Wire, member_id: str, generation: int) -> int:
    return int(wire.ask(heartbeat_request(member_id, generation), 3, HeartbeatResponse).error_code)


def commit(wire: Wire, member_id: str, generation: int, offset: int) -> int:
    request = commit_request(member_id, generation, offset)
    answer = wire.ask(request, 7, OffsetCommitResponse)
    return int(answer.topics[0].partitions[0].error_code)


def committed(database_url: str) -> dict[int, int]:
    with psycopg.connect(database_url, autocommit=True) as psql:
        rows = psql.execute(
            "SELECT partition, committed_offset FROM committed_offset"
            " JOIN topic_partition USING (partition_id)"
        )
        return {int(partition): int(offset) for partition, offset in rows}

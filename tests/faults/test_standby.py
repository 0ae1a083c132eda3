"""Two hosts: the primary is lost and its standby promoted, under transactions of both protocols.

Brokers have both hosts in their URL. What was acknowledged is on the standby, since commits wait
for it; a test without that shows that what is lost then is found.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.compat import confluent
from tests.conftest import StartGateway, memory, open_directory
from tests.faults.conftest import PARTITIONS, create_topic
from tests.faults.pulsar_txn_load import PulsarTxnLoad
from tests.faults.reading import read_tables
from tests.faults.replicas import WITHIN_S, Replicas
from tests.faults.test_pulsar import Cluster
from tests.faults.test_transactions_of_both import TOPIC, examine, verify
from tests.faults.txn_history import TxnFlaw
from tests.faults.txn_load import LibrdkafkaTxnLoad
from tests.variants import variants

pytestmark = pytest.mark.fault

WAYS = ("killed", "behind", "shut_down", "paused")
CAMPAIGNS = variants(
    pytest.param(("killed", "paused"), id="some"),
    pytest.param(WAYS, id="each"),
    *(pytest.param((each,), id=each) for each in WAYS),
)
GOES_ON_WITHIN_S = 90.0

Loads = tuple[LibrdkafkaTxnLoad, PulsarTxnLoad]


class TwoHosts(Cluster):
    """Brokers over a primary and a standby, and the ways in which the primary may be lost.

    recovery_s: by way, of each failover, seconds from the promotion to the first commit that a
    client of each protocol was told of. all_s: until each client was told of one.
    """

    def __init__(
        self,
        replicas: Replicas,
        start: StartGateway,
        ports: Callable[[int], list[int]],
        seed: int,
    ) -> None:
        super().__init__(2, replicas, start, ports, seed)  # type: ignore[arg-type]
        self.replicas = replicas
        self.recovery_s: dict[str, list[float]] = defaultdict(list)
        self.all_s: dict[str, list[float]] = defaultdict(list)

    def fail_over(self, way: str, kafka: LibrdkafkaTxnLoad, pulsar: PulsarTxnLoad) -> None:
        """The primary is lost in that way, and its standby promoted; until all clients go on."""
        time.sleep(self.chance.uniform(0, 1))
        since = time.monotonic()
        loads = kafka, pulsar
        getattr(self, f"_{way}")(loads)
        self.replicas.promote()
        pulsar.failed_over(since)
        promoted = time.monotonic()
        if way == "paused":
            self._come_back()
        before = [sum(each.done().values()) for each in loads]
        while any(
            sum(each.done().values()) <= count for each, count in zip(loads, before, strict=True)
        ):
            told = [each.told() for each in loads]
            assert time.monotonic() < promoted + GOES_ON_WITHIN_S, f"no commit: {told}"
            time.sleep(0.005)
        self.recovery_s[way].append(time.monotonic() - promoted)
        for each in loads:
            each.wait_for_progress(1)
        self.all_s[way].append(time.monotonic() - promoted)
        self.replicas.standby.kill()

    def _killed(self, _: Loads) -> None:
        self.replicas.primary.kill()

    def _shut_down(self, _: Loads) -> None:
        """In order it ends commits that wait for the standby, with a warning; or at once."""
        self.replicas.primary.stop(self.chance.choice(("fast", "immediate")))

    def _behind(self, loads: Loads) -> None:
        """The standby is away a moment earlier, so that it lacks what the primary has last: also a
        transaction that was acknowledged, where commits do not wait for it."""
        self.replicas.standby.stop()
        done = [count for each in loads for count in each.done().values()]
        time.sleep(self.chance.uniform(0.5, 1))
        if not self.replicas.is_synchronous:
            # Each client may have been told late of one that was already on the standby.
            enough = sum(done) + len(done)
            deadline = time.monotonic() + WITHIN_S
            while sum(count for each in loads for count in each.done().values()) <= enough:
                assert time.monotonic() < deadline, "nothing is acknowledged without the standby"
                time.sleep(0.02)
        self.replicas.primary.kill()
        self.replicas.standby.start()

    def _paused(self, _: Loads) -> None:
        self.replicas.pause()

    def _come_back(self) -> None:
        """The former primary goes on as one, as if nothing were, before its brokers miss it. One of
        them is started anew, and finds the other."""
        self.replicas.resume(self.replicas.standby)
        broker = self.chance.choice(self.brokers)
        broker.gateway.kill()
        self._start_again(broker)

    def report(self) -> str:
        """For people."""
        lines = [
            f"{way}: {len(first_s)} failovers; first commits {_spread(first_s)},"
            f" all {_spread(self.all_s[way])}"
            for way, first_s in self.recovery_s.items()
        ]
        return "\n".join(["seconds from the promotion, least/median/most:", *lines])


def _spread(seconds: Sequence[float]) -> str:
    chosen = min(seconds), statistics.median(seconds), max(seconds)
    return "/".join(f"{each:.1f}" for each in chosen)


ReplicasOf = Callable[..., contextlib.AbstractContextManager[Replicas]]
MakeHosts = Callable[..., contextlib.AbstractContextManager[TwoHosts]]


@pytest.fixture
def replicas_of(migrated_dir: Path) -> ReplicasOf:
    """`with replicas_of(is_synchronous=True) as replicas`: both are running."""

    @contextlib.contextmanager
    def make(*, is_synchronous: bool) -> Iterator[Replicas]:
        with open_directory(memory()) as other:
            replicas = Replicas(migrated_dir, other / "data", is_synchronous=is_synchronous)
            with replicas.running():
                yield replicas

    return make


@pytest.fixture
def make_hosts(
    replicas_of: ReplicasOf,
    start_gateway: StartGateway,
    ports: Callable[[int], list[int]],
    seed: int,
) -> MakeHosts:
    """`with make_hosts(is_synchronous=True) as hosts`: with a topic, all reachable."""

    @contextlib.contextmanager
    def make(*, is_synchronous: bool) -> Iterator[TwoHosts]:
        with replicas_of(is_synchronous=is_synchronous) as replicas:
            hosts = TwoHosts(replicas, start_gateway, ports, seed)
            create_topic(hosts.bootstrap, TOPIC)
            with hosts.reachable():
                yield hosts

    return make


@pytest.mark.parametrize("ways", CAMPAIGNS)
def test_nothing_acknowledged_is_lost_with_the_primary(
    ways: Sequence[str], make_hosts: MakeHosts, seed: int, seconds: float
) -> None:
    with make_hosts(is_synchronous=True) as hosts:
        kafka, pulsar = loads(hosts, seed)
        with kafka.running(), pulsar.running():
            pulsar.wait_for_progress()
            end = time.monotonic() + seconds
            for way in itertools.cycle(ways):
                hosts.fail_over(way, kafka, pulsar)
                if way == ways[-1] and time.monotonic() > end:
                    break
                hosts.replicas.follow()
        print(hosts.report())  # noqa: T201 - shown with -rP
        verify(hosts, kafka, pulsar)


def test_without_a_required_standby_what_is_lost_is_found(make_hosts: MakeHosts, seed: int) -> None:
    """The same, but commits do not wait for a standby that is behind."""
    with make_hosts(is_synchronous=False) as hosts:
        kafka, pulsar = loads(hosts, seed)
        with kafka.running(), pulsar.running():
            pulsar.wait_for_progress()
            hosts.fail_over("behind", kafka, pulsar)
        assert TxnFlaw.LOST in {each.flaw for each in examine(hosts, kafka, pulsar)}


@pytest.mark.parametrize("is_synchronous", variants(True, False))
def test_a_former_primary_that_comes_back_acknowledges_nothing(
    replicas_of: ReplicasOf, start_gateway: StartGateway, *, is_synchronous: bool
) -> None:
    """A broker is still connected to it. Without a required standby a record is lost then."""
    with replicas_of(is_synchronous=is_synchronous) as replicas:
        gateway = start_gateway(database_url=replicas.url)
        create_topic(gateway.bootstrap, TOPIC, 1)
        producer = confluent.producer(gateway.bootstrap, enable_idempotence=True)
        told: list[object] = []

        def send(value: bytes) -> None:
            producer.produce(TOPIC, value, on_delivery=lambda error, _: told.append(error))
            assert producer.flush(GOES_ON_WITHIN_S) == 0

        send(b"before")
        replicas.pause()
        replicas.promote()
        replicas.resume(replicas.standby)
        send(b"after")
        replicas.standby.kill()
        assert told == [None, None]
        stored = [each.value for each in read_tables(replicas.url, TOPIC)[0].records]
        assert stored == ([b"before", b"after"] if is_synchronous else [b"before"])


def loads(hosts: TwoHosts, seed: int) -> Loads:
    """Of both protocols, on the same partitions; Kafka's with offsets of a group."""
    return (
        LibrdkafkaTxnLoad(hosts.bootstrap, TOPIC, PARTITIONS, seed, producers=2),
        PulsarTxnLoad([each.port for each in hosts.brokers], TOPIC, PARTITIONS, seed),
    )

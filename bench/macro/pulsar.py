"""Pulsar's Java client: produce, consume, one message at a time, acknowledgements, idle consumers.

Each turn's client is a new JVM that does a sixth of its work first, unmeasured (consuming: all of
it once), so that it is warm. A broker without an address for Pulsar's clients is left out.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from bench.brokers import Broker
from bench.case import Case, Figures, Skipped, charged, throughput
from bench.clients import pulsar_java, pulsar_steps, pulsar_unavailable
from bench.macro.idle import idle_cpu, memory
from bench.processes import PeakMemory

SIZE = 1_024
MESSAGES = 500_000
ACKNOWLEDGED = 100_000
SECONDS = 4.0
TRANSACTION_MS = 100
TOPICS, SUBSCRIPTIONS, CONSUMERS = 100, 10_000, 1_000


def address(broker: Broker) -> str:
    """Where the client connects. Raises Skipped."""
    if broker.pulsar_url is None:
        raise Skipped("it has no address for Pulsar's clients")
    if reason := pulsar_unavailable():
        raise Skipped(reason)
    return broker.pulsar_url


def produce(messages: int, partitions: int, size: int, broker: Broker, *, batched: bool) -> Figures:
    """One producer that sends as fast as it may."""
    url = address(broker)
    with broker.topic(partitions) as topic, PeakMemory(dict(broker.processes)) as peak:
        before = broker.cpu_seconds()
        result = pulsar_java("PulsarProducer", url, topic, messages, size, str(batched).lower(), 0)
        figures = throughput(result, size)
        figures |= charged(broker, before, result["sent"], result["cpu_s"])
    return figures | {f"{name}_peak_rss_mb": most.rss for name, most in peak.peaks.items()}


def consume(messages: int, partitions: int, broker: Broker) -> Figures:
    """A topic read whole twice by one Exclusive consumer; the second reading counts."""
    url = address(broker)
    with broker.topic(partitions) as topic:
        sent = pulsar_java("PulsarProducer", url, topic, messages, SIZE, "true", 0)["sent"]
        before = broker.cpu_seconds()
        result = pulsar_java("PulsarConsumer", url, topic, sent, 2)
        if result["bytes"] != sent * SIZE:
            raise RuntimeError(f"read {result['bytes']} bytes of {sent * SIZE}")
        figures = throughput(result, SIZE)
        figures["first_mb_per_s"] = sent * SIZE / result["first_seconds"] / 1e6
        return figures | charged(broker, before, 2 * sent, result["cpu_s"])


def send_one_by_one(seconds: float, broker: Broker) -> Figures:
    """Each message unbatched, and sent after the receipt of the last."""
    url = address(broker)
    with broker.topic(1) as topic:
        before = broker.cpu_seconds()
        result = pulsar_java("PulsarSyncProducer", url, topic, seconds, SIZE)
        figures = {key: value for key, value in result.items() if key.endswith("_ms")}
        return figures | charged(broker, before, result["records"], result["cpu_s"])


def acknowledge(messages: int, broker: Broker, *, grouped: bool) -> Figures:
    """Each message of a Shared subscription acknowledged by itself, with a receipt."""
    url = address(broker)
    with broker.topic(1) as topic:
        before = broker.cpu_seconds()
        result = pulsar_java("PulsarAcks", url, topic, messages, 100, str(grouped).lower())
        rate = {"acks_per_s": result["acks"] / result["seconds"]}
        return rate | charged(broker, before, result["records"], result["cpu_s"])


def transact(transactions: int, in_flight: int, messages: int, broker: Broker) -> Figures:
    """Transactions that take a message, send some, and commit, so many at a time."""
    url = address(broker)
    with broker.topic(1) as topic:
        before = broker.cpu_seconds()
        result = pulsar_java(
            "PulsarTransactions", url, topic, transactions, in_flight, messages, SIZE
        )
        figures = {key: value for key, value in result.items() if key.endswith("_ms")}
        figures["transactions_per_s"] = result["transactions"] / result["seconds"]
        figures["mb_per_s"] = figures["transactions_per_s"] * messages * SIZE / 1e6
        return figures | charged(broker, before, result["records"], result["cpu_s"])


def beside_plain(messages: int, broker: Broker) -> Figures:
    """The same producer without transactions, twice with, and without again."""
    url = address(broker)
    rates: dict[bool, float] = {False: 0.0, True: 0.0}
    costs: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    transactions, committing_s = 0, 0.0
    for transactional in (False, True, True, False):
        lasting = TRANSACTION_MS if transactional else 0
        with broker.topic(1) as topic:
            before = broker.cpu_seconds()
            result = pulsar_java("PulsarProducer", url, topic, messages, SIZE, "true", lasting)
            costs[transactional].update(charged(broker, before, result["sent"], result["cpu_s"]))
        rates[transactional] += result["records"] * SIZE / result["seconds"] / 1e6 / 2
        transactions += result["transactions"]
        committing_s += result["committing_s"]
    return {
        "to_plain_ratio": rates[True] / rates[False],
        "plain_mb_per_s": rates[False],
        "transactional_mb_per_s": rates[True],
        "messages_per_transaction": 2 * messages / transactions,
        "commit_ms": 1_000 * committing_s / transactions,
        **{f"plain_{name}": cost / 2 for name, cost in costs[False].items()},
        **{f"transactional_{name}": cost / 2 for name, cost in costs[True].items()},
    }


def idle(subscriptions: int, consumers: int, broker: Broker) -> Figures:
    """Memory and CPU: alone, with subscriptions that nobody uses, with consumers that wait."""
    url = address(broker)
    if not broker.processes:
        raise Skipped("the broker's process ids are not known (--pid)")
    with broker.topic(TOPICS) as topic:
        figures = memory(broker, "alone") | idle_cpu(broker, "alone")
        with pulsar_steps("PulsarIdle", url, topic, TOPICS, subscriptions, consumers) as steps:
            figures |= next(steps)
            figures |= memory(broker, "subscribed") | idle_cpu(broker, "subscribed")
            figures |= next(steps)
            figures |= memory(broker, "connected") | idle_cpu(broker, "connected")
    front = next(iter(broker.processes))  # the group that holds the sockets
    more = figures[f"{front}_connected_pss_mb"] - figures[f"{front}_subscribed_pss_mb"]
    return figures | {"consumer_kb_each": 1_000 * more / consumers}


def cases(share: float) -> list[Case]:
    """`share` scales the messages of each turn, the time, and the idle subscriptions."""
    messages, acknowledged = int(MESSAGES * max(share, 0.4)), int(ACKNOWLEDGED * share)
    subscriptions, consumers = int(SUBSCRIPTIONS * share), int(CONSUMERS * share)

    def producing(partitions: int, *, batched: bool = True, quick: bool = False) -> Case:
        kind = "produce" if batched else "produce-unbatched"
        count = messages if batched else messages // 4
        return Case(
            f"pulsar/{kind}/java/1KiB/{partitions}p",
            "mb_per_s",
            partial(produce, count, partitions, SIZE, batched=batched),
            rounds=3,
            quick=quick,
            copied_bytes=count * SIZE,
        )

    def consuming(partitions: int, *, quick: bool = False) -> Case:
        name = f"pulsar/consume/java/1KiB/{partitions}p"
        run = partial(consume, messages, partitions)
        return Case(name, "mb_per_s", run, rounds=3, quick=quick)

    def acknowledging(*, grouped: bool) -> Case:
        name = f"pulsar/acks/java/{'grouped' if grouped else 'each'}"
        return Case(name, "acks_per_s", partial(acknowledge, acknowledged, grouped=grouped))

    def transacting(in_flight: int, messages: int = 1, *, count: int, quick: bool = False) -> Case:
        name = f"pulsar/transactions/java/{in_flight}x/{messages}m"
        run = partial(transact, max(int(count * share), 50), in_flight, messages)
        return Case(name, "transactions_per_s", run, rounds=3, quick=quick)

    return [
        producing(1, quick=True),
        producing(4),
        producing(1, batched=False),
        consuming(1, quick=True),
        consuming(4),
        Case(
            "pulsar/send-sync/java/1KiB",
            "p50_ms",
            partial(send_one_by_one, SECONDS * share),
            rounds=3,
            quick=True,
        ),
        acknowledging(grouped=True),
        acknowledging(grouped=False),
        transacting(1, count=600, quick=True),
        transacting(16, count=6_000),
        transacting(4, 1_000, count=300),
        Case(
            f"pulsar/transactions/java/1KiB/1p/{TRANSACTION_MS}ms",
            "to_plain_ratio",
            partial(beside_plain, messages),
        ),
        Case(
            f"pulsar/idle/{subscriptions}s/{consumers}c",
            "consumer_kb_each",
            partial(idle, subscriptions, consumers),
            rounds=1,
        ),
    ]

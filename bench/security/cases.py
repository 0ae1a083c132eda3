"""The cases of security, each a ratio taken within one turn.

What is compared alternates within a turn, A B B A, so that a drift of the machine's speed falls on
both. Must not know how brokers are started, or how figures are shown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from statistics import mean
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import Broker, new_topic_name
from bench.case import Case, Figures, Skipped, charged
from bench.clients import added_up, prepared, run_workers
from bench.security.servers import USER, SecuredBroker

SIZE = 1_000
PARTITIONS = 4
RECORDS = 400_000
ACK_SECONDS = 4.0
METADATA_TOPICS, METADATA_SECONDS, METADATA_CONNECTIONS = 200, 4.0, 4
LOGIN_CONNECTIONS, LOGIN_SECONDS = 32, 8.0
STORM_SECONDS, RELOGINS, WRONG_LOGINS = 10.0, 5_000, 1_000

Measure = Callable[[], Figures]


def alternating(first: Measure, second: Measure) -> tuple[Figures, Figures]:
    """The means of two turns of each: first, second, second, first."""
    begun, *middle = first(), second(), second()
    return _means([begun, first()]), _means(middle)


def _means(turns: list[Figures]) -> Figures:
    return {name: mean(turn[name] for turn in turns) for name in turns[0]}


def beside_each_other(
    named: tuple[str, str], first: Measure, second: Measure, ratio: str, figure: str
) -> Figures:
    """All figures of both, as NAME_FIGURE, and how quick the second is in relation to the first.

    ratio: what that is called. figure: a rate, or a latency ("…_ms"), whose ratio is turned
    over.
    """
    one, other = alternating(first, second)
    figures = {f"{named[0]}_{name}": value for name, value in one.items()}
    figures |= {f"{named[1]}_{name}": value for name, value in other.items()}
    quick = other[figure] / one[figure]
    return figures | {ratio: 1 / quick if figure.endswith("_ms") else quick}


# --- what a client does on a listener of a broker ---


def produced(broker: SecuredBroker, listener: str, records: int) -> Figures:
    """librdkafka's rate into a new topic, and what it costs the broker."""
    with broker.topic(PARTITIONS) as topic:
        return _moved(
            "produce_confluent", broker, listener, records=records, topic=topic, size=SIZE
        )


def consumed(broker: SecuredBroker, listener: str, topic: str, records: int) -> Figures:
    """librdkafka's rate through a topic from its beginning, and what it costs the broker."""
    return _moved(
        "consume_confluent",
        broker,
        listener,
        records=records,
        topic=topic,
        partitions=PARTITIONS,
    )


def _moved(
    work: str, broker: SecuredBroker, listener: str, *, records: int, **told: Any
) -> Figures:
    broker.write_out()
    before = broker.cpu_seconds()
    result = run_workers(work, records=records, **told, **broker.at(listener))
    gigabytes = records * SIZE / 1e9
    figures = {
        f"{name}_cpu_s_per_gb": (cpu - before[name]) / gigabytes
        for name, cpu in broker.cpu_seconds().items()
    }
    figures["client_cpu_s_per_gb"] = result["cpu_s"] / gigabytes
    return {"mb_per_s": 1e3 * gigabytes / result["seconds"]} | own(figures)


def own(figures: Figures) -> Figures:
    """Without those of the broker beside it."""
    return {name: value for name, value in figures.items() if not name.startswith("restricted")}


def acknowledged(broker: SecuredBroker, topic: str, seconds: float) -> Figures:
    """One record at a time by librdkafka, logged in."""
    result = run_workers("ack_confluent", topic=topic, seconds=seconds, **broker.at("asks"))
    return {"p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"]}


@contextlib.contextmanager
def filled(broker: SecuredBroker, records: int) -> Iterator[str]:
    """A topic that was read once, so that the next reading is not the first."""
    with broker.topic(PARTITIONS) as topic:
        at = broker.at("open")
        run_workers("produce_confluent", topic=topic, records=records, size=SIZE, **at)
        consumed(broker, "open", topic, records)
        yield topic


# --- ACLs ---


def restricted(broker: Broker) -> tuple[SecuredBroker, SecuredBroker]:
    """A broker without an authorizer, and the one with ACLs. Raises Skipped."""
    if not isinstance(broker, SecuredBroker) or broker.restricted is None:
        raise Skipped("it has none beside it with ACLs")
    return broker, broker.restricted


def with_acls(first: Measure, second: Measure, figure: str) -> Figures:
    return beside_each_other(("without", "with"), first, second, "with_to_without_ratio", figure)


def acls_produce(records: int, broker: Broker) -> Figures:
    without, limited = restricted(broker)
    return with_acls(
        partial(produced, without, "asks", records),
        partial(produced, limited, "asks", records),
        "mb_per_s",
    )


def acls_consume(records: int, broker: Broker) -> Figures:
    without, limited = restricted(broker)
    with filled(without, records) as one, filled(limited, records) as other:
        return with_acls(
            partial(consumed, without, "asks", one, records),
            partial(consumed, limited, "asks", other, records),
            "mb_per_s",
        )


def acls_acks(seconds: float, broker: Broker) -> Figures:
    """Of p50; p99's is in `p99_ratio`, turned over as well."""
    without, limited = restricted(broker)
    with without.topic(1) as one, limited.topic(1) as other:
        figures = with_acls(
            partial(acknowledged, without, one, seconds),
            partial(acknowledged, limited, other, seconds),
            "p50_ms",
        )
    return figures | {"p99_ratio": figures["without_p99_ms"] / figures["with_p99_ms"]}


@contextlib.contextmanager
def many_topics(broker: SecuredBroker, count: int) -> Iterator[list[str]]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    names = [new_topic_name() for _ in range(count)]
    for made in admin.create_topics([NewTopic(each, 1, 1) for each in names]).values():
        made.result(120)
    try:
        yield names
    finally:
        for gone in admin.delete_topics(names).values():
            gone.result(120)


def acls_metadata(seconds: float, every: bool, broker: Broker) -> Figures:
    """Requests a second for all topics, of which there are 200, or for one."""
    without, limited = restricted(broker)
    count = METADATA_TOPICS

    def asked(of: SecuredBroker, names: list[str]) -> Figures:
        before = of.cpu_seconds()
        result = run_workers(
            "security_metadata",
            **of.scram(),
            topic=None if every else names[0],
            topics=count if every else 1,
            connections=METADATA_CONNECTIONS,
            seconds=seconds,
        )
        rate = {"requests_per_s": result["records"] / result["seconds"]}
        return rate | own(charged(of, before, result["records"], result["cpu_s"]))

    with many_topics(without, count) as one, many_topics(limited, count) as other:
        return with_acls(
            partial(asked, without, one), partial(asked, limited, other), "requests_per_s"
        )


# --- TLS ---


def secured(broker: Broker) -> SecuredBroker:
    """Raises Skipped."""
    if not isinstance(broker, SecuredBroker):
        raise Skipped("it has no listener for logins")
    return broker


def tls(first: Measure, second: Measure) -> Figures:
    """The loss: SASL_SSL's rate in relation to PLAINTEXT's."""
    return beside_each_other(("plain", "tls"), first, second, "tls_to_plain_ratio", "mb_per_s")


def tls_produce(records: int, broker: Broker) -> Figures:
    found = secured(broker)
    return tls(
        partial(produced, found, "open", records), partial(produced, found, "secure", records)
    )


def tls_consume(records: int, broker: Broker) -> Figures:
    found = secured(broker)
    with filled(found, records) as topic:
        return tls(
            partial(consumed, found, "open", topic, records),
            partial(consumed, found, "secure", topic, records),
        )


# --- logins ---


def logins(mechanism: str, seconds: float, broker: Broker) -> Figures:
    """New connections that log in, 32 at a time."""
    found = secured(broker)
    before = found.cpu_seconds()
    told = found.scram(mechanism)
    result = run_workers("security_logins", **told, connections=LOGIN_CONNECTIONS, seconds=seconds)
    figures = {name: result[name] for name in ("p50_ms", "p99_ms")}
    figures |= own(charged(found, before, result["records"], result["cpu_s"]))
    return {"logins_per_s": result["records"] / result["seconds"]} | figures


def storm(
    work: str, told: Callable[[SecuredBroker], dict[str, Any]], seconds: float, broker: Broker
) -> Figures:
    """A producer's acknowledgements before, beside and after logins; `p99_times`: beside over the
    mean of the other two."""
    found = secured(broker)
    with found.topic(1) as topic:
        before = acknowledged(found, topic, seconds)
        probe = {"topic": topic, "seconds": seconds, **found.at("asks")}
        with (
            prepared(work, **told(found), seconds=seconds) as [crowd],
            prepared("ack_confluent", **probe) as [producer],
        ):
            crowd.go()
            producer.go()
            beside, came = producer.result(300), added_up([crowd.result(300)])
        alone = _means([before, acknowledged(found, topic, seconds)])
    return {
        **{f"alone_{name}": value for name, value in alone.items()},
        **{f"beside_{name}": beside[name] for name in alone},
        "p50_times": beside["p50_ms"] / alone["p50_ms"],
        "p99_times": beside["p99_ms"] / alone["p99_ms"],
        "logins_per_s": came["records"] / came["seconds"],
        "login_p50_ms": came["p50_ms"],
        "login_p99_ms": came["p99_ms"],
        "crowd_cpu_percent": 100 * came["cpu_s"] / came["seconds"],
    }


def cases(share: float) -> list[Case]:
    """`share` scales what each turn moves, and how long it takes; storms keep their rates."""
    records, ack_s = int(RECORDS * share), ACK_SECONDS * share
    asked_s = METADATA_SECONDS * share
    count, wrong = int(RELOGINS * share), int(WRONG_LOGINS * share)

    def again(broker: SecuredBroker) -> dict[str, Any]:
        return broker.scram() | {"connections": count}

    def strangers(broker: SecuredBroker) -> dict[str, Any]:
        return {"bootstrap": broker.asks, "user": USER, "logins": wrong}

    every = [
        ("acls/produce", "with_to_without_ratio", partial(acls_produce, records), 5),
        ("acls/consume", "with_to_without_ratio", partial(acls_consume, records), 5),
        ("acls/acks", "with_to_without_ratio", partial(acls_acks, ack_s), 5),
        ("acls/metadata-all", "with_to_without_ratio", partial(acls_metadata, asked_s, True), 5),
        ("acls/metadata-one", "with_to_without_ratio", partial(acls_metadata, asked_s, False), 5),
        ("tls/produce", "tls_to_plain_ratio", partial(tls_produce, records), 3),
        ("tls/consume", "tls_to_plain_ratio", partial(tls_consume, records), 3),
        (
            f"logins/scram-256/{LOGIN_CONNECTIONS}x",
            "logins_per_s",
            partial(logins, "SCRAM-SHA-256", LOGIN_SECONDS * share),
            3,
        ),
        (
            "storm/log-in-again",
            "p99_times",
            partial(storm, "security_relogins", again, STORM_SECONDS * share),
            3,
        ),
        (
            "storm/wrong-passwords",
            "p99_times",
            partial(storm, "security_wrong_logins", strangers, STORM_SECONDS * share),
            3,
        ),
    ]
    return [
        Case(f"security/{name}", headline, run, rounds=rounds)
        for name, headline, run, rounds in every
    ]

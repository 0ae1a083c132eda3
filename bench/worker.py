"""What runs inside a client process: `python -m bench.worker NAME '{"parameter": …}'`.

Each client is a process of its own, so that its CPU time can be told and several run side by
side. A worker prepares, prints "ready", waits for a line on stdin, works, prints one JSON object.
Must not know brokers, cases or what the figures are compared with.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

try:
    from uvloop import run
except ImportError:  # not everywhere
    from asyncio import run  # type: ignore[assignment]  # the same, but for the loop it makes

# Too many to be worth repeating in every signature.
Result = dict[str, Any]
Settings = dict[str, str]

DRY_S = 30.0  # a consumer that gets nothing for so long has failed


def ready() -> None:
    """Tell the parent that the work may begin, and wait until it says so."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        raise SystemExit("the parent is gone")


def payloads(size: int) -> list[bytes]:
    """64 random records of `size` bytes: made beforehand, because making them costs CPU."""
    return [os.urandom(size) for _ in range(64)]


def summary(seconds: list[float]) -> Result:
    """Median, 99th percentile and mean of latencies, in ms; half-medians show a drift."""
    if not seconds:
        raise RuntimeError("not one latency was measured")
    in_order, tenth = sorted(seconds), max(1, len(seconds) // 10)
    return {
        "count": len(seconds),
        "p50_ms": 1e3 * in_order[len(seconds) // 2],
        "p99_ms": 1e3 * in_order[int(len(seconds) * 0.99)],
        "mean_ms": 1e3 * sum(seconds) / len(seconds),
        "first_tenth_p50_ms": 1e3 * sorted(seconds[:tenth])[tenth // 2],
        "last_tenth_p50_ms": 1e3 * sorted(seconds[-tenth:])[tenth // 2],
    }


def librdkafka(bootstrap: str, **settings: object) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "log_level": 2, "socket.nagle.disable": True} | {
        name.replace("_", "."): value for name, value in settings.items()
    }


def refused(error: object, _message: object = None) -> None:
    """Delivery callback: the first record that was not acknowledged ends the worker."""
    if error is not None:
        raise RuntimeError(f"a record was not acknowledged: {error}")


# --- producers ------------------------------------------------------------------------------------


def produce_confluent(
    bootstrap: str,
    topic: str,
    records: int,
    size: int,
    linger_ms: float = 5,
    partitions: int = 0,
    login: Settings | None = None,
) -> Result:
    """As fast as librdkafka takes them, then flush: every record is acknowledged at the end.

    partitions: ten records to each of so many, then ten more; 0: as librdkafka chooses.
    login: further settings of librdkafka's.
    """
    from confluent_kafka import Producer

    settings = librdkafka(bootstrap, acks="all", linger_ms=linger_ms) | {
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 64 * 1024,
        "delivery.report.only.error": True,
    }
    producer = Producer(settings | (login or {}))
    producer.list_topics(topic, timeout=30)
    values = payloads(size)
    ready()
    begun = time.monotonic()
    for number in range(records):
        to = number // 10 % partitions if partitions else -1
        while True:
            try:
                producer.produce(topic, values[number & 63], partition=to, on_delivery=refused)
                break
            except BufferError:
                producer.poll(0.01)
        if not number & 1023:
            producer.poll(0)
    left = producer.flush(120)
    ended = time.monotonic()
    if left:
        raise RuntimeError(f"{left} records were not acknowledged in time")
    return {"records": records, "begun": begun, "ended": ended}


async def produce_aiokafka(
    bootstrap: str, topic: str, records: int, size: int, linger_ms: float = 5
) -> Result:
    """`send` one after the other; aiokafka's own back-pressure limits what is in flight."""
    from aiokafka import AIOKafkaProducer

    values = payloads(size)
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=int(linger_ms)
    ) as producer:
        await producer.partitions_for(topic)
        ready()
        begun = time.monotonic()
        sent = [await producer.send(topic, values[number & 63]) for number in range(records)]
        await asyncio.gather(*sent)
        ended = time.monotonic()
    return {"records": records, "begun": begun, "ended": ended}


# --- latencies ------------------------------------------------------------------------------------


def ack_confluent(
    bootstrap: str,
    topic: str,
    seconds: float,
    size: int = 1000,
    partitions: int = 1,
    login: Settings | None = None,
) -> Result:
    """One record at a time, linger 0, acks=all; the next is sent when this one is acknowledged.

    login: further settings of librdkafka's.
    """
    from confluent_kafka import Producer

    producer = Producer(librdkafka(bootstrap, acks="all", linger_ms=0) | (login or {}))
    producer.list_topics(topic, timeout=30)
    values, acknowledged = payloads(size), 0

    def on_delivery(error: object, message: object) -> None:
        nonlocal acknowledged
        refused(error, message)
        acknowledged += 1

    def once(number: int) -> float:
        sent = time.perf_counter()
        producer.produce(
            topic, values[number & 63], partition=number % partitions, on_delivery=on_delivery
        )
        while acknowledged <= number:
            producer.poll(5.0)
        return time.perf_counter() - sent

    warm_up = 50
    for number in range(warm_up):
        once(number)
    ready()
    latencies, number, end = [], warm_up, time.monotonic() + seconds
    while time.monotonic() < end:
        latencies.append(once(number))
        number += 1
    return summary(latencies) | {"records": len(latencies)}


async def ack_aiokafka(bootstrap: str, topic: str, seconds: float, size: int = 1000) -> Result:
    """As `ack_confluent`, with aiokafka's `send_and_wait`."""
    from aiokafka import AIOKafkaProducer

    values = payloads(size)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0) as producer:
        for number in range(50):
            await producer.send_and_wait(topic, values[number & 63])
        ready()
        latencies: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sent = time.perf_counter()
            await producer.send_and_wait(topic, values[len(latencies) & 63])
            latencies.append(time.perf_counter() - sent)
    return summary(latencies) | {"records": len(latencies)}


def end_to_end_confluent(bootstrap: str, topic: str, seconds: float, size: int = 1000) -> Result:
    """From produce() to the consumer's hand, one at a time, the consumer long-polling the tail."""
    from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

    producer = Producer(librdkafka(bootstrap, acks="all", linger_ms=0))
    consumer = Consumer(librdkafka(bootstrap, group_id="bench", enable_auto_commit=False))
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    values = payloads(size)

    def once(number: int, patience_s: float) -> float | None:
        sent = time.perf_counter()
        producer.produce(topic, values[number & 63], partition=0, on_delivery=refused)
        message = consumer.poll(patience_s)
        elapsed = time.perf_counter() - sent
        producer.poll(0)
        if message is None:
            return None
        if message.error():
            raise RuntimeError(f"consumer: {message.error()}")
        return elapsed

    # Where the tail is, is looked up in the background: produce until records come through.
    if not any(once(0, 0.5) is not None for _ in range(60)):
        raise RuntimeError("no record reached the consumer")
    producer.flush(30)
    while consumer.poll(1.0) is not None:
        pass
    for number in range(50):
        once(number, DRY_S)
    ready()
    latencies: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        latency = once(len(latencies), DRY_S)
        if latency is None:
            raise RuntimeError(f"a record did not arrive within {DRY_S} s")
        latencies.append(latency)
    consumer.close()
    return summary(latencies) | {"records": len(latencies)}


async def end_to_end_aiokafka(
    bootstrap: str, topic: str, seconds: float, size: int = 1000
) -> Result:
    """As `end_to_end_confluent`, both ends in one event loop."""
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    values, partition = payloads(size), TopicPartition(topic, 0)
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0) as producer,
        AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer,
    ):
        consumer.assign([partition])
        await consumer.seek_to_end(partition)
        await consumer.position(partition)

        async def once(number: int) -> float:
            sent = time.perf_counter()
            sending = asyncio.ensure_future(producer.send_and_wait(topic, values[number & 63]))
            await asyncio.wait_for(consumer.getone(), DRY_S)
            elapsed = time.perf_counter() - sent
            await sending
            return elapsed

        for number in range(50):
            await once(number)
        ready()
        latencies: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            latencies.append(await once(len(latencies)))
    return summary(latencies) | {"records": len(latencies)}


# --- consumers ------------------------------------------------------------------------------------


def consume_confluent(
    bootstrap: str,
    topic: str,
    records: int,
    partitions: int,
    tail: bool = False,
    login: Settings | None = None,
) -> Result:
    """Count `records` by assignment, from the beginning or (`tail`) from where the log ends now.

    login: further settings of librdkafka's.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    settings = librdkafka(bootstrap, group_id="bench", enable_auto_commit=False)
    consumer = Consumer(settings | (login or {}))
    start = {}
    for number in range(partitions):
        at = TopicPartition(topic, number)
        start[number] = (
            consumer.get_watermark_offsets(at, timeout=30)[1] if tail else OFFSET_BEGINNING
        )
    ready()
    begun = time.monotonic()
    consumer.assign([TopicPartition(topic, number, at) for number, at in start.items()])
    seen = bytes_seen = 0
    while seen < records:
        messages = consumer.consume(num_messages=10_000, timeout=0.1 if seen else DRY_S)
        for message in messages:
            if message.error():
                raise RuntimeError(f"consumer: {message.error()}")
            bytes_seen += len(message.value() or b"")
        seen += len(messages)
        if messages:
            fresh = time.monotonic()
        elif time.monotonic() - (fresh if seen else begun) > DRY_S:
            raise RuntimeError(f"nothing for {DRY_S} s after {seen} of {records} records")
    ended = time.monotonic()
    consumer.close()
    return {"records": seen, "bytes": bytes_seen, "begun": begun, "ended": ended}


def look_up_confluent(
    bootstrap: str,
    topic: str,
    partitions: int,
    records: int,
    begun_ms: int,
    ended_ms: int,
    look_ups: int,
) -> Result:
    """Reads at random offsets, and lookups of random times, one after the other.

    records: of each partition, written from begun_ms to ended_ms.
    """
    from confluent_kafka import Consumer, TopicPartition

    chance = random.Random(1)
    consumer = Consumer(
        librdkafka(bootstrap, group_id="bench", enable_auto_commit=False, queued_min_messages=1)
    )
    ready()
    begun = time.monotonic()
    reads, lookups = [], []
    for _ in range(look_ups):
        at = TopicPartition(topic, chance.randrange(partitions), chance.randrange(records))
        start = time.perf_counter()
        consumer.assign([at])
        message = consumer.poll(DRY_S)
        reads.append(time.perf_counter() - start)
        if message is None or message.error() or message.offset() != at.offset:
            raise RuntimeError(f"not what was asked for at {at}: {message}")
        consumer.unassign()
    for _ in range(look_ups):
        at = TopicPartition(
            topic, chance.randrange(partitions), chance.randrange(begun_ms, ended_ms)
        )
        start = time.perf_counter()
        (found,) = consumer.offsets_for_times([at], timeout=DRY_S)
        lookups.append(time.perf_counter() - start)
        if found.error:
            raise RuntimeError(f"no offset for a time: {found.error}")
    ended = time.monotonic()
    consumer.close()
    return {
        "records": 2 * look_ups,
        "begun": begun,
        "ended": ended,
        **{f"read_{figure}": value for figure, value in summary(reads).items()},
        **{f"look_up_{figure}": value for figure, value in summary(lookups).items()},
    }


async def consume_aiokafka(bootstrap: str, topic: str, records: int, partitions: int) -> Result:
    """Count `records` by assignment from the beginning."""
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=1 << 20
    ) as consumer:
        assigned = [TopicPartition(topic, number) for number in range(partitions)]
        ready()
        begun = time.monotonic()
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        seen = bytes_seen = 0
        while seen < records:
            polled = await consumer.getmany(timeout_ms=int(DRY_S * 1000), max_records=10_000)
            if not polled:
                raise RuntimeError(f"nothing for {DRY_S} s after {seen} of {records} records")
            for messages in polled.values():
                seen += len(messages)
                bytes_seen += sum(len(message.value) for message in messages)
        ended = time.monotonic()
    return {"records": seen, "bytes": bytes_seen, "begun": begun, "ended": ended}


# --- who looks at the page ------------------------------------------------------------------------


def view(urls: list[str], viewers: int, every_s: float, seconds: float) -> Result:
    """So many, each on a connection of its own, ask for one of the pages now and then."""
    import http.client
    import threading
    from urllib.parse import urlsplit

    latencies: list[tuple[float, float]] = []
    wrong: list[str] = []
    end = 0.0

    def look(number: int) -> None:
        url = urlsplit(urls[number % len(urls)])
        connection = http.client.HTTPConnection(url.netloc, timeout=60)
        time.sleep(every_s * number / viewers)
        while (began := time.perf_counter()) < end:
            connection.request("GET", f"{url.path}?{url.query}" if url.query else url.path)
            answer = connection.getresponse()
            answer.read()
            latencies.append((began, time.perf_counter() - began))
            if answer.status != 200:
                wrong.append(f"{url.path}: {answer.status}")
                return
            time.sleep(max(0.0, every_s - (time.perf_counter() - began)))

    ready()
    end = time.perf_counter() + seconds
    threads = [threading.Thread(target=look, args=(number,)) for number in range(viewers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise RuntimeError(", ".join(wrong[:5]))
    in_order = [latency for _, latency in sorted(latencies)]
    return summary(in_order) | {"first_ms": 1e3 * in_order[0]}


Work = Callable[..., Result | Coroutine[Any, Any, Result]]

WORK: dict[str, Work] = {
    work.__name__: work
    for work in (
        produce_confluent,
        produce_aiokafka,
        ack_confluent,
        ack_aiokafka,
        end_to_end_confluent,
        end_to_end_aiokafka,
        consume_confluent,
        consume_aiokafka,
        look_up_confluent,
        view,
    )
}


def main(arguments: list[str]) -> None:
    name, parameters = arguments
    if name.startswith("transactions_"):
        from bench import transaction_work

        WORK[name] = getattr(transaction_work, name)
    elif name.startswith("security_"):
        from bench.security import work

        WORK[name] = getattr(work, name)
    elif name not in WORK:  # groups: these need the gateway's codec, which the others do without
        from bench import group_work

        WORK[name] = getattr(group_work, name)
    result = WORK[name](**json.loads(parameters))
    if isinstance(result, Coroutine):
        result = run(result)
    used = resource.getrusage(resource.RUSAGE_SELF)
    json.dump(result | {"cpu_s": used.ru_utime + used.ru_stime}, sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main(sys.argv[1:])

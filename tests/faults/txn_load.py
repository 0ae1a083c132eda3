"""Transactional load: producers, some usurped by a second instance of their name.

Every transaction and what its producer was told of it goes into a TxnHistory. librdkafka's speak
V1, Kafka's own (compat/java/TransactionalLoad.java) V2. Must not know what is being broken.
"""

from __future__ import annotations

import contextlib
import logging
import random
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from compat.java import tools
from tests.compat.clients import fatal_errors_raised
from tests.faults.txn_history import Ending, TxnHistory, Value
from tests.faults.workers import Workers

TIMEOUT_MS = 20_000
"""Of a transaction: what a dead producer leaves open ends by itself before the checks."""
CALL_S = 8.0
JAVA_PRODUCERS = Path(tools.__file__).with_name("TransactionalLoad.java")

_SILENT = logging.Logger("librdkafka under fault", level=logging.CRITICAL + 1)


class _Broken(Exception):
    """The producer is of no use any more; another one takes its name."""


class TxnLoad(Workers):
    """Producers that write transactions to the same partitions until told to stop."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        seed: int,
        *,
        producers: int = 3,
        offsets_share: float = 0.5,
    ) -> None:
        """offsets_share: how many transactions have offsets of the producer's group in them."""
        super().__init__()
        self.topic = topic
        self.history = TxnHistory()
        self.names = [f"txn-{number}" for number in range(producers)]
        self.said: dict[str, int] = {}
        self._bootstrap = bootstrap
        self._partitions = partitions
        self._seed = seed
        self._offsets_share = offsets_share

    def done(self) -> dict[str, int]:
        """Transactions told to be committed, by producer."""
        return {name: self.history.count(Ending.COMMITTED, name) for name in self.names}

    def told(self) -> object:
        return self.said

    def group_of(self, name: str) -> str:
        """The group whose offset goes with the producer's transactions."""
        return f"{name}'s group"

    def _note(self, said: str) -> None:
        self.said[said[:150]] = self.said.get(said[:150], 0) + 1


class LibrdkafkaTxnLoad(TxnLoad):
    """librdkafka's producers, a thread each."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int, **rest: Any) -> None:
        super().__init__(bootstrap, topic, partitions, seed, **rest)
        self.hung = 0  # calls that did not return
        for number, name in enumerate(self.names):
            self._add(name, partial(self._run, name, random.Random(seed * 100 + number)))

    def _run(self, name: str, chance: random.Random) -> None:
        reader = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self.group_of(name),
                "logger": _SILENT,
            }
        )
        number = 0
        while not self._stop.is_set():
            producer = self._start(name)
            if producer is None:
                continue
            with contextlib.suppress(_Broken):
                while not self._stop.is_set():
                    number += 1
                    self._transact(producer, name, number, chance, reader)
                    if chance.random() < 0.05:
                        # Another instance comes up while this one has something open.
                        number += 1
                        self._leave_open(producer, name, number, chance)
                        raise _Broken
        reader.close()

    def _start(self, name: str) -> Producer | None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": name,
                "transaction.timeout.ms": TIMEOUT_MS,
                "message.timeout.ms": 10_000,
                "socket.timeout.ms": 4_000,
                "request.timeout.ms": 3_000,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 1,
                "logger": _SILENT,
                "error_cb": lambda error: None,
            }
        )
        while not self._stop.is_set():
            try:
                producer.init_transactions(CALL_S)
            except KafkaException as error:
                self._note(str(error))
                if not error.args[0].retriable():
                    return None
            else:
                return producer
        return None

    def _transact(
        self,
        producer: Producer,
        name: str,
        number: int,
        chance: random.Random,
        reader: Consumer,
    ) -> None:
        with_offsets = chance.random() < self._offsets_share
        partitions = [chance.randrange(self._partitions) for _ in range(chance.randint(1, 12))]
        self.history.begin(name, number, partitions, with_offsets)
        commit = chance.random() < 0.75
        try:
            with fatal_errors_raised(producer):
                producer.begin_transaction()
                self._produce(producer, name, number, partitions)
                if chance.random() < 0.3:
                    producer.flush(CALL_S)
                if with_offsets:
                    self._send_offsets(producer, number, reader)
        except (KafkaException, BufferError) as error:
            self._note(str(error))
            commit = False
        self._end(producer, name, number, commit=commit)

    def _send_offsets(self, producer: Producer, number: int, reader: Consumer) -> None:
        """In a thread of its own: librdkafka may wait for ever in there, whatever the timeout, when
        a coordinator is lost meanwhile (compat/librdkafka/FINDINGS.md). Then another producer takes
        the name."""
        failed: list[Exception] = []

        def send() -> None:
            try:
                producer.send_offsets_to_transaction(
                    [TopicPartition(self.topic, 0, number + 1)],
                    reader.consumer_group_metadata(),
                    CALL_S,
                )
            except KafkaException as error:
                failed.append(error)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(1.5 * CALL_S)
        if thread.is_alive():
            self.hung += 1
            raise _Broken
        if failed:
            raise failed[0]

    def _produce(self, producer: Producer, name: str, number: int, partitions: list[int]) -> None:
        for index, partition in enumerate(partitions):
            value = Value(name, number, index).encode()
            producer.produce(self.topic, value, partition=partition)
            producer.poll(0)

    def _end(self, producer: Producer, name: str, number: int, *, commit: bool) -> None:
        """Until there is an answer, or none is to be had."""
        is_tried = False
        deadline = time.monotonic() + 3 * CALL_S
        while True:
            try:
                if commit:
                    is_tried = True
                    with fatal_errors_raised(producer):
                        producer.commit_transaction(CALL_S)
                    self.history.end(name, number, Ending.COMMITTED)
                else:
                    with fatal_errors_raised(producer):
                        producer.abort_transaction(CALL_S)
                    if not is_tried:
                        self.history.end(name, number, Ending.ABORTED)
                    else:
                        self.history.end(name, number, Ending.UNKNOWN)
                return
            except KafkaException as error:
                self._note(str(error))
                reason = error.args[0]
                if reason.txn_requires_abort() and commit:
                    # librdkafka says so only of a commit that has certainly not happened.
                    commit, is_tried = False, False
                elif not reason.retriable() or time.monotonic() > deadline:
                    ending = Ending.UNKNOWN if is_tried else Ending.OPEN
                    self.history.end(name, number, ending)
                    raise _Broken from None

    def _leave_open(
        self, producer: Producer, name: str, number: int, chance: random.Random
    ) -> None:
        """Written, and not ended: a successor's init_transactions has to abort it."""
        partitions = [chance.randrange(self._partitions) for _ in range(chance.randint(1, 6))]
        self.history.begin(name, number, partitions, False)
        with contextlib.suppress(KafkaException, BufferError), fatal_errors_raised(producer):
            producer.begin_transaction()
            self._produce(producer, name, number, partitions)
            producer.flush(1.0 if chance.random() < 0.5 else 0.01)
        # It wakes up later and goes on as if nothing were: fenced, or just before it is.
        threading.Thread(
            target=self._commit_as_zombie,
            args=(producer, name, number, chance.uniform(0, 0.5)),
            daemon=True,
        ).start()

    def _commit_as_zombie(self, producer: Producer, name: str, number: int, after_s: float) -> None:
        time.sleep(after_s)
        self.history.end(name, number, Ending.UNKNOWN)
        with contextlib.suppress(KafkaException, BufferError):
            producer.commit_transaction(CALL_S)
            self.history.end(name, number, Ending.COMMITTED)


class JavaTxnLoad(TxnLoad):
    """Kafka's own producers, in a process that can be killed."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int, **rest: Any) -> None:
        super().__init__(bootstrap, topic, partitions, seed, **rest)
        if reason := tools.unavailable():
            pytest.skip(reason)
        self._process: subprocess.Popen[str] | None = None
        self._is_killed = False
        self._add("java", self._listen)

    def kill(self) -> None:
        """The producers die with what they have open; others take their names."""
        if self._process is not None:
            self._is_killed = True
            self._process.kill()

    def _listen(self) -> None:
        lives = 0
        while not self._stop.is_set():
            with self._start(self._seed + lives) as process:
                self._process, self._is_killed = process, False
                threading.Thread(target=self._end_with_load, args=(process,), daemon=True).start()
                assert process.stdout is not None
                for line in process.stdout:
                    if line.endswith("\n"):  # else it was killed before it did what it says
                        self._take(*line.rstrip("\n").split("\t"))
            lives += 1
            assert process.returncode == 0 or self._is_killed, f"exit code {process.returncode}"

    def _start(self, seed: int) -> subprocess.Popen[str]:
        last = dict.fromkeys(self.names, 0)
        for name, number in self.history.attempts:
            last[name] = max(last[name], number)
        command = tools.java_command(
            JAVA_PRODUCERS,
            *(self._bootstrap, self.topic, self._partitions, seed % 2**31),
            *(self._offsets_share, TIMEOUT_MS),
            *(f"{name}={number}" for name, number in last.items()),
            log_level="off",
            jvm=tools.SHORT_LIVED,
        )
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def _take(self, kind: str, *words: str) -> None:
        """A line of the process's (see there)."""
        if kind == "begin":
            name, number, has_offsets, partitions = words
            chosen = list(map(int, partitions.split(",")))
            self.history.begin(name, int(number), chosen, has_offsets == "1")
        elif kind == "end":
            name, number, ending = words
            self.history.end(name, int(number), Ending(ending))
        else:
            self._note(words[0])

    def _end_with_load(self, process: subprocess.Popen[str]) -> None:
        """It ends by itself when its input does."""
        while process.poll() is None and not self._stop.wait(0.1):
            pass
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(self.finish_within_s - 5)
        except subprocess.TimeoutExpired:
            process.kill()

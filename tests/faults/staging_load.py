"""Load for staging: queries whose tasks stage records under tokens, and drivers that publish them.

Drivers replay, race with zombies of themselves, leave tokens behind and drop what they have
published. A client of its own, on sockets, packed by hand. Must not know what is being broken.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tests.batches import kafka_batch
from tests.faults.workers import Workers
from tests.kafka_codes import Code

STAGE, PUBLISH, DROP = 10_000, 10_001, 10_002
PUBLISHED, ALREADY = 1, 2
FOR_NOW = frozenset(
    {
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.KAFKA_STORAGE_ERROR,
        Code.THROTTLING_QUOTA_EXCEEDED,
    }
)
FINISH_WITHIN_S = 90.0
ANSWER_WITHIN_S = 20.0
AT_ONCE = 3

Place = tuple[str, int]


class _Lost(Exception):
    """What was staged is gone: the task, or the batch, begins anew."""


@dataclass
class Attempt:
    """What one driver wants to publish as a batch: values by place, in order within each task."""

    query: str
    batch_id: int
    tokens: list[tuple[uuid.UUID, int]] = field(default_factory=list)
    values: list[dict[Place, list[bytes]]] = field(default_factory=list)
    told: int | None = None


class Client:
    """One connection at a time, to any of the brokers."""

    def __init__(
        self, brokers: Sequence[str], chance: random.Random, stop: threading.Event
    ) -> None:
        self._brokers = brokers
        self._chance = chance
        self._stop = stop
        self._socket: socket.socket | None = None
        self._correlation = 0
        self.said: Counter[str] = Counter()
        self.until = float("inf")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def stage(self, token: uuid.UUID, requests: Sequence[Sequence[tuple[Place, bytes]]]) -> int:
        """Stages all, several requests at a time; returns how many batches. Raises _Lost."""
        firsts = [0]
        for request in requests:
            firsts.append(firsts[-1] + len(request))
        answered = 0
        while answered < len(requests):
            window = range(answered, min(answered + AT_ONCE, len(requests)))
            bodies = [_stage_body(token, firsts[n], requests[n]) for n in window]
            for answer in self._ask(STAGE, bodies):
                if answer is None:
                    break
                error, at = _error(answer)
                (staged,) = struct.unpack_from(">i", answer, at)
                if error == Code.NONE:
                    answered += 1
                    assert staged >= firsts[answered], (staged, firsts[answered])
                elif error == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and 0 <= staged < firsts[answered]:
                    self.said["a token lost"] += 1
                    raise _Lost
                else:
                    assert error in FOR_NOW | {
                        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        Code.UNKNOWN_TOPIC_OR_PARTITION,
                    }, (error, answer)
                    self._pause(f"stage {error}")
        return firsts[-1]

    def publish(self, attempt: Attempt) -> int:
        """PUBLISHED or ALREADY, however often it takes. Raises _Lost."""
        body = _string(attempt.query) + _string("sink") + struct.pack(">q", attempt.batch_id)
        body += struct.pack(">i", len(attempt.tokens))
        for token, batches in attempt.tokens:
            body += token.bytes + struct.pack(">i", batches)
        body += struct.pack(">i", self._chance.choice([0, 50, 5_000]))
        while True:
            (answer,) = self._ask(PUBLISH, [body])
            if answer is None:
                continue
            error, at = _error(answer)
            if error == Code.NONE:
                return answer[at]
            if error == Code.RESOURCE_NOT_FOUND:
                self.said["a publication lost"] += 1
                raise _Lost
            assert error in FOR_NOW, (error, answer)
            self._pause(f"publish {error}")

    def drop(self, tokens: Sequence[uuid.UUID]) -> None:
        """Once; what comes of it does not matter."""
        body = struct.pack(">i", len(tokens)) + b"".join(token.bytes for token in tokens)
        self._ask(DROP, [body])

    def _ask(self, key: int, bodies: Sequence[bytes]) -> list[bytes | None]:
        """The answers in order; None, and no more, where the connection is lost."""
        first = self._correlation + 1
        answers: list[bytes | None] = []
        try:
            if self._socket is None:
                host, port = self._chance.choice(self._brokers).split(":")
                self._socket = socket.create_connection((host, int(port)), ANSWER_WITHIN_S)
            for body in bodies:
                self._correlation += 1
                header = struct.pack(">hhi", key, 0, self._correlation) + _string("faults")
                frame = header + body
                self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            for number in range(first, first + len(bodies)):
                (size,) = struct.unpack(">i", self._read(4))
                answer = self._read(size)
                assert int.from_bytes(answer[:4], "big") == number, "answers come in order"
                answers.append(answer[4:])
        except OSError:
            self.close()
            self._pause("connection lost")
            answers.append(None)
        return answers

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            if not more:
                raise ConnectionError
            found += more
        return found

    def _pause(self, why: str) -> None:
        self.said[why] += 1
        if self._stop.is_set():
            self.until = min(self.until, time.monotonic() + FINISH_WITHIN_S - 10)
            assert time.monotonic() < self.until, f"no end: {dict(self.said)}"
        time.sleep(0.05)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _stage_body(token: uuid.UUID, first: int, batches: Sequence[tuple[Place, bytes]]) -> bytes:
    body = token.bytes + struct.pack(">ii", first, len(batches))
    for (topic, index), records in batches:
        body += _string(topic) + struct.pack(">ii", index, len(records)) + records
    return body


def _error(answer: bytes) -> tuple[int, int]:
    """The error code, and where the message after it ends."""
    error, length = struct.unpack_from(">hh", answer)
    return error, 4 + max(length, 0)


class StagingLoad(Workers):
    """Queries that publish batch after batch until told to stop."""

    def __init__(
        self, brokers: Sequence[str], topics: Sequence[str], partitions: int, seed: int
    ) -> None:
        super().__init__()
        self.attempts: list[Attempt] = []
        self.said: Counter[str] = Counter()
        self._brokers = brokers
        self._places = [(topic, index) for topic in topics for index in range(partitions)]
        self.queries = [f"query-{number}" for number in range(3)]
        self._published = Counter(dict.fromkeys(self.queries, 0))
        for number, query in enumerate(self.queries):
            self._add(query, partial(self._drive, query, random.Random(seed * 100 + number)))

    def done(self) -> dict[str, int]:
        """Batches by query."""
        return dict(self._published)

    def told(self) -> object:
        return dict(self.said)

    def _drive(self, query: str, chance: random.Random) -> None:
        batch_id = -1
        while not self._stop.is_set():
            batch_id += chance.choice([1, 1, 1, 5])
            others: list[threading.Thread] = []
            if chance.random() < 0.3:  # a zombie of this driver is still at it
                seed = chance.randrange(2**31)
                other = threading.Thread(
                    target=self._run, args=(query, batch_id, random.Random(seed)), daemon=True
                )
                others.append(other)
                other.start()
            self._run(query, batch_id, chance)
            for other in others:
                other.join(FINISH_WITHIN_S)
            if chance.random() < 0.2:  # it did not hear of its commit, and starts again
                self._run(query, batch_id, chance)
            self._published[query] += 1

    def _run(self, query: str, batch_id: int, chance: random.Random) -> None:
        """Stages a batch and publishes it, until it has an answer."""
        client = Client(self._brokers, chance, self._stop)
        try:
            while True:
                attempt = Attempt(query, batch_id)
                self.attempts.append(attempt)
                with contextlib.suppress(_Lost):
                    for _ in range(chance.randint(1, 3)):
                        self._stage_task(client, attempt, chance)
                    attempt.told = client.publish(attempt)
                    if chance.random() < 0.2:  # abort(), after a commit that took effect
                        client.drop([token for token, _ in attempt.tokens])
                    return
        except BaseException as error:
            self._failures.append(error)
            raise
        finally:
            client.close()
            self.said.update(client.said)

    def _stage_task(self, client: Client, attempt: Attempt, chance: random.Random) -> None:
        """Until one try is staged; other tries leave what they staged behind."""
        while True:
            token = uuid.uuid4()
            values: dict[Place, list[bytes]] = {}
            requests = []
            number = 0
            for _ in range(chance.randint(1, 5)):
                request = []
                for _ in range(chance.randint(1, 3)):
                    place = chance.choice(self._places)
                    count = chance.randint(1, 3)
                    new = [b"%s %d" % (str(token).encode(), number + n) for n in range(count)]
                    number += count
                    values.setdefault(place, []).extend(new)
                    request.append((place, kafka_batch(new)))
                requests.append(request)
            with contextlib.suppress(_Lost):
                if chance.random() < 0.1:  # a task that fails on its way
                    client.stage(token, requests[:1])
                    continue
                attempt.tokens.append((token, client.stage(token, requests)))
                attempt.values.append(values)
                return


def check_publications(
    attempts: Sequence[Attempt], found: dict[Place, list[bytes]]
) -> tuple[list[str], int]:
    """What is wrong with what readers find; and how many batches are there."""
    wrong: list[str] = []
    by_token = {
        token: (attempt, values)
        for attempt in attempts
        for (token, _), values in zip(attempt.tokens, attempt.values, strict=True)
    }
    seen: dict[uuid.UUID, dict[Place, list[bytes]]] = {}
    for place, values in found.items():
        for value in values:
            token = uuid.UUID(value.split()[0].decode())
            seen.setdefault(token, {}).setdefault(place, []).append(value)
    published: dict[tuple[str, int], list[Attempt]] = {}
    for token, values in seen.items():
        if token not in by_token:
            wrong.append(f"token {token} was never to be published: {values}")
            continue
        attempt, expected = by_token[token]
        if values != expected:
            wrong.append(f"token {token} of {attempt}: {values}, not {expected}")
        known = published.setdefault((attempt.query, attempt.batch_id), [])
        if attempt not in known:
            known.append(attempt)
    for batch, visible in published.items():
        if len(visible) > 1:
            wrong.append(f"{batch} is there {len(visible)} times")
        for attempt in visible:
            missing = [token for token, _ in attempt.tokens if token not in seen]
            wrong += [f"{batch} lacks token {token}" for token in missing]
    for attempt in attempts:
        visible = published.get((attempt.query, attempt.batch_id), [])
        if attempt.told == PUBLISHED and attempt not in visible:
            wrong.append(f"was told to be published, and is not: {attempt}")
        if attempt.told == ALREADY and not visible:
            wrong.append(f"was told to have been published before, and was not: {attempt}")
    return wrong, len(published)

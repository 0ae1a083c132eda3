"""`penstock produce`: sends lines as records, with any Kafka broker.

Knows kafka-python's producer, stdin and a terminal; what a line is is `records`. Exit codes: 0 all
of it is acknowledged, 1 something was refused or lost, 2 a wrong argument or line, 130 Ctrl-C.
"""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli import codecs
from cli.client import (
    ANSWER_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    admin_client,
    bootstrapping,
    broker_command,
    complain,
    connection_options,
    fail,
)
from cli.errors import sentence_of
from cli.interrupts import Interrupts
from cli.progress import Progress, records
from cli.records import LineRefused, Record, json_record, text_record
from cli.topic_reads import existing_partitions

if TYPE_CHECKING:
    from kafka import KafkaProducer

INTERRUPTED: Final = 130
_RECORDS_WAITING_MAX: Final = 20_000
_BYTES_WAITING_MAX: Final = 32 * 2**20
_BATCH_BYTES: Final = 256 * 2**10
_RECORD_BYTES_MAX: Final = 100 * 2**20  # the broker's own limit comes first
_LINGER_MS: Final = 5
_DELIVERY_TIMEOUT_MS: Final = 120_000  # of a record; the client's own
_END_WITHIN_S: Final = 30.0  # of a transaction
_ACKS: Final = {"all": -1, "-1": -1, "1": 1, "0": 0}
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class _Stopped(Exception):
    """Sending ends before its end. exit_code: the command's."""

    def __init__(self, sentence: str, exit_code: int) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


class _Waiting:
    """What is sent and not acknowledged yet: bounded, so that memory is. Called by two threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._records = self._bytes = 0
        self.acknowledged = 0
        self.failed = 0
        self.failure: Exception | None = None

    def add(self, size: int) -> None:
        """One more; waits for room. Raises what went wrong with an earlier one."""
        with self._changed:
            while self._records >= _RECORDS_WAITING_MAX or (
                self._records and self._bytes + size > _BYTES_WAITING_MAX
            ):
                self._changed.wait(0.5)  # Ctrl-C is heard in between
            if self.failure is not None:
                raise self.failure
            self._records += 1
            self._bytes += size

    def done(self, size: int, failure: Exception | None) -> None:
        """One of them is acknowledged, or has failed."""
        with self._changed:
            self._records -= 1
            self._bytes -= size
            if failure is None:
                self.acknowledged += 1
            else:
                self.failed += 1
                self.failure = self.failure or failure
            self._changed.notify()

    def give_up(self, failure: Exception) -> None:
        """Nobody says what became of those that are left."""
        with self._changed:
            self.failed += self._records
            self.failure = self.failure or failure


@broker_command
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    values: Annotated[
        list[str] | None, typer.Argument(metavar="[VALUE]...", help="By default lines of stdin.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help='Lines are {"key": …, "value": …, "headers": {…}, "partition": …, '
            '"timestamp": …}, as consume --json gives them; key_base64 and value_base64 for bytes.',
        ),
    ] = False,
    key: Annotated[str | None, typer.Option(help="The key of every record without one.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="What is between key and value in a line, as in '\\t'.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Of every record; may be repeated."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="Where to; by default by the key, or anywhere.")
    ] = None,
    acks: Annotated[str, typer.Option(help="Whose word is awaited: all, 1 or 0.")] = "all",
    compression: Annotated[str, typer.Option(help=f"One of {', '.join(_CODECS)}.")] = "none",
    transactional_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="All of it in one transaction: all of it, or nothing."),
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send lines of stdin, or arguments, as records; ends when all of them are acknowledged."""
    if as_json and key_separator is not None:
        fail("--key-separator is for text: leave it out, or --json.", 2)
    if acks not in _ACKS:
        fail(f"--acks: '{acks}' is none of all, 1, 0.", 2)
    if compression not in _CODECS:
        fail(f"--compression: '{compression}' is none of {', '.join(_CODECS)}.", 2)
    if transactional_id is not None and _ACKS[acks] != -1:
        fail("--transactional-id needs --acks all.", 2)
    always = Record(None, None if key is None else key.encode(), _headers(header or []), partition)
    separator = None if key_separator is None else _unescaped(key_separator)
    with Interrupts() as interrupts:
        given = (value.encode() for value in values) if values else None
        lines = given or interrupts.lines_of(sys.stdin.buffer)
        with admin_client(bootstrap_server) as admin:
            count = existing_partitions(admin, topic)
        codecs.complete()
        from kafka import KafkaProducer
        from kafka.errors import KafkaTimeoutError

        options = connection_options(bootstrap_server)
        with bootstrapping(bootstrap_server):
            producer = KafkaProducer(
                acks=_ACKS[acks],
                enable_idempotence=_ACKS[acks] == -1,
                compression_type=None if compression == "none" else compression,
                transactional_id=transactional_id,
                batch_size=_BATCH_BYTES,
                linger_ms=_LINGER_MS,
                delivery_timeout_ms=_DELIVERY_TIMEOUT_MS,
                request_timeout_ms=min(ANSWER_TIMEOUT_MS, _DELIVERY_TIMEOUT_MS - _LINGER_MS),
                max_request_size=_RECORD_BYTES_MAX,
                allow_auto_create_topics=False,
                **options,
            )
        sending = _Sending(producer, bootstrap_server, topic, count)
        try:
            sending.run(_parsed(lines, always, separator, as_json=as_json), transactional_id)
        finally:
            with contextlib.suppress(KafkaTimeoutError):  # what is left was given up
                producer.close(timeout=0)


def _headers(pairs: list[str]) -> tuple[tuple[str, bytes | None], ...]:
    headers = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            fail(f"--header: '{pair}' is not NAME=VALUE.", 2)
        headers.append((name, value.encode()))
    return tuple(headers)


def _unescaped(text: str) -> bytes:
    """\\t as a shell without $'…' has it."""
    if not text:
        fail("--key-separator: '' separates nothing; write for example ':' or '\\t'.", 2)
    return text.replace("\\t", "\t").encode()


def _parsed(
    lines: Iterable[bytes], always: Record, separator: bytes | None, *, as_json: bool
) -> Iterator[Record]:
    for number, line in enumerate(lines, 1):
        if as_json and not line.strip():
            continue
        try:
            found = json_record(line) if as_json else text_record(line, separator)
            record = Record(
                found.value,
                found.key if found.key is not None else always.key,
                (*always.headers, *found.headers),
                found.partition if found.partition is not None else always.partition,
                found.timestamp,
            )
            if record.value is None and record.key is None:
                raise LineRefused("it has neither key nor value")
            if any(value is None for _, value in record.headers):
                raise LineRefused("a header without a value cannot be sent from here")
        except LineRefused as error:
            raise _Stopped(f"Line {number} is no record: {error}.", 2) from None
        yield record


class _Sending:
    """One run of the command: sends, counts and says how it ended."""

    def __init__(
        self, producer: "KafkaProducer", bootstrap: str, topic: str, partitions: int
    ) -> None:
        self._producer = producer
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._waiting = _Waiting()
        self._progress = Progress("acknowledged")

    def run(self, wanted: Iterable[Record], transactional_id: str | None) -> None:
        """All of it; ends the command with what was acknowledged."""
        from kafka.errors import KafkaError

        is_open = False
        stopped: _Stopped | None = None
        try:
            if transactional_id is not None:
                self._producer.init_transactions()
                self._producer.begin_transaction()
                is_open = True
            try:
                self._send_all(wanted)
            except (_Stopped, KeyboardInterrupt) as error:
                stopped = error if isinstance(error, _Stopped) else _Stopped("", INTERRUPTED)
            self._flush()
            if self._waiting.failure is not None:
                raise self._waiting.failure
            if is_open and stopped is None:
                if not _has_ended(self._producer.commit_transaction):
                    stopped = _Stopped(
                        f"The broker at {self._bootstrap} does not say whether the transaction is "
                        f"committed: its database may be away. See 'penstock txn describe "
                        f"{transactional_id}' later.",
                        1,
                    )
                is_open = False
        except KafkaError as error:
            stopped = _Stopped(sentence_of(self._bootstrap, error), 1)
        except KeyboardInterrupt:  # a second one
            stopped = _Stopped("", INTERRUPTED)
        if is_open:
            self._abort()
        self._end(stopped, is_aborted=is_open)

    def _flush(self) -> None:
        """Waits for all that was sent, but not for ever, as kafka-python may (3.0.12)."""
        from kafka.errors import KafkaTimeoutError

        try:
            self._producer.flush(timeout=_DELIVERY_TIMEOUT_MS / 1000 + _END_WITHIN_S)
        except KafkaTimeoutError as error:
            self._waiting.give_up(error)

    def _send_all(self, wanted: Iterable[Record]) -> None:
        for record in wanted:
            if record.partition is not None and record.partition >= self._partitions:
                raise _Stopped(
                    f"There is no partition {record.partition} in {self._topic}: "
                    f"it has {self._partitions}, from 0 on.",
                    2,
                )
            self._send(record)
            self._progress.at(self._waiting.acknowledged)

    def _send(self, record: Record) -> None:
        size = record.size
        self._waiting.add(size)
        sent = self._producer.send(
            self._topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=record.partition,
            timestamp_ms=record.timestamp,
        )

        def acknowledged(_: Any) -> None:
            self._waiting.done(size, None)

        def failed(error: Exception) -> None:
            self._waiting.done(size, error)

        sent.add_callback(acknowledged)
        sent.add_errback(failed)

    def _abort(self) -> None:
        from kafka.errors import KafkaError

        reason = "the broker does not say that it is aborted"
        try:
            if _has_ended(self._producer.abort_transaction):
                return
        except KafkaError as error:
            reason = str(error)
        complain(f"The transaction stays open until its timeout: {reason}.")

    def _end(self, stopped: _Stopped | None, *, is_aborted: bool) -> None:
        count = records(self._waiting.acknowledged)
        lost = f"; {records(self._waiting.failed)} failed" if self._waiting.failed else ""
        if is_aborted:
            self._progress.end(f"Aborted: nothing is in {self._topic}.")
        else:
            self._progress.end(f"Sent {count} to {self._topic}{lost}.")
        if stopped is not None:
            if str(stopped):
                complain(str(stopped))
            raise typer.Exit(stopped.exit_code)


def _has_ended(call: Callable[[], None]) -> bool:
    """Whether it ended in time: kafka-python waits for ever (3.0.12). Raises what it raises."""
    from kafka.errors import KafkaError

    failures: list[KafkaError] = []

    def run() -> None:
        try:
            call()
        except KafkaError as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(_END_WITHIN_S)
    for failure in failures:
        raise failure
    return not thread.is_alive()

"""`penstock consume`: prints a topic's records, of any Kafka broker.

Knows kafka-python's consumer, stdout and a terminal; what a line looks like is `records`. Exit
codes: 0 done, 1 the broker refused or went away, 2 a wrong argument, 130 Ctrl-C.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cli import codecs
from cli.client import (
    ANSWER_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    admin_client,
    ask_patiently,
    bootstrapping,
    broker_command,
    complain,
    connection_options,
    fail,
)
from cli.errors import sentence_of
from cli.group_reads import describe
from cli.interrupts import Interrupts
from cli.progress import Progress, records
from cli.records import TextForm, json_line
from cli.topic_reads import existing_partitions

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

INTERRUPTED: Final = 130
_POLL_MS: Final = 200
_POLL_RECORDS: Final = 2_000
_COMMIT_INTERVAL_S: Final = 5.0
_JOINED_WITHIN_S: Final = 10.0  # else it is asked why not, again and again
_PARTITION_FETCH_BYTES: Final = 8 * 2**20
_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")


@dataclass
class _Limits:
    """When to end. is_following: not at the end of what is there; idle_s: without a record."""

    is_following: bool
    max_records: int | None
    idle_s: float | None


@broker_command
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="With --follow: what is there already, too.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option(min=0, help="Where to begin, in each partition asked for.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this one; may be repeated.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Go on where this group is, and commit what was printed."),
    ] = None,
    isolation_level: Annotated[
        str, typer.Option(help="read_committed leaves out what is aborted or still open.")
    ] = "read_uncommitted",
    max_messages: Annotated[
        int | None, typer.Option(min=1, help="End after so many records.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Wait for more, and end when none came for so long."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Keys before values.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Milliseconds, first.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="PARTITION:OFFSET.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="NAME=VALUE,….")] = False,
    separator: Annotated[str, typer.Option(help="What is between these; a tab.")] = "\t",
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records: all that are there now, from the beginning; with --follow what comes from now.

    Text is printed byte for byte, a line a record; null is a record without a value. --json says
    all of a record, and what is not UTF-8 in Base64; produce --json takes it.
    """
    if isolation_level not in _ISOLATION_LEVELS:
        fail(
            f"--isolation-level: '{isolation_level}' is none of {', '.join(_ISOLATION_LEVELS)}.", 2
        )
    if group is not None and (partition or offset is not None):
        fail("--group goes on where the group is: leave out --partition and --offset.", 2)
    if offset is not None and from_beginning:
        fail("--offset and --from-beginning are two places to begin: leave out one.", 2)

    def partitions() -> int:
        with admin_client(bootstrap_server) as admin:
            return existing_partitions(admin, topic)

    def look() -> None:
        partitions()
        if group is not None:
            ask_patiently(bootstrap_server, lambda client: describe(client, [group]))

    count = partitions()
    if missing := [number for number in partition or [] if number >= count]:
        fail(f"There is no partition {missing[0]} in {topic}: it has {count}, from 0 on.", 2)
    codecs.complete()
    form = TextForm(timestamps, offsets, headers, keys, separator.replace("\\t", "\t").encode())
    begins_late = follow and not from_beginning
    from kafka import KafkaConsumer, TopicPartition

    options = connection_options(bootstrap_server)
    with bootstrapping(bootstrap_server):
        consumer = KafkaConsumer(
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="latest" if begins_late else "earliest",
            isolation_level=isolation_level,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            request_timeout_ms=ANSWER_TIMEOUT_MS,
            allow_auto_create_topics=False,
            **options,
        )
    printing = _Printing(
        consumer,
        _Limits(follow or timeout is not None, max_messages, timeout),
        json_line if as_json else form.line,
        look,
        is_committing=group is not None,
    )
    places = [TopicPartition(topic, number) for number in sorted(set(partition or range(count)))]
    with printing.interrupts:
        printing.run(bootstrap_server, topic, None if group is not None else places, offset)


@dataclass
class _Printing:
    """One run of the command: reads, prints, commits and counts.

    look: ends the command where the broker cannot work, which a consumer waits out in silence.
    """

    consumer: "KafkaConsumer"
    limits: _Limits
    line: Callable[[Any], bytes]
    look: Callable[[], None]
    is_committing: bool
    interrupts: Interrupts = field(default_factory=Interrupts)
    printed: int = 0
    _next: dict["TopicPartition", int] = field(default_factory=dict)  # not committed yet
    _ends: dict["TopicPartition", int] = field(default_factory=dict)

    def run(
        self,
        bootstrap: str,
        topic: str,
        places: "list[TopicPartition] | None",
        offset: int | None,
    ) -> None:
        """places: None where the group says which."""
        from kafka.errors import KafkaError

        progress = Progress("read")
        code, said, is_heard = 0, "", True
        try:
            if places is None:
                self.consumer.subscribe([topic])
            else:
                self._begin(places, offset)
            self._print_all(progress)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except typer.Exit as ended:  # it is said why
            code = ended.exit_code
        except BrokenPipeError:  # whom it was for has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            is_heard = False  # nor can be told how many of the last ones arrived
        except KafkaError as error:
            code, said = 1, sentence_of(bootstrap, error)
        try:
            self._commit()
        except KafkaError as error:
            code, said = 1, f"What was printed is not committed. {sentence_of(bootstrap, error)}"
        self.consumer.close(autocommit=False, timeout_ms=2_000)
        if is_heard:
            progress.end(f"Read {records(self.printed)} of {topic}.")
        if said:
            complain(said)
        if code:
            raise typer.Exit(code)

    def _begin(self, places: "list[TopicPartition]", offset: int | None) -> None:
        self.consumer.assign(places)
        if offset is None:
            return
        first = self.consumer.beginning_offsets(places)
        last = self.consumer.end_offsets(places)
        for place in places:
            self.consumer.seek(place, min(max(offset, first[place]), last[place]))

    def _print_all(self, progress: Progress) -> None:
        heard = committed = looked = time.monotonic()
        while self.limits.max_records is None or self.printed < self.limits.max_records:
            left = _POLL_RECORDS
            if self.limits.max_records is not None:
                left = min(left, self.limits.max_records - self.printed)
            found = self.consumer.poll(timeout_ms=_POLL_MS, max_records=left)
            self.interrupts.check()
            now = time.monotonic()
            if found:
                heard = now
                self._print(found)
                progress.at(self.printed)
            elif self.limits.idle_s is not None and now - heard >= self.limits.idle_s:
                if not self.printed:
                    self.look()
                    self._is_at_the_end()  # raises where the log cannot be asked
                return
            if now - looked >= _JOINED_WITHIN_S and not self.consumer.assignment():
                self.look()
                looked = time.monotonic()
            if now - committed >= _COMMIT_INTERVAL_S:
                self._commit()
                committed = now
            if not self.limits.is_following and self._is_at_the_end():
                return

    def _print(self, found: "dict[TopicPartition, list[Any]]") -> None:
        out = sys.stdout.buffer
        for place, several in found.items():
            for record in several:
                out.write(_displayed(self.line(record)) + b"\n")
            # Only what has been handed over is committed; and all of a poll is, or none of it.
            out.flush()
            self._next[place] = several[-1].offset + 1
            self.printed += len(several)

    def _is_at_the_end(self) -> bool:
        """Whether all that was there when it began has been read."""
        places = self.consumer.assignment()
        if not places:
            return False
        new = [place for place in places if place not in self._ends]
        if new:
            self._ends |= self.consumer.end_offsets(new)
        return all(self.consumer.position(place) >= self._ends[place] for place in places)

    def _commit(self) -> None:
        from kafka.structs import OffsetAndMetadata

        if self.is_committing and self._next:
            self.consumer.commit(
                {place: OffsetAndMetadata(number, "", -1) for place, number in self._next.items()}
            )
            self._next.clear()


def _displayed(line: bytes) -> bytes:
    """A terminal is shown what is not UTF-8 as \\xff; a pipe has the bytes as they are."""
    if not sys.stdout.isatty():
        return line
    return line.decode(errors="backslashreplace").encode()

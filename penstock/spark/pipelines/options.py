"""What the pipelines' command lines share, and sentences for what is wrong with them.

Standard library only: `--help` needs no Spark. Exit codes: 0 done, 1 it could not be done, 2 a
wrong argument, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.connecting import PropertyError, read_properties
from penstock.spark.pipelines import PIPELINES

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMATS: Final = ("parquet", "delta")
"""What a lake may be made of; the first unless another is asked for."""

_OF_THE_SINK: Final = (
    *("compression.type", "batch.size", "delivery.timeout.ms"),
    *("security.", "sasl.", "ssl."),
)


class PipelineFailed(Exception):
    """The pipeline cannot go on; the message is for the person who started it."""

    exit_code = 1


class WrongArgument(PipelineFailed):
    """Another command line would do."""

    exit_code = 2


def pair(text: str) -> tuple[str, str]:
    """NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name.strip(), value


def interval(text: str) -> str:
    """An interval as Spark takes it, out of one as people write it: 500ms, 5s, 2min, 1h."""
    units = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "min": "minutes", "h": "hours"}
    found = re.fullmatch(r"(\d+)\s*([a-z]+)", text.strip())
    if not found or found[2] not in {*units, *units.values()}:
        raise argparse.ArgumentTypeError(f"'{text}' is no interval, as 5s, 500ms or 10min is one")
    return f"{found[1]} {units.get(found[2], found[2])}"


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 on")
    return int(text)


def moment(text: str) -> datetime:
    """A time as ISO 8601 has it; UTC where no zone is given."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no time, as 2026-11-21 or 2026-11-21T20:15:00+01:00 is one"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the topics are. properties: of Kafka's client, by their Kafka names."""

    bootstrap: str
    properties: dict[str, str] = field(default_factory=dict, repr=False)  # a password may be there

    def source_options(self) -> dict[str, str]:
        """For the stock source."""
        own = {f"kafka.{name}": value for name, value in self.properties.items()}
        return {**own, "kafka.bootstrap.servers": self.bootstrap}

    def sink_options(self) -> dict[str, str]:
        """For the sink: what does not concern readers only."""
        own = {
            f"kafka.{name}": value
            for name, value in self.properties.items()
            if name.startswith(_OF_THE_SINK)
        }
        return {**own, "kafka.bootstrap.servers": self.bootstrap}


def parser(name: str) -> argparse.ArgumentParser:
    """With what every pipeline knows: the broker, and where Spark is."""
    made = argparse.ArgumentParser(
        prog=f"penstock pipeline {name}",
        description=PIPELINES[name],
        epilog="More, with examples: docs/spark.md.",
        allow_abbrev=False,
    )
    where = made.add_argument_group("where")
    where.add_argument(
        "--bootstrap-server",
        metavar="HOST:PORT",
        default="localhost:9092",
        help="a broker (default: %(default)s)",
    )
    where.add_argument(
        "--kafka",
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        default=[],
        help="a property of Kafka's clients, as security.protocol=SSL; may be repeated",
    )
    where.add_argument(
        "--command-config",
        metavar="FILE",
        type=Path,
        help="properties of Kafka's clients, one a line: a password is shown to nobody there",
    )
    where.add_argument(
        "--master",
        metavar="URL",
        help="a Spark cluster (default: this machine, or what spark-submit says)",
    )
    where.add_argument(
        "--conf",
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        default=[],
        help="a setting of Spark's; may be repeated",
    )
    return made


def broker_of(arguments: argparse.Namespace) -> Broker:
    """Out of `--bootstrap-server`, `--command-config` and `--kafka`. Raises WrongArgument."""
    properties: dict[str, str] = {}
    if arguments.command_config is not None:
        try:
            properties = read_properties(arguments.command_config)
        except PropertyError as wrong:
            raise WrongArgument(str(wrong)) from None
    return Broker(arguments.bootstrap_server, properties | dict(arguments.kafka))


def add_lake_format(made: argparse.ArgumentParser) -> None:
    """`--format`."""
    made.add_argument(
        "--format",
        choices=FORMATS,
        default=FORMATS[0],
        help="what the lake is made of (default: %(default)s)",
    )


def add_streaming_options(made: argparse.ArgumentParser, *, trigger: str | None) -> None:
    """How often, from where, how much at once. trigger: what is done if nothing is said."""
    pace = made.add_argument_group("pace")
    how = pace.add_mutually_exclusive_group()
    how.add_argument(
        "--available-now",
        action="store_true",
        help="work through what is in the topics by now, and end",
    )
    how.add_argument(
        "--trigger",
        metavar="INTERVAL",
        type=interval,
        default=trigger and interval(trigger),
        help=f"a micro-batch each 5s, 2min, … (default: {trigger or 'one after the other'})",
    )
    pace.add_argument(
        "--max-offsets",
        metavar="N",
        type=positive,
        help="of a micro-batch, at most; without it one takes all there is",
    )
    pace.add_argument(
        "--starting-offsets",
        metavar="WHERE",
        default="earliest",
        help="earliest, latest or JSON, where there is no checkpoint yet (default: %(default)s)",
    )
    pace.add_argument(
        "--allow-data-loss",
        action="store_true",
        help="go on where offsets have been deleted before they were read",
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """What `add_streaming_options` asked for."""

    available_now: bool = False
    trigger: str | None = None
    max_offsets: int | None = None
    starting_offsets: str = "earliest"
    allow_data_loss: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Pace:
        return cls(**{name: getattr(arguments, name) for name in cls.__slots__})

    def source_options(self) -> dict[str, str]:
        """For the stock source."""
        options = {
            "startingOffsets": self.starting_offsets,
            "failOnDataLoss": "false" if self.allow_data_loss else "true",
        }
        if self.max_offsets is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_offsets)
        return options

    def set(self, writer: DataStreamWriter) -> DataStreamWriter:
        """The trigger; Spark's own if nothing was said."""
        if self.available_now:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=self.trigger) if self.trigger else writer


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last

"""The options of the sink: what they are called, what they may be.

Knows words; must not know Spark or a socket. An option that is not known is refused: one that is
misspelt would else be without effect, in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.connecting import KNOWN, Connecting, PropertyError, connecting
from penstock.connection import Address, addresses_of
from penstock.spark.compression import UnknownCompression, compression_of

DEFAULT_BATCH_SIZE: Final = 128 * 1024
DEFAULT_DELIVERY_TIMEOUT_MS: Final = 120_000

# Spark's own, which every sink is told.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
# Kafka's names, which the stock sink knows with this prefix only.
_PREFIX: Final = "kafka."


class OptionError(ValueError):
    """An option is missing, unknown or wrong; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What a user has said.

    topic: for all records; None: each record's column says. batch_size: bytes of a record batch
    before compression. sink_id: tells several writes of one batch apart. delivery_timeout_s: how
    long what fails is tried again. transaction: name and number of a batch job's write, which is
    done once only, however often the job runs (as Delta's txnAppId and txnVersion).
    fails_below: whether a number below the last one of that name is an error.
    """

    servers: tuple[Address, ...]
    connecting: Connecting
    topic: str | None
    compression: str
    batch_size: int
    include_headers: bool
    sink_id: str
    delivery_timeout_s: float
    transaction: tuple[str, int] | None
    fails_below: bool


def parse(options: Mapping[str, str], *, is_stream: bool) -> SinkOptions:
    """The options of a write. Raises OptionError."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given.keys() & {"compression.type", "batch.size", "delivery.timeout.ms"}:
        given[_PREFIX + name] = given.pop(name)
    known = _KNOWN if is_stream else _KNOWN | _OF_BATCHES
    for name in sorted(given.keys() - _SPARKS_OWN - {option.lower() for option in known}):
        raise OptionError(_unknown(name, is_stream))
    try:
        servers = addresses_of(_required(given, "kafka.bootstrap.servers"))
    except ValueError as wrong:
        raise OptionError(str(wrong)) from None
    compression = given.get("kafka.compression.type", "none").lower()
    try:
        compression_of(compression)
    except UnknownCompression as unknown:
        raise OptionError(str(unknown)) from unknown
    topic = given.get("topic")
    if topic == "":
        raise OptionError("topic is empty.")
    batch_size = _number(given, "kafka.batch.size", DEFAULT_BATCH_SIZE)
    delivery_ms = _number(given, "kafka.delivery.timeout.ms", DEFAULT_DELIVERY_TIMEOUT_MS)
    return SinkOptions(
        servers=tuple(servers),
        connecting=_connecting(given),
        topic=topic,
        compression=compression,
        batch_size=batch_size,
        include_headers=_flag(given, "includeHeaders", default=True),
        sink_id=given.get("sink.id", "" if is_stream else (topic or "")),
        delivery_timeout_s=delivery_ms / 1000,
        transaction=_transaction(given),
        fails_below=_fails_below(given),
    )


_KNOWN: Final = frozenset(
    {
        "kafka.bootstrap.servers",
        "topic",
        "kafka.compression.type",
        "kafka.batch.size",
        "kafka.delivery.timeout.ms",
        *(_PREFIX + name for name in KNOWN),
        "includeHeaders",
        "sink.id",
    }
)
_OF_BATCHES: Final = frozenset({"txnAppId", "txnVersion", "txnBelow"})


def _unknown(name: str, is_stream: bool) -> str:
    if is_stream and name in {option.lower() for option in _OF_BATCHES}:
        return f"Option {name} is for batch writes: a stream's batches are counted by Spark."
    listed = ", ".join(sorted(_KNOWN if is_stream else _KNOWN | _OF_BATCHES))
    return f"The penstock sink has no option '{name}'. It has: {listed}."


def _required(given: Mapping[str, str], name: str) -> str:
    if name not in given:
        raise OptionError(f"Option {name} is missing.")
    return given[name]


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default)).strip()
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 2**31:
        raise OptionError(f"{name} is a number from 1 to 2147483647, not '{text}'.")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not '{text}'.")
    return text == "true"


def _connecting(given: Mapping[str, str]) -> Connecting:
    """The words that the Java client has for it, so that both sinks take the same options."""
    try:
        return connecting(given, _PREFIX)
    except PropertyError as wrong:
        raise OptionError(str(wrong)) from None


def _transaction(given: Mapping[str, str]) -> tuple[str, int] | None:
    application, version = given.get("txnappid"), given.get("txnversion")
    if application is None and version is None:
        return None
    if not application or version is None:
        raise OptionError("txnAppId and txnVersion are given together or not at all.")
    if not version.isascii() or not version.isdigit() or int(version) >= 2**63:
        raise OptionError(f"txnVersion is a whole number from 0 on, not '{version}'.")
    return application, int(version)


def _fails_below(given: Mapping[str, str]) -> bool:
    text = given.get("txnbelow", "skip").strip().lower()
    if text not in ("skip", "fail"):
        raise OptionError(f"txnBelow is skip or fail, not '{text}'.")
    if text == "fail" and "txnappid" not in given:
        raise OptionError("txnBelow is of use with txnAppId and txnVersion only.")
    return text == "fail"

"""What a property is: its type, its valid values, how its text is read and written.

Knows no property by name, no file, environment, wire or database. Sentences are Kafka's own
(ConfigDef.parseType and its validators).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

_BOUNDS = {"INT": (-(2**31), INT_MAX), "LONG": (-(2**63), LONG_MAX), "SHORT": (-(2**15), 2**15 - 1)}


class ConfigType(Enum):
    """Type of a property; the value is Kafka's id in DescribeConfigs (DescribeConfigsResponse).

    UNKNOWN: for a name that is no property.
    """

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(Enum):
    """How a broker property may change while brokers run (DynamicBrokerConfig)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigError(ValueError):
    """An invalid value of a property; the text is Kafka's own sentence."""


ConfigValue = bool | int | float | str | tuple[str, ...]
Validator = Callable[[str, ConfigValue], None]


def invalid(name: str, value: object, why: str) -> ConfigError:
    return ConfigError(f"Invalid value {value} for configuration {name}: {why}")


def at_least(minimum: int) -> Validator:
    """Kafka's `Range.atLeast`."""
    return between(minimum, None)


def between(minimum: int, maximum: int | None) -> Validator:
    """Kafka's `Range.between`, bounds included; no upper bound where `maximum` is None."""

    def check(name: str, value: ConfigValue) -> None:
        assert isinstance(value, int | float)
        if value < minimum:
            raise invalid(name, value, f"Value must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise invalid(name, value, f"Value must be no more than {maximum}")

    return check


def one_of(*allowed: str) -> Validator:
    """Kafka's `ValidString.in`, and `ValidList.in` where the value is a list."""

    def check(name: str, value: ConfigValue) -> None:
        for item in value if isinstance(value, tuple) else (value,):
            if item not in allowed:
                raise invalid(name, item, f"String must be one of: {', '.join(allowed)}")

    return check


def one_of_any_case(*allowed: str) -> Validator:
    """Kafka's `CaseInsensitiveValidString.in`."""

    def check(name: str, value: ConfigValue) -> None:
        if not isinstance(value, str) or value.upper() not in allowed:
            shown = ", ".join(allowed)
            raise invalid(name, value, f"String must be one of (case insensitive): {shown}")

    return check


def only_default(default: str | None, why: str) -> Validator:
    """No value but the default: any other would promise what is not there.

    The value is not repeated: it may be a password.
    """

    def check(name: str, value: ConfigValue) -> None:
        if default is None or to_text(value) != default:
            raise ConfigError(f"{name} cannot be changed: {why}")

    return check


_DURATION = re.compile(
    r"[-+]?P(?=.)([-+]?\d+D)?(T(?=.)([-+]?\d+H)?([-+]?\d+M)?([-+]?\d+(\.\d*)?S)?)?"
)


def offset_reset(name: str, value: ConfigValue) -> None:
    """Kafka's `ShareGroupAutoOffsetResetStrategy.Validator`."""
    assert isinstance(value, str)
    strategy, colon, duration = value.partition(":")
    if value not in {"earliest", "latest"} and not (
        strategy == "by_duration" and colon and _DURATION.fullmatch(duration)
    ):
        why = (
            f"Invalid value `{value}` for configuration {name}. The value must be either "
            "'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
        )
        raise invalid(name, value, why)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A broker property that says the same in another unit (`log.retention.hours`)."""

    name: str
    unit_ms: int
    default: str | None
    validator: Validator | None = None


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One property.

    default: as text; None is Kafka's null (not set, no value).
    topic_name, group_name, broker_name: its name there, or None if it does not exist there.
    alternatives: weaker broker properties for the same value, strongest first.
    set_by: the setting that gives a broker property its value; is_settable: or its own name does.
    """

    type: ConfigType
    default: str | None
    documentation: str
    topic_name: str | None = None
    group_name: str | None = None
    broker_name: str | None = None
    validator: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    alternatives: tuple[Alternative, ...] = ()
    broker_default: str | None = None
    set_by: str | None = None
    is_settable: bool = False

    @property
    def is_sensitive(self) -> bool:
        """Whether the value must never be shown."""
        return self.type is ConfigType.PASSWORD


def parse(name: str, text: str, definition: ConfigDef) -> ConfigValue:
    """The typed value of a property's text, checked.

    Raises ConfigError with Kafka's sentence (ConfigDef.parseType and the validators). `name` is
    the one the user wrote, since topics and brokers name a property differently.
    """
    value = parse_type(name, text, definition.type)
    if definition.validator is not None:
        definition.validator(name, value)
    return value


def parse_type(name: str, text: str, kind: ConfigType) -> ConfigValue:
    trimmed = text.strip()
    match kind:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in {"true", "false"}:
                raise invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            if re.fullmatch(r"[+-]?[0-9]{1,30}", trimmed):
                number = int(trimmed)
                low, high = _BOUNDS[kind.name]
                if low <= number <= high:
                    return number
            raise invalid(name, text, f"Not a number of type {kind.name}")
        case ConfigType.DOUBLE:
            if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", trimmed):
                raise invalid(name, text, f"Not a number of type {kind.name}")
            return float(trimmed)
        case ConfigType.LIST:
            return tuple(re.split(r"\s*,\s*", trimmed)) if trimmed else ()
        case ConfigType.STRING | ConfigType.CLASS | ConfigType.PASSWORD | ConfigType.UNKNOWN:
            return trimmed


def to_text(value: ConfigValue) -> str:
    """A typed value as Kafka writes it in DescribeConfigs (ConfigDef.convertToString)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return _java_double(value) if isinstance(value, float) else str(value)


def _java_double(value: float) -> str:
    """As Java's `Double.toString` writes it: 0.5, 1.0E7, 1.0E-4."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return str(value)
    digits, _, exponent = f"{Decimal(repr(value)).normalize():E}".partition("E")
    return f"{digits if '.' in digits else digits + '.0'}E{int(exponent)}"

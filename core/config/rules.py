"""What AlterConfigs and IncrementalAlterConfigs do to the settings of one resource.

The current settings in, the changes or a refusal out. `core.config.definitions` says which
properties exist and which values they take; the caller checks that the resource exists.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from core.config.definitions import (
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    PULSAR_PROVIDERS,
    TOPIC_CONFIGS,
)
from core.config.listeners import OWN, listener_and_property, missing_for_bearer
from core.config.types import ConfigDef, ConfigError, ConfigType, UpdateMode, parse
from core.config.values import (
    BrokerValues,
    authentication_methods,
    broker_bool,
    broker_int,
    broker_text,
    group_int,
    topic_value,
)
from core.errors import Error, Refusal
from core.security.listeners import named_listeners
from core.security.oauthbearer import OAUTHBEARER
from core.topic.rules import check_topic_name, find_repeated

MAX_CONFIG_NAME_BYTES = 1000
"""The name is part of an index row, which PostgreSQL limits to 2,700 bytes."""
MAX_CONFIG_VALUE_LENGTH = 32_767
"""Kafka's limit before flexible versions: old clients must be able to read what is stored."""
MAX_GROUP_ID_BYTES = 2000
"""Of groups that have settings of their own: the id is part of an index."""


class AlterOperation(Enum):
    """What IncrementalAlterConfigs does with a property; the value is Kafka's id (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigResourceType(Enum):
    """The kinds of resources with settings; the value is Kafka's id (`ConfigResource.Type`)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32

    @classmethod
    def of(cls, number: int) -> "ConfigResourceType":
        """The type with this id, or UNKNOWN."""
        return next((kind for kind in cls if kind.value == number), cls.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """A topic by name, a group or a broker by id, or ("" with BROKER) all brokers.

    type_number: Kafka's id of the type, as the client sent it.
    """

    type_number: int
    name: str

    @property
    def type(self) -> ConfigResourceType:
        return ConfigResourceType.of(self.type_number)


@dataclass(frozen=True, slots=True)
class ConfigOperation:
    """One step of IncrementalAlterConfigs; operation is Kafka's id, as the client sent it."""

    name: str
    operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ConfigAlteration:
    """A client's request to change one resource's settings.

    replaces_all: AlterConfigs, which names the complete new settings, so every operation is SET;
    otherwise IncrementalAlterConfigs, which names the steps.
    """

    resource: ConfigResource
    operations: tuple[ConfigOperation, ...]
    replaces_all: bool = False


ConfigChanges = Mapping[str, str | None]
"""New text by name; None deletes."""


def check_alterable(alteration: ConfigAlteration, own_id: int) -> Refusal | None:
    """Refuses what this broker can never alter (`ConfigAdminManager.preprocess`).

    own_id: a broker checks only its own settings; clients send a change to the broker it is for.
    """
    resource, operations = alteration.resource, alteration.operations
    if find_repeated(each.name for each in operations):
        return Refusal(Error.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = [
        each.name
        for each in operations
        if each.value is None and each.operation != AlterOperation.DELETE.value
    ]
    if nulls:
        message = f"Null value not supported for : {', '.join(nulls)}"
        return Refusal(Error.INVALID_REQUEST, message)
    match resource.type:
        case ConfigResourceType.TOPIC if not resource.name:
            return Refusal(Error.INVALID_REQUEST, "Default topic resources are not allowed.")
        case ConfigResourceType.TOPIC:
            return check_topic_name(resource.name)
        case ConfigResourceType.GROUP if not resource.name:
            return Refusal(Error.INVALID_REQUEST, "Default group resources are not allowed.")
        case ConfigResourceType.GROUP:
            return _check_group_id(resource.name)
        case ConfigResourceType.BROKER if not resource.name:
            return None
        case ConfigResourceType.BROKER:
            return _check_own_id(resource.name, own_id)
        case _:
            message = f"Unknown resource type {resource.type_number}"
            return Refusal(Error.INVALID_REQUEST, message)


def _check_group_id(name: str) -> Refusal | None:
    """Kafka takes any id, but a group with NUL in its id cannot exist or be stored here."""
    if "\0" in name:
        return Refusal(Error.INVALID_REQUEST, "A group id may not contain NUL characters.")
    if len(name.encode(errors="surrogatepass")) > MAX_GROUP_ID_BYTES:
        message = f"Groups whose id is longer than {MAX_GROUP_ID_BYTES} bytes have no settings."
        return Refusal(Error.INVALID_REQUEST, message)
    return None


def parse_broker_id(name: str) -> int | None:
    """A broker's id from a resource name (Java's `Integer.parseInt`), or None."""
    digits = name[1:] if name[:1] in {"-", "+"} else name
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        return None
    return int(name)


def _check_own_id(name: str, own_id: int) -> Refusal | None:
    broker_id = parse_broker_id(name)
    if broker_id is None:
        return Refusal(Error.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if broker_id != own_id:
        message = f"Unexpected broker id, expected {own_id}, but received {name}"
        return Refusal(Error.INVALID_REQUEST, message)
    return None


def decide_alteration(
    alteration: ConfigAlteration, current: Mapping[str, str], broker: BrokerValues
) -> ConfigChanges | Refusal:
    """The changes to one resource (`ConfigurationControlManager`), all of them or a refusal.

    current: what is set on the resource now. broker: the broker's values, for the defaults of a
    topic or a group.
    """
    resource = alteration.resource
    changes: dict[str, str | None] = dict.fromkeys(current) if alteration.replaces_all else {}
    for each in alteration.operations:
        after = _apply(each, current.get(each.name), resource.type)
        if isinstance(after, Refusal):
            return after
        changes[each.name] = after
    return _checked(resource, changes, current, broker)


_DEFINITIONS = {
    ConfigResourceType.TOPIC: TOPIC_CONFIGS,
    ConfigResourceType.GROUP: GROUP_CONFIGS,
    ConfigResourceType.BROKER: BROKER_CONFIGS,
}


def _apply(
    step: ConfigOperation, current: str | None, kind: ConfigResourceType
) -> str | Refusal | None:
    operation = next((each for each in AlterOperation if each.value == step.operation), None)
    if operation is None:
        message = f"Unknown operations type {step.operation}"
        return Refusal(Error.INVALID_REQUEST, message)
    definition = _DEFINITIONS[kind].get(step.name)
    try:
        return alter(operation, step.name, step.value, current, definition)
    except ConfigError as error:
        if kind is not ConfigResourceType.BROKER:
            return Refusal(Error.INVALID_CONFIG, str(error))
        # The same rule, in the words of Kafka's brokers (`ConfigAdminManager`).
        message = (
            f"Config value {operation.name.lower()} is not allowed for config key: {step.name}"
        )
        return Refusal(Error.INVALID_CONFIG, message)


def _checked(
    resource: ConfigResource,
    changes: ConfigChanges,
    current: Mapping[str, str],
    broker: BrokerValues,
) -> ConfigChanges | Refusal:
    if refusal := check_storable(changes):
        return refusal
    if resource.type is not ConfigResourceType.BROKER:
        after = {name: value for name, value in {**current, **changes}.items() if value is not None}
        is_topic = resource.type is ConfigResourceType.TOPIC
        check = check_topic_configs if is_topic else check_group_configs
        if wrong := check(after, broker.merged()):
            return Refusal(Error.INVALID_CONFIG, wrong)
    elif wrong := check_dynamic_broker_configs(changes, per_broker=bool(resource.name)):
        # Not INVALID_CONFIG: KAFKA-13609 keeps the code that clients always got.
        return Refusal(Error.INVALID_REQUEST, wrong)
    elif wrong := _check_mechanisms(changes.get("sasl.enabled.mechanisms"), broker.static):
        return Refusal(Error.INVALID_REQUEST, wrong)
    return changes


def _check_mechanisms(mechanisms: str | None, static: Mapping[str, str]) -> str | None:
    """What mechanisms need they have from the broker's start, or they are not offered."""
    if mechanisms is None or OAUTHBEARER not in mechanisms.split(","):
        return None
    for each in named_listeners(static):
        if each.protocol.is_sasl and (missing := missing_for_bearer(each.name, static)):
            return f"{OAUTHBEARER} needs {' and '.join(missing)}, set when the broker starts."
    return None


def check_storable(changes: ConfigChanges) -> Refusal | None:
    """INVALID_CONFIG for text PostgreSQL cannot hold: NUL, or a name too long for an index."""
    for name, value in changes.items():
        if "\0" in name or "\0" in (value or ""):
            return Refusal(Error.INVALID_CONFIG, "Configurations may not contain NUL characters.")
        is_long = len(name.encode(errors="surrogatepass")) > MAX_CONFIG_NAME_BYTES
        if is_long or len(value or "") > MAX_CONFIG_VALUE_LENGTH:
            return Refusal(
                Error.INVALID_CONFIG, f"Configuration {name[:100]} is longer than allowed."
            )
    return None


# --- checks: None, or Kafka's sentence about the fault ---


def check_topic_configs(
    overrides: Mapping[str, str | None], broker: Mapping[str, str] | None = None
) -> str | None:
    """What is wrong with a topic's whole set of overrides, or None (LogConfig.validate).

    broker: the broker's values, the defaults of what the topic does not set.
    """
    if nulls := [name for name, value in overrides.items() if value is None]:
        return f"Null value not supported for topic configs: {','.join(nulls)}"
    values = {name: value for name, value in overrides.items() if value is not None}
    for name in values:
        if name not in TOPIC_CONFIGS:
            return f"Unknown topic config name: {name}"
    try:
        for name, value in values.items():
            parse(name, value, TOPIC_CONFIGS[name])
        low = topic_value("min.compaction.lag.ms", values, broker or {})
        high = topic_value("max.compaction.lag.ms", values, broker or {})
    except ConfigError as error:
        return str(error)
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        return (
            f"conflict topic config setting min.compaction.lag.ms ({low})"
            f" > max.compaction.lag.ms ({high})"
        )
    return None


# A group's property, and the broker's properties that bound it; in Kafka's order.
_GROUP_BOUNDS: tuple[tuple[str, str | None, str], ...] = (
    *(
        (f"{kind}.{what}", f"group.{kind}.min.{what}", f"group.{kind}.max.{what}")
        for kind, what in (
            ("consumer", "heartbeat.interval.ms"),
            ("consumer", "session.timeout.ms"),
            ("share", "heartbeat.interval.ms"),
            ("share", "session.timeout.ms"),
            ("share", "record.lock.duration.ms"),
            ("streams", "heartbeat.interval.ms"),
            ("streams", "session.timeout.ms"),
        )
    ),
    ("streams.num.standby.replicas", None, "group.streams.max.standby.replicas"),
)


def check_group_configs(
    overrides: Mapping[str, str], broker: Mapping[str, str] | None = None
) -> str | None:
    """What is wrong with a group's whole set of overrides, or None (GroupConfig.validate).

    broker: the broker's values, for defaults and bounds.
    """
    for name in overrides:
        if name not in GROUP_CONFIGS:
            return f"Unknown group config name: {name}"
    broker = broker or {}
    try:
        for name, text in overrides.items():
            parse(name, text, GROUP_CONFIGS[name])
        for name, low, high in _GROUP_BOUNDS:
            value = group_int(name, overrides, broker)
            if low is not None and value < broker_int(low, broker):
                return f"{name} must be greater than or equal to {low}"
            if value > broker_int(high, broker):
                return f"{name} must be less than or equal to {high}"
        for kind in ("consumer", "share", "streams"):
            session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
            if group_int(session, overrides, broker) <= group_int(interval, overrides, broker):
                return f"{session} must be greater than {interval}"
    except ConfigError as error:
        return str(error)
    return None


def check_dynamic_broker_configs(
    values: Mapping[str, str | None], *, per_broker: bool
) -> str | None:
    """What is wrong with dynamic broker values, or None (DynamicBrokerConfig.validateConfigs).

    per_broker: whether they are for one broker, or for all (the empty resource name). Unknown
    names pass, as in Kafka: they may be for a plug-in. A None value deletes; any name allows that.
    A listener's own value of a property must obey the property's rules, and has no effect.
    """
    wanted = {name: value for name, value in values.items() if value is not None}
    read_only = [name for name in wanted if _update_mode(name) is UpdateMode.READ_ONLY]
    if read_only:
        return f"Cannot update these configs dynamically: Set({', '.join(read_only)})"
    alone = [
        name
        for name in wanted
        if _update_mode(name) is UpdateMode.PER_BROKER or _is_of_one_brokers_listener(name)
    ]
    if alone and not per_broker:
        return (
            "Cannot update these configs at default cluster level, broker id must be specified:"
            f" Set({', '.join(alone)})"
        )
    try:
        for name, value in wanted.items():
            plain = _without_listener(name)
            if plain != name and plain in _OF_LOGINS:
                raise ConfigError(f"{name} cannot be set: {plain} holds for all listeners.")
            if plain in OWN:  # Kafka changes some of them while brokers run
                raise ConfigError(f"{name} cannot be changed: it is read when a broker starts.")
            if definition := BROKER_CONFIGS.get(plain):
                parse(name, value, definition)
    except ConfigError as error:
        return str(error)
    return None


# DynamicBrokerConfig: ListenerConfigRegex, ClusterLevelListenerConfigs, ListenerMechanismConfigs.
_OF_A_LISTENER = re.compile(r"^listener\.name\.[^.]*\.")
_OF_LISTENERS_OF_ALL = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)
_OF_MECHANISMS = (
    "sasl.jaas.config",
    "sasl.login.callback.handler.class",
    "sasl.login.class",
    "sasl.server.callback.handler.class",
    "connections.max.reauth.ms",
)


# To keep them and let them have no effect would promise what is not there.
_OF_LOGINS = frozenset({"connections.max.reauth.ms", "sasl.enabled.mechanisms"})


def _without_listener(name: str) -> str:
    """The property's name, also from `listener.name.<listener>.[<mechanism>.]<property>`."""
    found = _OF_A_LISTENER.match(name)
    if found is None:
        return name
    rest = name[found.end() :]
    return next((each for each in _OF_MECHANISMS if rest.endswith(f".{each}")), rest)


def _is_of_one_brokers_listener(name: str) -> bool:
    found = _OF_A_LISTENER.match(name)
    return found is not None and name[found.end() :] not in _OF_LISTENERS_OF_ALL


def _update_mode(name: str) -> UpdateMode | None:
    definition = BROKER_CONFIGS.get(name)
    return None if definition is None else definition.update_mode


def check_static_broker_config(name: str, value: str) -> str | None:
    """What is wrong with a broker property from the command line, a file or the environment.

    Stricter than Kafka, which only logs unknown names: here no plug-in could read them.
    """
    of_listener = listener_and_property(name)
    definition = BROKER_CONFIGS.get(of_listener[1] if of_listener else name)
    if definition is None:
        plain = _without_listener(name)
        if plain in BROKER_CONFIGS:
            return f"{name} cannot be set: {plain} holds for all listeners"
        topic = TOPIC_CONFIGS.get(name)
        if topic is not None and topic.broker_name is not None:
            return f"{name} is a topic's property; for all topics set {topic.broker_name}"
        return f"Unknown broker property: {name}"
    if definition.set_by is not None and not definition.is_settable:
        return f"{name} is set by {definition.set_by}"
    try:
        parse(name, value, definition)
    except ConfigError as error:
        return str(error)
    return None


def check_static_bounds(values: Mapping[str, str]) -> str | None:
    """Which of a broker's properties contradict each other, or None (GroupCoordinatorConfig).

    values: each has passed `check_static_broker_config`.
    """
    for name, low, high in _GROUP_BOUNDS:
        value, most = broker_int(f"group.{name}", values), broker_int(high, values)
        if low is not None and most < broker_int(low, values):
            return f"{high} must be greater than or equal to {low}"
        if low is not None and value < broker_int(low, values):
            return f"group.{name} must be greater than or equal to {low}"
        if value > most:
            return f"group.{name} must be less than or equal to {high}"
    for kind in ("group.consumer", "group.share", "group.streams"):
        session, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if broker_int(interval, values) >= broker_int(session, values):
            return f"{interval} must be less than {session}"
    delay, idle = "connection.failed.authentication.delay.ms", "connections.max.idle.ms"
    if broker_int(delay, values) >= broker_int(idle, values) > 0:
        return f"{delay} must be less than {idle}"
    low, high = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    if broker_int(high, values) < broker_int(low, values):
        return f"{high} must be greater than or equal to {low}"
    return _check_authentication(values)


def _check_authentication(values: Mapping[str, str]) -> str | None:
    """Pulsar's logins: without what they need they would let nobody in, or everybody."""
    if not broker_bool("authenticationEnabled", values):
        return None
    methods = authentication_methods(values)
    if not methods:
        return (
            "authenticationEnabled needs authenticationProviders; "
            f"name some of {', '.join(PULSAR_PROVIDERS)}"
        )
    keys = [name for name in ("tokenSecretKey", "tokenPublicKey") if broker_text(name, values)]
    if "token" in methods and len(keys) != 1:
        return "logins by token need one key; set tokenSecretKey or tokenPublicKey"
    audience = [broker_text(name, values) for name in ("tokenAudienceClaim", "tokenAudience")]
    if any(audience) and not all(audience):
        return "tokenAudienceClaim and tokenAudience go together; set both or neither"
    if not broker_text("tokenAuthClaim", values):
        return "tokenAuthClaim is empty; name the claim that has a token's role"
    return None


def alter(
    operation: AlterOperation,
    name: str,
    value: str | None,
    current: str | None,
    definition: ConfigDef | None,
) -> str | None:
    """A property's text after one step of IncrementalAlterConfigs; None if it is then unset.

    current: the text set on this resource now, or None. Raises ConfigError if APPEND or SUBTRACT
    meets a property that is not a list (ConfigurationControlManager).
    """
    if operation is AlterOperation.DELETE:
        return None
    if operation is AlterOperation.SET:
        return value
    if definition is None or definition.type is not ConfigType.LIST:
        raise ConfigError(f"Can't {operation.name} to key {name} because its type is not LIST.")
    before = definition.default if current is None else current
    parts = [part for part in (before or "").split(",") if part]
    for part in (value or "").split(","):
        if operation is AlterOperation.APPEND:
            if part not in parts:
                parts.append(part)
        elif part in parts:
            parts.remove(part)
    return ",".join(parts)

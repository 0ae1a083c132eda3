"""Pulsar's topic names, and which topic of the log each one is.

The log's topics have Kafka's names. A topic of `public/default` whose name is legal there keeps it;
every other one is `pulsar.tenant.namespace.name`, each part with the bytes outside of
`[A-Za-z0-9_]` written as `-HH`. Whatever name is already of that form is written so too. Thus the
rule is reversible: every Kafka name, but for those that end like a partition, belongs to one Pulsar
topic, and no two Pulsar topics share one. It knows no store: whether a topic exists, or how many
partitions it has, is another's question. Sources: TopicName, NamespaceName, NamedEntity.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from core.errors import Error, Refusal
from core.namespace.rules import is_named_entity
from core.security.acls import ResourceType
from core.security.permissions import subscription_resource
from core.subscription.group_ids import PREFIX, SubscriptionName, read_group_id
from core.topic.rules import MAX_TOPIC_NAME_LENGTH, check_topic_name, is_internal

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"
PUBLIC_TENANT: Final = "public"
DEFAULT_NAMESPACE: Final = "default"
_PARTITION: Final = "-partition-"
_LONGEST_CACHED: Final = 512

_ESCAPED_PREFIX: Final = "pulsar."
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_NOT_PLAIN: Final = re.compile(rb"[^A-Za-z0-9_]")
_ESCAPED_PART: Final = re.compile(r"(?:[A-Za-z0-9_]|-[0-9A-F]{2})+")
_ESCAPE: Final = re.compile(rb"-([0-9A-F]{2})")
_MAX_INT: Final = 2**31 - 1
_MOST_SUBSCRIPTION_BYTES: Final = 4_000
_MOST_PROPERTY_LETTERS: Final = 64 * 1024
_SHOWN: Final = 300  # characters of a name that is refused


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic's full name, `domain://tenant/namespace/local_name[-partition-N]`.

    local_name: without the suffix of a partition. partition: -1 where there is none.
    """

    tenant: str
    namespace: str
    local_name: str
    partition: int = -1
    domain: str = PERSISTENT

    def __str__(self) -> str:
        suffix = f"{_PARTITION}{self.partition}" if self.partition >= 0 else ""
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local_name}{suffix}"

    @property
    def full_namespace(self) -> str:
        """`tenant/namespace`, as namespaces are called everywhere."""
        return f"{self.tenant}/{self.namespace}"

    @property
    def is_persistent(self) -> bool:
        """Whether its messages are stored; the others are for who listens at the moment."""
        return self.domain == PERSISTENT


def parse_topic_name(name: str) -> TopicName | Refusal:
    """A full name or a short one; INVALID_TOPIC_EXCEPTION with a sentence where it is neither.

    `local` alone is of persistent://public/default, `tenant/namespace/local` is persistent.
    """
    domain, separator, rest = name.partition("://")
    if not separator:
        domain, rest = PERSISTENT, name
        if "/" not in rest:
            rest = f"{PUBLIC_TENANT}/{DEFAULT_NAMESPACE}/{rest}"
    if domain not in (PERSISTENT, NON_PERSISTENT):
        return _invalid(name, f"there is no domain '{domain}'")
    parts = rest.split("/")
    if len(parts) == 4:
        return _invalid(name, "names with a cluster in them are Pulsar's of before 2.0")
    if len(parts) != 3:
        return _invalid(name, "a name is domain://tenant/namespace/topic, or topic alone")
    tenant, namespace, local_name = parts
    for what, part in (("tenant", tenant), ("namespace", namespace)):
        if not is_named_entity(part):
            return _invalid(name, f"'{part}' is no name of a {what}")
    base, partition = _split_partition(local_name)
    if not base.strip():
        return _invalid(name, "the topic has no name")
    return TopicName(tenant, namespace, base, partition, domain)


def parse_namespace(name: str) -> tuple[str, str] | Refusal:
    """Tenant and namespace of `tenant/namespace`."""
    parts = name.split("/")
    if len(parts) != 2 or not all(map(is_named_entity, parts)):
        reason = f"Namespace '{_shown(name)}' is invalid: it is tenant/namespace"
        return Refusal(Error.INVALID_TOPIC_EXCEPTION, reason)
    return parts[0], parts[1]


def subscription_flaw(name: str, properties: Iterable[tuple[str, str]]) -> str | None:
    """Why there can be no subscription of this name with these properties, for people."""
    if not name:
        return "A subscription needs a name"
    if len(name.encode(errors="replace")) > _MOST_SUBSCRIPTION_BYTES:
        return f"A subscription's name may have {_MOST_SUBSCRIPTION_BYTES} bytes"
    if sum(len(key) + len(value) for key, value in properties) > _MOST_PROPERTY_LETTERS:
        return f"A subscription's properties may have {_MOST_PROPERTY_LETTERS} letters"
    return None


def _split_partition(local_name: str) -> tuple[str, int]:
    """The name without its partition, and that. A number with zeros before it is part of a name."""
    base, found, number = local_name.rpartition(_PARTITION)
    if found and _NUMBER.fullmatch(number) and int(number) <= _MAX_INT:
        return base, int(number)
    return local_name, -1


def _invalid(name: str, reason: str) -> Refusal:
    message = f"Topic name '{_shown(name)}' is invalid: {_shown(reason)}"  # both may have it
    return Refusal(Error.INVALID_TOPIC_EXCEPTION, message)


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- the log's names ---


def log_topic_name(topic: TopicName) -> str | Refusal:
    """What the log, and so Kafka's clients, call the topic; its partition is not part of that.

    INVALID_TOPIC_EXCEPTION where it has no name there: it is not stored, or too long once it is
    escaped, or ends like a partition's (`t-partition-0-partition-1`), which Pulsar does not let
    people create either.
    """
    if not topic.is_persistent:
        return _invalid(str(topic), "its messages are not stored")
    if _split_partition(topic.local_name)[1] >= 0:
        return _invalid(str(topic), f"it ends in {_PARTITION}N twice")
    if _is_plain(topic) and _unescaped(topic.local_name) is None:
        return topic.local_name
    parts = (topic.tenant, topic.namespace, topic.local_name)
    name = _ESCAPED_PREFIX + ".".join(map(_escape, parts))
    if len(name) > MAX_TOPIC_NAME_LENGTH:
        reason = f"'{name}' would have more than {MAX_TOPIC_NAME_LENGTH} characters"
        return _invalid(str(topic), reason)
    return name


def pulsar_topic_name(name: str) -> TopicName | None:
    """The topic, without a partition, that the log calls `name`, which must be legal there.

    None where the name ends like a partition's: Pulsar's clients would take it for one.
    """
    if _split_partition(name)[1] >= 0:
        return None
    return _unescaped(name) or TopicName(PUBLIC_TENANT, DEFAULT_NAMESPACE, name)


@lru_cache(maxsize=20_000)
def namespace_of(name: str) -> tuple[str, str] | None:
    """Tenant and namespace of the topic that the log calls `name`; None as `pulsar_topic_name`."""
    topic = pulsar_topic_name(name)
    return None if topic is None else (topic.tenant, topic.namespace)


def name_in_acls(kind: ResourceType, name: str) -> str | None:
    """Pulsar's name of what Kafka's ACLs call `name`: of a topic its full one, of a subscription's
    group id that of its name on all topics of the namespace; None where it has none."""
    # Nobody shall fill memory with names that he makes up.
    return (_name_in_acls if len(name) <= _LONGEST_CACHED else _name_in_acls.__wrapped__)(
        kind, name
    )


@lru_cache(maxsize=20_000)
def _name_in_acls(kind: ResourceType, name: str) -> str | None:
    if kind is ResourceType.TOPIC:
        # What stands for all topics of a namespace is no topic, and is in no other namespace.
        is_topic = check_topic_name(name) is None and not is_internal(name)
        topic = pulsar_topic_name(name) if is_topic else None
        return None if topic is None else str(topic)
    if kind is not ResourceType.GROUP or (found := read_group_id(name)) is None:
        return None
    namespace = namespace_of(found.topic)
    return None if namespace is None else subscription_resource(*namespace, found.name)


def named_by_client(kind: ResourceType, topic: str, name: str) -> str:
    """What ACLs call what a client of Pulsar's names so: a topic, as the log does, whichever
    partition is meant; a subscription `name` of a topic, by its group id. Empty where the topic is
    wanted and not named; what is no name of Pulsar's stays as it is."""
    if kind is ResourceType.GROUP and (name.startswith(PREFIX) or not (name and topic)):
        return name if name.startswith(PREFIX) else ""
    if kind not in (ResourceType.TOPIC, ResourceType.GROUP):
        return name
    log_name, partition = topic, 0
    parsed = parse_topic_name(topic)
    # People may write the log's name as well, which is found nowhere but there.
    if _unescaped(topic) is None and not isinstance(parsed, Refusal):
        found, partition = log_topic_name(parsed), max(parsed.partition, 0)
        log_name = topic if isinstance(found, Refusal) else found
    if kind is ResourceType.TOPIC:
        return log_name
    return SubscriptionName(log_name, partition, name).group_id


def _is_plain(topic: TopicName) -> bool:
    return (
        topic.tenant == PUBLIC_TENANT
        and topic.namespace == DEFAULT_NAMESPACE
        and check_topic_name(topic.local_name) is None
    )


def _escape(part: str) -> str:
    return _NOT_PLAIN.sub(lambda found: b"-%02X" % ord(found[0]), part.encode()).decode()


def _unescaped(name: str) -> TopicName | None:
    """The topic whose escaped name this is, character by character; None where it is none's."""
    if not name.startswith(_ESCAPED_PREFIX):
        return None
    escaped = name.removeprefix(_ESCAPED_PREFIX).split(".")
    if len(escaped) != 3 or not all(map(_ESCAPED_PART.fullmatch, escaped)):
        return None
    try:
        parts = [
            _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), part.encode()).decode()
            for part in escaped
        ]
    except UnicodeDecodeError:
        return None
    tenant, namespace, local_name = parts
    topic = TopicName(tenant, namespace, local_name)
    if parse_topic_name(str(topic)) != topic or log_topic_name(topic) != name:
        return None
    return topic

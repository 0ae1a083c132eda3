"""Writes docs/protocol-support.md and docs/configuration.md from the server's own tables.

Reads the registries of Kafka APIs, of Pulsar's commands and its REST, the table of properties and
the settings. What no table says
(which properties change nothing, which APIs are still to come, which answers are not Kafka's) is
written here, and mostly held to the code by tests/docs/test_generated.py. Run by `make docs`.
"""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from kafka.protocol.api_key import ApiKey

from core.config.definitions import (
    BROKER_CONFIGS,
    DEVIATIONS,
    GROUP_CONFIGS,
    TOPIC_CONFIGS,
)
from core.config.inert import ONLY_DEFAULT, REASONS
from core.config.types import ConfigDef, UpdateMode
from core.security.operations import REQUIREMENTS, Requirement, Right, Without
from core.security.page_operations import PAGES as PAGE_REQUIREMENTS
from core.security.pulsar_operations import COMMANDS, Need
from core.security.sql_operations import SQL_REQUIREMENTS
from gateway.config import ENVIRONMENT_PREFIX, Settings
from gateway.kafka.api import Api, load_handlers
from gateway.pulsar.admin.api import load_endpoints
from gateway.pulsar.api import Served
from gateway.pulsar.api import load_handlers as load_commands
from gateway.pulsar.commands import CommandType
from gateway.web.api import Endpoint
from gateway.web.operations import OPERATIONS

DOCS = Path(__file__).parent
GENERATED = "<!-- Written by `make docs`; do not edit. -->"

# Spoken among Kafka's own processes (ZooKeeper's time, Raft, replicas, the share coordinator).
NOT_FOR_CLIENTS = {4, 5, 6, 7, *range(52, 55), 56, 58, 59, 62, 63, 67, 70, 73, *range(80, 88)}


def missing() -> dict[int, str]:
    """APIs that Kafka 4's brokers offer to clients, and Penstock does not: key and name."""
    known = {api.key for api in load_handlers().table()} | NOT_FOR_CLIENTS
    return {key.value: key.name for key in ApiKey if key.value not in known}


# On purpose. What is asked, and what is answered.
ANSWERS_OF_OUR_OWN: dict[str, str] = {
    "Produce of a batch whose header is right and whose records are not": "it is stored as it came "
    "(Kafka: INVALID_RECORD, or UNKNOWN_SERVER_ERROR). Records are looked into only where a rule "
    "of the topic's is about them, where they change their codec (`compression.type`), or where "
    "the header's greatest timestamp cannot be.",
    "Produce of records that change their codec, and whose offsets are not in order": "they are "
    "refused (Kafka numbers them anew). So are more than a million, or more than 64 MiB that were "
    "compressed: INVALID_RECORD.",
    "Produce of records whose timestamps are out of range": "1,000 of a batch are named at most.",
    "Produce that names a partition twice": "both batches are appended, each has its answer (Kafka "
    "appends the last one, and drops the others without a word).",
    "Produce, `log_start_offset` beside an error": "-1 (Kafka: the log start offset with some "
    "errors). Clients look at it beside UNKNOWN_PRODUCER_ID only, which neither of the two raises.",
    "Fetch by topic id within a session, of a topic that has been deleted": "UNKNOWN_TOPIC_ID, as "
    "without a session (Kafka: UNKNOWN_TOPIC_OR_PARTITION, or INCONSISTENT_TOPIC_ID if there is "
    "another topic of its name). Clients do the same after each: they ask for metadata.",
    "CreateTopics, the settings in the answer": "values read as `1000`, as DescribeConfigs shows "
    "them (Kafka: as they were sent, ` 01000`).",
    "A listener's own value of a property (`listener.name.plaintext.…`)": "it is "
    "held to the property's rules, kept and shown as of an unknown name. `max.connections` and "
    "`max.connection.creation.rate` count, others have no effect; so those of `ssl.*` and "
    "`sasl.*`, and `connections.max.reauth.ms`, are refused. Of TLS and OAUTHBEARER a listener has "
    "its own from the command line, a file or the environment.",
    "SASL, another request than SaslAuthenticate amid a login": "SaslHandshake is "
    "ILLEGAL_SASL_STATE; for others the connection is closed (Kafka: each API's answer with that "
    "error first).",
    "PLAIN, a message that is malformed, or without a name or a password": "the words of any other "
    "failure, as in Kafka's next versions (4.1: what is missing).",
    "OAUTHBEARER, what is asked for": "an issuer and an audience (Kafka: neither), an algorithm "
    "that is the key's, and another name than ANONYMOUS.",
    "OAUTHBEARER, a second token after one that was refused": "SASL_AUTHENTICATION_FAILED (Kafka "
    "looks at it).",
    "SCRAM, a user that is not there": "it is asked for its proof as others are, with a salt that "
    "stays the same, and then refused (Kafka: at once).",
    "SCRAM, names and extensions": "any UTF-8 (Kafka: ASCII); a mandatory extension, or channel "
    "binding that is not what the first message said, is refused as RFC 5802 says (Kafka: neither "
    "is looked at).",
    "SaslHandshake with another mechanism on a connection that logs in again": "the next token is "
    "SASL_AUTHENTICATION_FAILED (Kafka: closed without an answer).",
    "AlterUserScramCredentials, a name of more than 1,000 bytes or with NUL, an empty salt or "
    "password": "UNACCEPTABLE_CREDENTIAL (Kafka takes it).",
    "AlterClientQuotas, an address that is the name of a host, a name with NUL, a value that is "
    "infinite or no number": "INVALID_REQUEST (Kafka takes them, and looks the host up).",
    "OffsetCommit, TxnOffsetCommit and OffsetDelete, a topic without partitions": "it is in the "
    "answer (Kafka: if it is not known).",
    "Fetch with `last_fetched_epoch`": "it is ignored: a log is never truncated but by a restore "
    "of the database, so there is no divergence to tell of.",
    "ConsumerGroupHeartbeat with epoch 0": "a member that is past its first epoch joins again as "
    "itself (Kafka: FENCED_MEMBER_EPOCH), and so does an active static member that comes with the "
    "same member and instance id (Kafka: UNRELEASED_INSTANCE_ID), since the answer to its join may "
    "have been lost.",
    "Produce, a batch of V1 of transactions sent again after its transaction has ended": "it is "
    "answered as the duplicate it is (Kafka: INVALID_TXN_STATE).",
    "AddOffsetsToTxn and TxnOffsetCommit, the groups of one transaction": "about 1,000 of "
    "them, with 1,000,000 characters together; one more is TRANSACTION_ABORTABLE, or "
    "INVALID_TXN_STATE where the version does not know that (Kafka knows no limit).",
    "An empty classic group that the consumer protocol takes over, and the way back": "it goes on "
    "from its generation, or epoch (Kafka begins at 1).",
}

# Pulsar's commands that the connection answers by itself, or that have no handler of their own.
COMMANDS_OF_THE_CONNECTION: dict[CommandType, str] = {
    CommandType.CONNECT: "who is there, and what both can do; versions 0 to 21 of the protocol.",
    CommandType.AUTH_RESPONSE: "another token, where AUTH_CHALLENGE has asked for it.",
    CommandType.PING: "is the broker there? Answered at once, also while others run.",
    CommandType.PONG: "the client is there.",
}
# What of a command is not served.
NOT_SERVED_OF_COMMANDS: dict[CommandType, str] = {
    CommandType.CONNECT: "Authentication is looked at where `authenticationEnabled` is set. "
    "Nothing is passed on: a broker meant by `proxy_to_broker_url` has to be this one.",
    CommandType.SUBSCRIBE: "`read_compacted` on a durable subscription is refused; replicated "
    "subscriptions are taken as plain ones.",
    CommandType.LOOKUP: "`advertised_listener_name` is not looked at.",
    CommandType.GET_TOPICS_OF_NAMESPACE: "Nothing is non-persistent.",
}
# What brokers say, or brokers among themselves: no client sends it.
NOT_OF_CLIENTS = {
    CommandType.CONNECTED,
    CommandType.SEND_RECEIPT,
    CommandType.SEND_ERROR,
    CommandType.MESSAGE,
    CommandType.SUCCESS,
    CommandType.ERROR,
    CommandType.PRODUCER_SUCCESS,
    CommandType.REACHED_END_OF_TOPIC,
    CommandType.ACTIVE_CONSUMER_CHANGE,
    CommandType.AUTH_CHALLENGE,
    CommandType.ACK_RESPONSE,
    CommandType.WATCH_TOPIC_LIST_SUCCESS,
    CommandType.WATCH_TOPIC_UPDATE,
    CommandType.TOPIC_MIGRATED,
    *(each for each in CommandType if each.name.endswith("_RESPONSE")),
} - {CommandType.AUTH_RESPONSE}

_LOG = "PostgreSQL keeps the log: there are no such files."
_ONE_COPY = "Copies are PostgreSQL's replication; Metadata shows one replica, the leader."
_FSYNC = "Every acknowledged record is committed with fsync."
_COMPACTION = "Compaction is not there yet."
_NOT_TIERED = "There is no tiered storage."
_SEGMENTS = (
    "A segment is a table shared by topics of like retention; its size is `log.segment.bytes` of "
    "the broker, never a topic's, and its age follows from the class of retention."
)

# Properties that are accepted, checked and reported, and change nothing: why.
WITHOUT_EFFECT_ON_TOPICS: dict[str, str] = {
    "delete.retention.ms": _COMPACTION,
    "file.delete.delay.ms": _LOG,
    "flush.messages": _FSYNC,
    "flush.ms": _FSYNC,
    "follower.replication.throttled.replicas": _ONE_COPY,
    "index.interval.bytes": _LOG,
    "leader.replication.throttled.replicas": _ONE_COPY,
    "local.retention.bytes": _NOT_TIERED,
    "local.retention.ms": _NOT_TIERED,
    "max.compaction.lag.ms": _COMPACTION,
    "min.cleanable.dirty.ratio": _COMPACTION,
    "min.compaction.lag.ms": _COMPACTION,
    "min.insync.replicas": _ONE_COPY,
    "preallocate": _LOG,
    "remote.log.copy.disable": _NOT_TIERED,
    "remote.log.delete.on.disable": _NOT_TIERED,
    "segment.bytes": _SEGMENTS,
    "segment.index.bytes": _LOG,
    "segment.jitter.ms": _SEGMENTS,
    "segment.ms": _SEGMENTS,
    "unclean.leader.election.enable": _ONE_COPY,
}
WITHOUT_EFFECT_ON_BROKERS: dict[str, str] = {
    "request.timeout.ms": "Connections, locks and statements have limits of their own.",
}

# What is honoured, but not in every way its name promises.
NOTES_ON_TOPICS: dict[str, str] = {
    "cleanup.policy": "Records without a key are refused with `compact`; without `delete`, nothing "
    "is deleted.",
    "compression.type": "As in Kafka, a batch in another codec is opened, checked record by record "
    "and compressed anew. For 1 MB of records of 100 bytes that takes 25 ms, with gzip 50, and for "
    "16 MB half a second, with gzip one. It runs beside the event loop, which stands still 5 to "
    "20 ms at a time; only later batches of the same partition wait. At most a million records, "
    "and 64 MiB that were compressed, are opened. Batches of Pulsar's producers keep their own "
    "codec: Pulsar has no such setting.",
    "retention.bytes": "Judged to the batch.",
    "retention.ms": "Judged to the batch. It also chooses the class of segments new batches go to.",
}
NOTES_ON_BROKERS: dict[str, str] = {
    "default.replication.factor": "Held against the number of live brokers, and then forgotten: "
    "copies are PostgreSQL's.",
    "log.segment.bytes": "Size at which a segment's table is closed and the next one opened.",
    "queued.max.request.bytes": "Never taken as less than twice `socket.request.max.bytes`.",
}


def protocol_support() -> str:
    """The page of APIs."""
    served = load_handlers().table()
    sections = [
        "# Protocols",
        GENERATED,
        "[Kafka's APIs](#kafka), [Pulsar's commands](#pulsar), [HTTP](#http).",
        "## Kafka",
        "A version that is not served closes the connection, as Kafka does (ApiVersions apart). "
        "ApiVersions advertises what is served; for Produce also versions 0 to 2, as Kafka 4 does "
        "for librdkafka's sake, and refuses them. APIs from key 10,000 on are Penstock's own, for "
        "the exactly-once sink; they are not advertised. What each handler does and does not do is "
        "at the top of its file.",
        "### Served",
        _table(
            ("key", "API", "versions", "advertised", "what it does"),
            (
                (api.key, _link(api), _span(api.versions), _span(api.advertised), summary(api))
                for api in served
            ),
        ),
        "### Answers that are not Kafka's",
        "\n".join(f"- {asked}: {answer}" for asked, answer in ANSWERS_OF_OUR_OWN.items()),
        "### Not there yet",
        "Not advertised; a request closes the connection. The controller's and the brokers' own "
        "APIs (Raft, replicas, share-group state) are not listed: here they have no meaning.",
        ", ".join(f"{name} ({key})" for key, name in missing().items()) + ".",
        *_pulsar_support(),
        *_http_support(),
    ]
    return "\n\n".join(sections) + "\n"


def _pulsar_support() -> list[str]:
    """Pulsar's commands."""
    commands = load_commands()
    return [
        "## Pulsar",
        "The binary protocol, up to version 21, on `pulsar://` and `pulsar+ssl://`. What each "
        "handler does and does not do is at the top of its file.",
        "### Commands that are served",
        _table(
            ("number", "command", "what it does", "what of it is not served"),
            sorted(
                [
                    *((each.type, *_command(each)) for each in commands.table()),
                    *(
                        (kind, kind.name, text, NOT_SERVED_OF_COMMANDS.get(kind, ""))
                        for kind, text in COMMANDS_OF_THE_CONNECTION.items()
                    ),
                ]
            ),
        ),
        "### Commands that are not there yet",
        ", ".join(f"{each.name} ({each})" for each in missing_commands()) + ".",
    ]


def missing_commands() -> list[CommandType]:
    """What Pulsar's clients may send, and Penstock does not serve."""
    known = {each.type for each in load_commands().table()} | set(COMMANDS_OF_THE_CONNECTION)
    return [each for each in CommandType if each not in known and each not in NOT_OF_CLIENTS]


def _command(served: Served) -> tuple[str, str, str]:
    module = sys.modules[served.handler.__module__]
    text = " ".join((module.__doc__ or "").partition("\n\n")[0].split()).partition(": ")[2]
    link = f"[{served.type.name}](../{module.__name__.replace('.', '/')}.py)"
    return link, text, NOT_SERVED_OF_COMMANDS.get(served.type, "")


def _http_support() -> list[str]:
    """What is served by HTTP."""
    return [
        "## HTTP",
        "On `--http-listen`, 127.0.0.1:8080 by default. Of Pulsar's REST, anything else below "
        "`/admin/` is 501 with a sentence. A topic's path names the topic as Pulsar's clients do; "
        "what is about one partition is redirected (307) to the broker that has it, what is about "
        "all is asked of each. What is about transactions is answered by any broker, but for what "
        "a subscription has pending.",
        "### Of Penstock's own",
        _table(("method", "path", "what it does"), map(_endpoint, OPERATIONS)),
        "### Of Pulsar's REST",
        _table(
            ("method", "path", "what it does"),
            map(_endpoint, sorted(load_endpoints(), key=lambda each: (each.path, each.method))),
        ),
    ]


def _endpoint(endpoint: Endpoint) -> tuple[str, str, str]:
    return endpoint.method, f"`{endpoint.path}`", endpoint.about


def _link(api: Api) -> str:
    return f"[{api.name}](../{api.handler.__module__.replace('.', '/')}.py)"


def _span(versions: range) -> str:
    if not versions:
        return "no"
    return f"{versions[0]}-{versions[-1]}" if len(versions) > 1 else str(versions[0])


def summary(api: Api) -> str:
    """The first paragraph of the handler's file, without its title."""
    text = sys.modules[api.handler.__module__].__doc__ or ""
    return " ".join(text.partition("\n\n")[0].split()).partition("): ")[2]


def configuration() -> str:
    """The page of settings and properties."""
    sections = [
        "# Settings and properties",
        GENERATED,
        "## Settings of the process",
        "In this order: the flag, the variable, the key of the TOML file (`--config FILE` or "
        "`PENSTOCK_CONFIG`), the default.",
        _table(("flag", "variable", "default", "what it is"), _settings()),
        "Kafka's broker properties are set with `--override NAME=VALUE` (may be repeated), with a "
        "variable like `PENSTOCK_BROKER__NUM_PARTITIONS=3`, or in the file's `[broker]` table "
        "under Kafka's names. A wrong value or an unknown name is refused in one sentence, exit "
        "code 2.",
        "A variable that begins with `PENSTOCK_` and is no setting is refused as well: as a rule "
        "it is a misspelt setting. Allowed are `PENSTOCK_CACHE` (where Spark's jars are kept), "
        "`PENSTOCK_TEST_…` (Penstock's own tests), and what Kubernetes sets beside a service named "
        "`penstock…` (`PENSTOCK_SERVICE_HOST`, `PENSTOCK_PORT=tcp://…`).",
        "## Topic properties",
        "Set when a topic is created, or later with kafka-configs, any admin client, or "
        "`penstock topics create --config`. The broker's name sets the default of all topics that "
        "do not say otherwise. Names, defaults and valid values are Apache Kafka 4.1's; what "
        "begins with `penstock.` is not Kafka's.",
        _table(
            ("property", "broker's name", "default", "what Penstock does with it"),
            (
                (
                    f"`{name}`",
                    _broker_names(row),
                    _default(row.default),
                    _effect(name, row, WITHOUT_EFFECT_ON_TOPICS, NOTES_ON_TOPICS),
                )
                for name, row in TOPIC_CONFIGS.items()
            ),
        ),
        "## Group properties",
        "Set with `kafka-configs --entity-type groups`, or any admin client, before or while the "
        "group is there. The broker's name sets the default of all groups that do not say "
        "otherwise; its `min` and `max` bound what a group may say.",
        _table(
            ("property", "broker's name", "default", "what Penstock does with it"),
            (
                (f"`{name}`", _broker_names(row), _default(row.default), _group_effect(row))
                for name, row in GROUP_CONFIGS.items()
            ),
        ),
        "## Broker properties",
        "A property that is the default of a topic property is in the table above, with the same "
        "effect (only `log.segment.bytes` differs). *dynamic*: may be changed while brokers run, "
        "for one broker or for all. The others are read at start.",
        _table(("property", "default", "change", "what Penstock does with it"), _broker_rows()),
        "## Broker properties without effect",
        "Every other property that Apache Kafka 4.1 describes is known, checked and reported with "
        "Kafka's default, so that tools and settings files find it; it changes nothing.",
        _table(("why", "properties"), _inert_rows()),
        "## Defaults that are not Kafka's",
        "\n".join(f"- `{name}`: {why}" for name, why in DEVIATIONS.items()),
    ]
    return "\n\n".join(sections) + "\n"


def _settings() -> Iterator[tuple[str, ...]]:
    for name, field in Settings.model_fields.items():
        if name != "broker":
            flag = f"--{name.replace('_', '-')}"
            default = "" if field.default is None else f"`{field.default}`"
            variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
            yield f"`{flag}`", f"`{variable}`", default, field.description or ""


def _broker_names(row: ConfigDef) -> str:
    names = (row.broker_name, *(other.name for other in row.alternatives))
    return ", ".join(f"`{name}`" for name in names if name)


def _group_effect(row: ConfigDef) -> str:
    """What is told of the broker's property, else why there is no effect."""
    _, _, why = row.documentation.partition("without effect: ")
    return f"**No effect**: {why}" if why else f"Honoured. {row.documentation}"


def _inert_rows() -> Iterator[tuple[str, ...]]:
    for why, names in REASONS.items():
        only = " They take their default only." if ONLY_DEFAULT.issuperset(names) else ""
        yield f"{why[:1].upper()}{why[1:]}{only}", ", ".join(f"`{name}`" for name in sorted(names))


def _broker_rows() -> Iterator[tuple[str, ...]]:
    alternatives = {other.name for row in TOPIC_CONFIGS.values() for other in row.alternatives}
    alternatives |= {name for names in REASONS.values() for name in names}
    for name, row in BROKER_CONFIGS.items():
        own = row.topic_name is None or name in NOTES_ON_BROKERS
        if own and name not in alternatives:
            dynamic = "" if row.update_mode is UpdateMode.READ_ONLY else "dynamic"
            effect = _effect(name, row, WITHOUT_EFFECT_ON_BROKERS, NOTES_ON_BROKERS)
            yield f"`{name}`", _default(row.broker_default), dynamic, effect


def _default(text: str | None) -> str:
    if text is None:
        return ""
    return f"`{text}`" if text else "(empty)"


def _effect(
    name: str, row: ConfigDef, without_effect: dict[str, str], notes: dict[str, str]
) -> str:
    if why := without_effect.get(name):
        return f"**No effect.** {why}"
    # A broker's own reading of a topic property is all in its note.
    text = row.documentation.partition(" Accepted and reported")[0]
    meaning = "" if name == row.broker_name and row.topic_name else text
    by = f"Set with `{row.set_by}`." if row.set_by and name == row.broker_name else ""
    return " ".join(part for part in ("Honoured.", meaning, by, notes.get(name, "")) if part)


def _table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    lines = [[str(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines.insert(1, ["---"] * len(lines[0]))
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def rights() -> str:
    """The page of rights."""
    return (
        "\n\n".join(
            [
                "# Rights",
                GENERATED,
                "What each request takes, where `authorizer.class.name` is set "
                "([security.md](security.md)). One of several rights in a row is enough. A request "
                "is looked at in the order of its rows.",
                "## Kafka's requests",
                _table(
                    ("API", "right", "for", "without it", "error"),
                    (
                        (
                            name,
                            _rights(row),
                            row.of,
                            row.without.value,
                            row.error.name if row.error else "",
                        )
                        for name in sorted(REQUIREMENTS)
                        for row in REQUIREMENTS[name] or (_NOTHING_ASKED,)
                    ),
                ),
                "## Pulsar's commands",
                "Without it the answer is AuthorizationError, or the topic is left out. Those that "
                "are not here are about what was asked for before.",
                _table(
                    ("command", "right", "for", "without it"),
                    (
                        (name, _rights(row), row.of, row.without.value)
                        for name in sorted(COMMANDS)
                        for row in COMMANDS[name]
                    ),
                ),
                "## Pulsar's REST",
                "Without it the answer is 403. What is on all topics of a namespace is an ACL on "
                "the prefix `persistent://tenant/namespace/`, or a longer one's beginning.",
                _table(
                    ("", "path", "right", "for"),
                    (
                        (each.method, f"`{each.path}`", *_need(each.needs))
                        for each in sorted(load_endpoints(), key=lambda one: one.path)
                    ),
                ),
                "## The page",
                "What one may not see is left out, and what one may not do is refused with 403 "
                "([console.md](console.md)). Pages that are not here ask for nothing.",
                _table(
                    ("", "path", "right", "for", "without it"),
                    (
                        (*name.split(), _rights(row), row.of, row.without.value)
                        for name in sorted(PAGE_REQUIREMENTS, key=lambda each: each.split()[::-1])
                        for row in PAGE_REQUIREMENTS[name]
                    ),
                ),
                "## SQL",
                "What the role needs that calls a function of the schema `penstock`, or inserts "
                "into its view; as a principal it is `Role:name`. Without it the statement fails "
                "with SQLSTATE 42501, and the error's name begins its message.",
                _table(
                    ("", "right", "for", "error"),
                    (
                        (f"`{name}`", _rights(row), row.of, row.error.name if row.error else "")
                        for name in sorted(SQL_REQUIREMENTS)
                        for row in SQL_REQUIREMENTS[name] or (_NOTHING_ASKED_IN_SQL,)
                    ),
                ),
            ]
        )
        + "\n"
    )


_NOTHING_ASKED = Requirement(
    (), "what comes before a login, or from who knows a secret", Without.LEFT_OUT, None
)
_NOTHING_ASKED_IN_SQL = Requirement((), "what tells nothing of topics", Without.LEFT_OUT, None)


def _need(need: Need | None) -> tuple[str, str]:
    if need is None:
        return "none", "everybody; lists leave out what one may not describe"
    of = need.scope.value
    if need.topic is not None:
        of += f"; and {_rights(need.topic)} for the topic"
    return _rights(need.requirement), of + (", and the subscription" if need.subscription else "")


def _rights(row: Requirement) -> str:
    return " or ".join(map(_right, row.rights)) or "none"


def _right(right: Right) -> str:
    kind = right.resource_type.lower().replace("_", " ")
    operation = right.operation.capitalize().replace("_", " ")
    return f"{operation} on {'any ' if right.is_on_any else ''}{kind}"


PAGES = {
    "protocol-support.md": protocol_support,
    "configuration.md": configuration,
    "rights.md": rights,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()

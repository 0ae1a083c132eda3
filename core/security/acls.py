"""ACLs: who may do what on which resource, and which rule says so.

The semantics are those of Kafka's StandardAuthorizer (StandardAuthorizerData, and
Authorizer.authorizeByResourceType of KIP-679), but for the names over which it stumbles: those that
begin with a star, for which it passes over the wildcard, or with a sign that sorts before the star.
Knows no wire, no store, and not which API asks for what (`operations.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import chain
from operator import attrgetter
from typing import Any, Final

from core.config.types import ConfigError
from core.security.principal import ROLE, Principal

# StrEnum, because a plain Enum's hash is a call of Python's, and each decision looks up a few.


class ResourceType(StrEnum):
    """What a binding is about (Kafka's ResourceType). ANY is for filters only."""

    UNKNOWN = "UNKNOWN"
    ANY = "ANY"
    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    DELEGATION_TOKEN = "DELEGATION_TOKEN"
    USER = "USER"


class PatternType(StrEnum):
    """How a binding's name is meant (Kafka's PatternType). ANY and MATCH are for filters only."""

    UNKNOWN = "UNKNOWN"
    ANY = "ANY"
    MATCH = "MATCH"
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Operation(StrEnum):
    """What is done (Kafka's AclOperation). ANY is for filters only."""

    UNKNOWN = "UNKNOWN"
    ANY = "ANY"
    ALL = "ALL"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"
    CREATE_TOKENS = "CREATE_TOKENS"
    DESCRIBE_TOKENS = "DESCRIBE_TOKENS"
    TWO_PHASE_COMMIT = "TWO_PHASE_COMMIT"


class Permission(StrEnum):
    """Kafka's AclPermissionType. ANY is for filters only."""

    UNKNOWN = "UNKNOWN"
    ANY = "ANY"
    DENY = "DENY"
    ALLOW = "ALLOW"


WILDCARD: Final = "*"
"""As a literal name: each resource of the type. As a host: each host."""
EVERYBODY: Final = "User:*"
"""As a binding's principal: whoever asks, of any kind."""
EVERY_ROLE: Final = f"{ROLE}:*"
"""As a binding's principal: each role of the database. Kafka knows no such kind."""
_OF_ROLES: Final = EVERY_ROLE[:-1]
CLUSTER_NAME: Final = "kafka-cluster"
"""The one resource of type CLUSTER."""


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One ACL (Kafka's AclBinding, in one piece as its StandardAcl).

    name: of the resource, or what its name begins with. principal: `Kind:name`. host: an address as
    text, or WILDCARD.
    """

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    @property
    def text(self) -> str:
        """For people: what it says, and on what."""
        return (
            f"{self.permission} {self.principal} from {self.host} {self.operation} on "
            f"{self.resource_type}:{self.pattern_type}:{self.name}"
        )


class Standing(Enum):
    """What decides where no binding does, under the names of Kafka's audit log."""

    SUPER_USER = "SuperUser"
    NO_ACL_FOUND = "DefaultAllow"
    """By `allow.everyone.if.no.acl.found`."""
    NOT_ALLOWED = "DefaultDeny"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether it may be done, and by what rule."""

    is_allowed: bool
    rule: AclBinding | Standing


_SUPER_USER: Final = Decision(True, Standing.SUPER_USER)
_NO_ACL_FOUND: Final = Decision(True, Standing.NO_ACL_FOUND)
_NOT_ALLOWED: Final = Decision(False, Standing.NOT_ALLOWED)

# By which operations an ALLOW grants one; a DENY takes away its own and no other.
_GRANTED_BY: Final[dict[Operation, frozenset[Operation]]] = {
    each: frozenset({each, Operation.ALL}) for each in Operation
} | {
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.ALL,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
    ),
}

# What Kafka asks about first where any resource of a type will do: it finds super users so, and
# whoever may do it everywhere.
_SOME_RESOURCE: Final = "hardcode"


def read_super_users(text: str) -> frozenset[str]:
    """The principals of `super.users`, split at semicolons. Raises ConfigError."""
    users = frozenset(filter(None, (each.strip() for each in text.split(";"))))
    for each in users:
        if ":" not in each:
            raise ConfigError(
                f"super.users: '{each}' is not Type:name; write for example User:admin;User:{each}"
            )
    return users


_Leaves = Mapping[str, tuple[AclBinding, ...]]


class _Patterns:
    """Bindings of one type of resource, by name. Immutable.

    A name is looked up once as a literal, and once for each length that a prefix has: there are
    few, also where there are many prefixes.
    """

    __slots__ = ("lengths", "literals", "prefixes")

    def __init__(self, literals: _Leaves, prefixes: _Leaves) -> None:
        self.literals: Final = literals
        self.prefixes: Final = prefixes
        self.lengths: Final = tuple(sorted({len(each) for each in prefixes}, reverse=True))

    def __iter__(self) -> Iterator[AclBinding]:
        return chain(
            chain.from_iterable(self.literals.values()), chain.from_iterable(self.prefixes.values())
        )

    def __bool__(self) -> bool:
        return bool(self.literals or self.prefixes)

    def matching(self, names: tuple[str, ...]) -> tuple[AclBinding, ...]:
        """Those that are about the resource, the most exact first. names: all that it has."""
        found: tuple[AclBinding, ...] = ()
        for name in names:
            found += self.literals.get(name, ())
            size = len(name)
            for length in self.lengths:
                if length <= size and (more := self.prefixes.get(name[:length])):
                    found += more
        return found + self.literals.get(WILDCARD, ())

    def changed(self, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> _Patterns:
        literals, prefixes = dict(self.literals), dict(self.prefixes)
        for (pattern_type, name), more, less in _grouped(_pattern, added, removed):
            leaves = prefixes if pattern_type is PatternType.PREFIXED else literals
            if leaf := _leaf(leaves.get(name, ()), more, less):
                leaves[name] = leaf
            else:
                leaves.pop(name, None)
        return _Patterns(literals, prefixes)


_NOTHING: Final = _Patterns({}, {})
_IS_INDEXED: Final = frozenset({ResourceType.GROUP})
"""Types of which it is known whether anybody's binding names a resource."""


def _leaf(
    before: tuple[AclBinding, ...], more: Sequence[AclBinding], less: Sequence[AclBinding]
) -> tuple[AclBinding, ...]:
    if not before and len(more) == 1:
        return (more[0],)  # nearly each, where all are read; to hash a binding takes long
    # Of the same binding twice one is left, in the order in which they came.
    gone = set(less)
    return tuple(dict.fromkeys(chain((each for each in before if each not in gone), more)))


_resource_type: Final = attrgetter("resource_type")
_subject: Final = attrgetter("resource_type", "principal")
_pattern: Final = attrgetter("pattern_type", "name")


def _grouped(
    key: Callable[[AclBinding], Any], added: Iterable[AclBinding], removed: Iterable[AclBinding]
) -> Iterator[tuple[Any, Sequence[AclBinding], Sequence[AclBinding]]]:
    more: defaultdict[Any, list[AclBinding]] = defaultdict(list)
    less: defaultdict[Any, list[AclBinding]] = defaultdict(list)
    for each in added:
        more[key(each)].append(each)
    for each in removed:
        less[key(each)].append(each)
    for of in dict.fromkeys(chain(more, less)):
        yield of, more.get(of, ()), less.get(of, ())


_ByPrincipal = Mapping[str, _Patterns]

AliasOf = Callable[[ResourceType, str], str | None]
"""A resource's other name, where it has one."""


def _no_alias(*_: object) -> None:
    """All have one name."""


class AclRules:
    """All bindings of one version, and who is above them. Immutable.

    version: the number that the store gives this set. alias_of: a binding on either name of a
    resource counts for it. Bindings lie by type, principal and name, so that a decision meets only
    those of who asks and those of everybody, on this resource.
    """

    __slots__ = ("_alias_of", "_allow_everyone", "_anybody", "_by_type", "_super_users", "version")

    def __init__(
        self,
        bindings: Iterable[AclBinding] = (),
        *,
        version: int = 0,
        super_users: Collection[str] = (),
        allow_everyone_if_no_acl_found: bool = False,
        alias_of: AliasOf = _no_alias,
    ) -> None:
        self.version = version
        self._alias_of = alias_of
        self._super_users = frozenset(super_users)
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._by_type: Mapping[ResourceType, _ByPrincipal] = {}
        # The same again without regard to principals, where it is needed to see that there is none.
        self._anybody: Mapping[ResourceType, _Patterns] = {}
        self._change(bindings, ())

    def __iter__(self) -> Iterator[AclBinding]:
        for by_principal in self._by_type.values():
            yield from chain.from_iterable(by_principal.values())

    def changed(
        self, version: int, added: Iterable[AclBinding] = (), removed: Iterable[AclBinding] = ()
    ) -> AclRules:
        """Those of the next version: these without `removed`, then with `added`."""
        rules = AclRules(
            version=version,
            super_users=self._super_users,
            allow_everyone_if_no_acl_found=self._allow_everyone,
            alias_of=self._alias_of,
        )
        rules._by_type, rules._anybody = self._by_type, self._anybody
        rules._change(added, removed)
        return rules

    def is_super_user(self, principal: Principal) -> bool:
        """Whether `principal` may do everything."""
        return str(principal) in self._super_users

    def authorize(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """Whether `principal`, who comes from `host`, may do it on this one resource.

        Any DENY that fits decides, else any ALLOW. Where neither does: no, unless the resource has
        no ACL at all, of anybody, and `allow.everyone.if.no.acl.found` holds.
        host: an address as Java writes it (`InetAddress.getHostAddress`); it is compared as text.
        """
        who = str(principal)
        if who in self._super_users:
            return _SUPER_USER
        allowed = None
        granting = _GRANTED_BY[operation]
        names = self._names(resource_type, name)
        for patterns in self._patterns_of(who, resource_type):
            for each in patterns.matching(names):
                if each.host != host and each.host != WILDCARD:
                    continue
                if each.permission is Permission.DENY:
                    if each.operation is operation or each.operation is Operation.ALL:
                        return Decision(False, each)
                elif allowed is None and each.operation in granting:
                    allowed = each
        if allowed is not None:
            return Decision(True, allowed)
        if self._allow_everyone and not self._anybody.get(resource_type, _NOTHING).matching(names):
            return _NO_ACL_FOUND
        return _NOT_ALLOWED

    def is_of_hosts(self, principal: Principal, resource_type: ResourceType) -> bool:
        """Whether what `principal` may do to resources of a type depends on its host."""
        return any(
            each.host != WILDCARD
            for patterns in self._patterns_of(str(principal), resource_type)
            for each in patterns
        )

    def authorize_unless_named(
        self,
        principal: Principal,
        host: str,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
    ) -> Decision:
        """The same, but for a resource that no ALLOW names, by either of its names: there it is
        allowed unless a DENY fits. Only for types in `_IS_INDEXED`."""
        decision = self.authorize(principal, host, operation, resource_type, name)
        if decision.rule is Standing.NOT_ALLOWED:
            literals = self._anybody.get(resource_type, _NOTHING).literals
            named = chain.from_iterable(
                literals.get(each, ()) for each in self._names(resource_type, name)
            )
            if not any(each.permission is Permission.ALLOW for each in named):
                return _NO_ACL_FOUND
        return decision

    def _names(self, resource_type: ResourceType, name: str) -> tuple[str, ...]:
        alias = self._alias_of(resource_type, name)
        return (name,) if alias is None or alias == name else (name, alias)

    def authorize_by_resource_type(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType
    ) -> Decision:
        """Whether they may do it on any resource of the type (KIP-679), there or not.

        No operation implies another here. A DENY counts where it covers all that an ALLOW gives: a
        prefix those that begin with it, a literal itself, `*` everything.
        """
        decision = self.authorize(principal, host, operation, resource_type, _SOME_RESOURCE)
        if decision.is_allowed:
            return decision
        fitting = [
            each
            for patterns in self._patterns_of(str(principal), resource_type)
            for each in patterns
            if each.operation in {operation, Operation.ALL} and each.host in {host, WILDCARD}
        ]
        denied: dict[PatternType, dict[str, AclBinding]] = {
            PatternType.LITERAL: {},
            PatternType.PREFIXED: {},
        }
        for each in fitting:
            if each.permission is Permission.DENY:
                denied[each.pattern_type][each.name] = each
        literals, prefixes = denied[PatternType.LITERAL], denied[PatternType.PREFIXED]
        if everything := literals.get(WILDCARD):
            return Decision(False, everything)
        lengths = {len(each) for each in prefixes}
        for each in fitting:
            if each.permission is Permission.ALLOW and not (
                (each.pattern_type is PatternType.LITERAL and each.name in literals)
                or any(each.name[:length] in prefixes for length in lengths)
            ):
                return Decision(True, each)
        return _NOT_ALLOWED

    def _patterns_of(self, who: str, resource_type: ResourceType) -> list[_Patterns]:
        by_principal = self._by_type.get(resource_type)
        if by_principal is None:
            return []
        found = [by_principal.get(who), by_principal.get(EVERYBODY)]
        if who.startswith(_OF_ROLES):
            found.append(by_principal.get(EVERY_ROLE))
        return [each for each in found if each is not None]

    def _change(self, added: Iterable[AclBinding], removed: Iterable[AclBinding]) -> None:
        by_type: dict[ResourceType, dict[str, _Patterns]] = {
            each: dict(by_principal) for each, by_principal in self._by_type.items()
        }
        anybody = dict(self._anybody)
        for (resource_type, who), more, less in _grouped(_subject, added, removed):
            by_principal = by_type.setdefault(resource_type, {})
            by_principal[who] = by_principal.get(who, _NOTHING).changed(more, less)
            if not by_principal[who]:
                del by_principal[who]
        for resource_type, more, less in _grouped(_resource_type, added, removed):
            if self._allow_everyone or resource_type in _IS_INDEXED:
                anybody[resource_type] = anybody.get(resource_type, _NOTHING).changed(more, less)
        self._by_type, self._anybody = by_type, anybody

"""`penstock.may` beside the rules of core, which it repeats where no broker can be asked."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.security.acls import (
    WILDCARD,
    AclBinding,
    AclRules,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.security.permissions import admin_bindings
from core.security.principal import ROLE, Principal, java_host
from core.security.sql_operations import SQL_REQUIREMENTS
from gateway.pulsar.names import name_in_acls
from storage.server import embedded
from storage.server.embedded import EmbeddedPostgres
from tests.conftest import SMALL_POSTGRES, free_port
from tests.storage.conftest import Log

HERE = "127.0.0.1"
"""Where a session by a Unix socket comes from."""
PREFIX = "persistent://"


@pytest.fixture
def psql(any_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A person with psql, where rights are asked for."""
    with psycopg.connect(any_url, autocommit=True) as connection:
        connection.execute("UPDATE sql_door SET asks_rights = true")
        yield connection


def binding(
    name: str = "orders",
    operation: Operation = Operation.WRITE,
    *,
    principal: str = "Role:app",
    host: str = WILDCARD,
    deny: bool = False,
    prefixed: bool = False,
    resource_type: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(
        resource_type,
        name,
        PatternType.PREFIXED if prefixed else PatternType.LITERAL,
        principal,
        host,
        operation,
        Permission.DENY if deny else Permission.ALLOW,
    )


def put(psql: psycopg.Connection[Any], *bindings: AclBinding) -> None:
    with psql.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO acl (resource_type, resource_name, pattern_type, principal, host,"
            " operation, permission) VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            [
                (
                    each.resource_type.value,
                    each.name,
                    each.pattern_type.value,
                    each.principal,
                    each.host,
                    each.operation.value,
                    each.permission.value,
                )
                for each in bindings
            ],
        )


def may(
    psql: psycopg.Connection[Any],
    role: str | None = "app",
    operation: str | None = "WRITE",
    resource_type: str = "TOPIC",
    name: str | None = "orders",
) -> Any:
    ((found,),) = psql.execute(
        "SELECT penstock.may(%s::name, %s, %s, %s)", [role, operation, resource_type, name]
    )
    return found


# --- beside core ---

WORDS = st.sampled_from(
    [
        *("orders", "or", "o", "p", "*", "*x", "pulsar.", "x/y", "flights-partition-3"),
        *("orders-partition-x", "__consumer_offsets", ".", "..", "a" * 249, "a" * 250, "a" * 400),
        *("pulsar.a.b.c", "pulsar.a.b.c-2Ed", "pulsar.a.b.-C3-BC", "pulsar.public.default.c"),
        "pulsar.public.default.pulsar-2Ea-2Eb-2Ec",
        *(PREFIX, f"{PREFIX}public/default/", f"{PREFIX}public/default/orders", f"{PREFIX}a/b/c"),
        *(f"{PREFIX}public/", f"{PREFIX}a/b/c.d", f"{PREFIX}a/b/ü", f"{PREFIX}a/b/"),
        *("pulsar-subscription:orders:0:s", "pulsar-subscription:pulsar.a.b.c:12:s:t"),
        *(f"pulsar-subscription:{PREFIX}public/default/:s", f"pulsar-subscription:{PREFIX}"),
        *(f"pulsar-subscription:{PREFIX}a/b/:s:t", "pulsar-subscription:orders:x:s"),
    ]
)
# Often the same, so that several rules fit one question.
OPERATIONS = st.sampled_from([Operation.WRITE, Operation.DESCRIBE, Operation.ALL])
OPERATIONS |= st.sampled_from(sorted(set(Operation) - {Operation.UNKNOWN, Operation.ANY}))
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP])
TYPES |= st.just(ResourceType.TRANSACTIONAL_ID)
NAMES = WORDS | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1
)
BINDINGS = st.builds(
    binding,
    WORDS,
    OPERATIONS,
    principal=st.sampled_from(["Role:app", "Role:*", "User:*"])
    | st.sampled_from(["Role:b", "User:app", "Role:App"]),
    host=st.sampled_from([WILDCARD, WILDCARD, HERE, "10.0.0.1"]),
    deny=st.integers(0, 3).map(lambda drawn: drawn == 0),
    prefixed=st.booleans(),
    resource_type=TYPES,
)
ASKED = st.tuples(
    st.sampled_from(["app", "app", "b", "*", "a b:c"]),
    OPERATIONS,
    TYPES,
    NAMES,
)
ENDS = st.sampled_from(["", "", "", "x", "-partition-0", "\n"])
BY_OTHER_NAMES = ("orders", "pulsar.a.b.c", "pulsar.a.b.c-2Ed", "pulsar.a.b.-C3-BC")


def names_met(rule: AclBinding, end: str) -> Sequence[str]:
    """Such as the rule may be about."""
    if rule.name.startswith(PREFIX):
        return BY_OTHER_NAMES
    if rule.name.startswith("pulsar-subscription:"):
        topics = [f"pulsar-subscription:{each}:7:s" for each in BY_OTHER_NAMES]
        return [rule.name + end, *topics, *(each + ":t" for each in topics)]
    return [rule.name + end]


@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    bindings=st.lists(BINDINGS, max_size=10) | st.lists(BINDINGS, min_size=5, max_size=10),
    asked=st.lists(ASKED, min_size=2, max_size=4),
    end=ENDS,
    if_no_acl=st.booleans(),
    super_users=st.sets(st.sampled_from(["Role:b", "Role:*"])),
    admins=st.dictionaries(
        st.sampled_from(["public", "a"]), st.lists(st.sampled_from(["x", "*"]), max_size=2)
    ),
)
def test_sql_decides_as_core_does(
    psql: psycopg.Connection[Any],
    bindings: Sequence[AclBinding],
    asked: Sequence[tuple[str, Operation, ResourceType, str]],
    end: str,
    if_no_acl: bool,
    super_users: set[str],
    admins: dict[str, list[str]],
) -> None:
    of_tenants = [each for name, roles in admins.items() for each in admin_bindings(name, roles)]
    rules = AclRules(
        [*bindings, *of_tenants],
        super_users=super_users,
        allow_everyone_if_no_acl_found=if_no_acl,
        alias_of=name_in_acls,
    )
    with psql.transaction(force_rollback=True):
        put(psql, *bindings)
        psql.execute(
            "UPDATE sql_door SET allows_without_acl = %s, super_users = %s",
            [if_no_acl, sorted(super_users)],
        )
        for tenant, roles in admins.items():
            psql.execute(
                "INSERT INTO tenant VALUES (%s, %s, '{}') ON CONFLICT (name) DO UPDATE"
                " SET admin_roles = excluded.admin_roles",
                [tenant, roles],
            )
        about_rules = [
            (role, operation, rule.resource_type, name)
            for rule, (role, operation, *_) in zip(bindings, cycle(asked), strict=False)
            for name in names_met(rule, end)
        ]
        for role, operation, resource_type, name in [*asked, *about_rules]:
            decision = rules.authorize(Principal(role, ROLE), HERE, operation, resource_type, name)
            found = may(psql, role, operation.value, resource_type.value, name)
            assert found is decision.is_allowed, (role, operation, resource_type, name, decision)


_PARTS = st.lists(
    st.sampled_from(
        ["a", "public", "default", "-2E", "-2F", "-C3-BC", "-FF", "-41", "-2D", "-20", "-00", "."]
    )
    | st.sampled_from(["-", "-2e", "-ED-A0-80", "-C2-A0", "-E3-80-80", "-1C", "pulsar", "9", "_"])
    | st.sampled_from(["-2Dpartition-2D0", "-partition-7", "-partition-2147483648", "\n", "ü"]),
    min_size=1,
    max_size=4,
).map("".join)
_LOOKING_ESCAPED = st.lists(_PARTS, min_size=1, max_size=4).map(".".join)


@settings(
    max_examples=500,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_LOOKING_ESCAPED.map("pulsar.".__add__) | _LOOKING_ESCAPED | NAMES, max_size=20))
def test_sql_knows_the_other_names_of_topics(
    psql: psycopg.Connection[Any], names: list[str]
) -> None:
    topics = [*names, *(f"pulsar.public.default.{each.replace('.', '-2E')}" for each in names)]
    groups = [f"pulsar-subscription:{each}:7:s\n" for each in topics]
    for kind, of_kind in ((ResourceType.TOPIC, topics), (ResourceType.GROUP, groups)):
        found = psql.execute(
            "SELECT penstock.name_in_acls(%s, name) FROM unnest(%s::text[]) AS name",
            [kind.value, of_kind],
        ).fetchall()
        for name, (alias,) in zip(of_kind, found, strict=True):
            known = name_in_acls(kind, name)
            assert alias == (known and known.replace("\0", "/")), name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.ip_addresses()
    | st.ip_addresses(v=4).map(lambda each: ipaddress.IPv6Address(f"::ffff:{each}"))
)
def test_sql_writes_addresses_as_java_does(
    psql: psycopg.Connection[Any], address: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> None:
    ((host,),) = psql.execute("SELECT penstock.java_host(%s::inet)", [str(address)])
    assert host == java_host(f"[{address}]:1234" if address.version == 6 else f"{address}:1234")


# --- one by one ---


@pytest.mark.parametrize("deny", [False, True])
def test_an_operation_implies_in_sql_what_it_does_in_core(
    psql: psycopg.Connection[Any], deny: bool
) -> None:
    operations = sorted(set(Operation) - {Operation.UNKNOWN, Operation.ANY})
    for each in operations:
        rules = [binding(operation=each, deny=deny)]
        if deny:
            rules.append(binding("*", Operation.ALL))
        decide = AclRules(rules).authorize
        with psql.transaction(force_rollback=True):
            put(psql, *rules)
            for asked in operations:
                of = (asked, ResourceType.TOPIC, "orders")
                expected = decide(Principal("app", ROLE), HERE, *of).is_allowed
                assert may(psql, operation=asked.value) is expected, (each, asked)


def test_where_rights_are_not_asked_for_everybody_may(psql: psycopg.Connection[Any]) -> None:
    assert may(psql) is False
    psql.execute("UPDATE sql_door SET asks_rights = false")
    put(psql, binding(deny=True))
    assert may(psql) is True


def test_what_is_not_known_is_not_allowed(psql: psycopg.Connection[Any]) -> None:
    put(psql, binding("*", Operation.ALL, principal="User:*"))
    psql.execute("UPDATE sql_door SET allows_without_acl = true")
    assert may(psql) is True
    assert not any([may(psql, None), may(psql, operation=None), may(psql, name=None)])
    psql.execute("DELETE FROM sql_door")
    assert may(psql) is True
    psql.execute("DELETE FROM acl")
    assert may(psql) is False


def test_rows_that_nobody_can_read_leave_super_users_only(psql: psycopg.Connection[Any]) -> None:
    psql.execute("ALTER TABLE acl DROP CONSTRAINT acl_operation_check")
    psql.execute("UPDATE sql_door SET super_users = '{Role:root}', allows_without_acl = true")
    put(psql, binding())
    assert (may(psql), may(psql, name="else"), may(psql, "root")) == (True, True, True)
    put(psql, binding("far", principal="User:away", resource_type=ResourceType.GROUP))
    psql.execute("UPDATE acl SET operation = 'FLY' WHERE resource_name = 'far'")
    assert (may(psql), may(psql, name="else"), may(psql, "root")) == (False, False, True)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        psql.execute("SELECT penstock.refuse_unless('app', 'WRITE', 'TOPIC', 'orders')")


def test_names_may_be_longer_than_an_index_takes(psql: psycopg.Connection[Any]) -> None:
    def of_group(name: str, principal: str = "Role:app", *, prefixed: bool = False) -> AclBinding:
        group = ResourceType.GROUP
        return binding(
            name, Operation.READ, principal=principal, prefixed=prefixed, resource_type=group
        )

    long, longer = "ü" * 4_000, "ü" * 4_001
    put(psql, of_group(long), of_group("orders", "Role:" + long))
    asked = [may(psql, "app", "READ", "GROUP", each) for each in (long, longer)]
    assert asked == [True, False]
    put(psql, of_group(long, "Role:b", prefixed=True))
    asked = [may(psql, "b", "READ", "GROUP", each) for each in (long[1:], long, longer)]
    assert asked == [False, True, True]


def test_a_refusal_says_who_may_not_do_what(psql: psycopg.Connection[Any]) -> None:
    put(psql, binding())
    psql.execute("SELECT penstock.refuse_unless('app', 'WRITE', 'TOPIC', 'orders')")
    for resource_type in ("TOPIC", "GROUP"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            psql.execute("SELECT penstock.refuse_unless('app', 'READ', %s, 'a')", [resource_type])
        sentence = (
            f'{resource_type}_AUTHORIZATION_FAILED: role "app" may not READ '
            f'{resource_type.lower()} "a": no ACL allows it'
        )
        assert caught.value.diag.message_primary == sentence
        assert '"Role:app"' in (caught.value.diag.message_hint or "")


def test_who_is_asked_about_is_the_role_that_the_caller_says(log: Log) -> None:
    """A function of the owner's passes on the role that it finds; nobody else may ask, and what he
    has in pg_temp is not found instead."""
    log.rows("UPDATE sql_door SET asks_rights = true")
    role = f"app {log.url[-12:]}"
    put(log.psql, binding(principal=f"Role:{role}"))
    log.rows(
        "CREATE FUNCTION penstock.write(role name, topic text) RETURNS text LANGUAGE plpgsql"
        " SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ BEGIN"
        " PERFORM penstock.refuse_unless(role, 'WRITE', 'TOPIC', topic); RETURN 'written'; END $$"
    )
    log.rows(f'CREATE ROLE "{role}"')
    try:
        log.rows(f'GRANT USAGE ON SCHEMA penstock TO "{role}"')
        log.rows(f'SET ROLE "{role}"')
        log.rows("CREATE TEMP TABLE sql_door (asks_rights boolean)")
        log.rows("CREATE FUNCTION pg_temp.may(name, text, text, text) RETURNS boolean RETURN true")
        log.rows("SET search_path = pg_temp, penstock")
        assert log.value("SELECT penstock.write(current_user, 'orders')") == "written"
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="TOPIC_AUTHORIZATION"):
            log.rows("SELECT penstock.write(current_user, 'secrets')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function may"):
            log.rows("SELECT penstock.may(current_user, 'WRITE', 'TOPIC', 'orders')")
    finally:
        log.rows("RESET ROLE")
        log.rows(f'DROP OWNED BY "{role}"')
        log.rows(f'DROP ROLE "{role}"')


def test_a_host_is_that_of_the_session(migrated_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = str(free_port())
    monkeypatch.setenv("PGPORT", port)  # its own and the test's clients have no other
    listening = {**embedded.FIXED_SETTINGS, "listen_addresses": "127.0.0.1,::1", "port": port}
    monkeypatch.setattr(embedded, "FIXED_SETTINGS", listening)
    monkeypatch.setattr(embedded, "PORT", port)
    (migrated_dir / "pgdata/pg_hba.conf").write_text(
        "local all all trust\nhost all all all trust\n"
    )
    with EmbeddedPostgres(migrated_dir, settings=SMALL_POSTGRES) as server:
        with psycopg.connect(server.url, autocommit=True) as by_socket:
            by_socket.execute("UPDATE sql_door SET asks_rights = true")
            put(by_socket, binding("here", host=HERE), binding("six", host="0:0:0:0:0:0:0:1"))
            assert [may(by_socket, name=each) for each in ("here", "six")] == [True, False]
        for address, expected in ((HERE, [True, False]), ("::1", [False, True])):
            if address == HERE or has_ipv6():
                with psycopg.connect(server.url, host=address) as by_tcp:
                    assert [may(by_tcp, name=each) for each in ("here", "six")] == expected


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


# --- what is granted ---

GRANTED = """
WITH ours AS (
    SELECT proname AS name, coalesce(proacl, acldefault('f', proowner)) AS acl, proowner AS owner
    FROM pg_proc WHERE pronamespace = 'penstock'::regnamespace
    UNION ALL
    SELECT relname, relacl, relowner FROM pg_class
    WHERE relnamespace = 'penstock'::regnamespace AND relacl IS NOT NULL
    UNION ALL
    SELECT relname, attacl, relowner FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    WHERE relnamespace = 'penstock'::regnamespace AND attacl IS NOT NULL
)
SELECT DISTINCT name FROM ours, aclexplode(acl) AS a WHERE a.grantee <> owner
"""


def test_each_thing_that_is_granted_has_its_row_of_rights(log: Log) -> None:
    granted = {name for (name,) in log.rows(GRANTED)}
    assert granted - SQL_REQUIREMENTS.keys() == set()
    assert SQL_REQUIREMENTS.keys() <= granted

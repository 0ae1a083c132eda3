"""Rights at Pulsar's REST, and permissions given there, which are ACLs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from core.namespace.values import Tenant
from core.security.acls import (
    AclBinding,
    Decision,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from core.security.operations import Right
from core.security.principal import ANONYMOUS, Principal
from core.security.pulsar_operations import Need, Scope
from core.topic.rules import NewTopic
from gateway.pulsar.admin.api import load_endpoints
from gateway.web.api import Endpoint
from tests.gateway.pulsar.admin.test_namespaces import BODY, Rest
from tests.gateway.pulsar.conftest import Broker
from tests.gateway.pulsar.test_rights import ANY, AUTHORIZER, rule

ALICE, BOB = Principal("alice"), Principal("bob")
HERE: Final = "persistent://public/default/"
NAMESPACE: Final = "/namespaces/public/default/permissions"
PLACES: Final = {
    "tenant": "public",
    "namespace": "default",
    "topic": "flights",
    "subscription": "mine",
    "plain_subscription": "mine",
    "cluster": "standalone",
}


class Guarded:
    """A broker with an authorizer. It asks nobody who he is: all are anonymous."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.acls = broker.runtime.acls
        self.rest = Rest(broker)

    async def grant(self, *bindings: AclBinding) -> None:
        answers = await self.acls.create(bindings, principal=ALICE, peer="here")
        assert answers == [None] * len(bindings)

    async def forget_all(self) -> None:
        await self.acls.delete([ANY], principal=ALICE, peer="here")

    async def rules(self) -> list[str]:
        found = await self.acls.describe(ANY)
        assert not isinstance(found, tuple)
        return sorted(each.text for each in found)

    def decision(self, who: Principal, operation: Operation, topic: str) -> Decision:
        return self.acls.rules.authorize(who, "h", operation, ResourceType.TOPIC, topic)

    def may(self, who: Principal, operation: Operation, topic: str = "flights") -> bool:
        return self.decision(who, operation, topic).is_allowed


@pytest.fixture
async def at(make_broker: Any) -> AsyncIterator[Guarded]:
    broker: Broker = await make_broker(AUTHORIZER)
    await broker.runtime.acls.load()
    await broker.runtime.topics.create([NewTopic("flights", 1), NewTopic("trains", 1)])
    yield Guarded(broker)


@pytest.fixture
async def admin(at: Guarded) -> Guarded:
    """Whoever asks may give and take permissions."""
    await at.grant(anonymous(Right(Operation.ALTER, ResourceType.CLUSTER), Scope.CLUSTER))
    await at.grant(anonymous(Right(Operation.DESCRIBE, ResourceType.CLUSTER), Scope.CLUSTER))
    return at


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"{(\w+)}", lambda found: PLACES.get(found[1], "1"), endpoint.path)


def anonymous(right: Right, scope: Scope) -> AclBinding:
    """What grants it."""
    if right.resource_type is ResourceType.CLUSTER:
        return rule(right.operation, "kafka-cluster", ResourceType.CLUSTER, who=ANONYMOUS)
    if scope is Scope.TOPIC:
        return rule(right.operation, "flights", who=ANONYMOUS)
    name = HERE if scope is Scope.NAMESPACE else "persistent://public/"
    return rule(right.operation, name, pattern=PatternType.PREFIXED, who=ANONYMOUS)


async def test_each_endpoint_takes_its_right(at: Guarded) -> None:
    """Any one of those that the table has; without, the same whether a thing is there or not."""
    asking = [each for each in load_endpoints() if each.needs is not None]
    assert len(asking) > 80
    for each in sorted(asking, key=lambda one: one.method == "DELETE"):
        need: Need = each.needs
        refused = await at.rest(each.method, path_of(each))
        assert refused[0] == 403, each
        nowhere = path_of(each).replace("flights", "nowhere").replace("/mine", "/other")
        assert await at.rest(each.method, nowhere) == refused, each
        for right in need.requirement.rights:
            await at.grant(anonymous(right, need.scope))
            assert (await at.rest(each.method, path_of(each)))[0] != 403, (each, right)
            await at.forget_all()
    assert [each for each in load_endpoints() if not isinstance(each.needs, Need | None)] == []


async def test_lists_leave_out_what_one_may_not_know(at: Guarded) -> None:
    paths = ("/persistent/public/default", "/namespaces/public/default/topics")
    for path in paths:
        assert await at.rest("GET", path) == (200, [])
    await at.grant(rule(Operation.READ, "trains", who=ANONYMOUS))
    for path in paths:
        assert await at.rest("GET", path) == (200, [HERE + "trains"])


async def test_a_subscription_that_is_named_is_for_those_who_are(at: Guarded) -> None:
    await at.grant(rule(Operation.READ, "flights", who=ANONYMOUS))
    path = "/persistent/public/default/flights/subscription/mine/properties"
    assert (await at.rest("GET", path))[0] == 404
    named = f"pulsar-subscription:{HERE}:mine"
    await at.grant(rule(Operation.READ, named, ResourceType.GROUP, who=BOB))
    assert (await at.rest("GET", path))[0] == 403


async def test_rights_of_one_tenant_are_none_of_another(at: Guarded) -> None:
    """What stands for all of a namespace's topics was taken for a topic of public/default."""
    namespaces = at.broker.runtime.namespaces
    await namespaces.put_tenant(Tenant("acme", (), ("standalone",)), is_new=True)
    assert await namespaces.create("acme", "x") is None
    everything = anonymous(Right(Operation.ALL, ResourceType.TOPIC), Scope.TENANT)
    await at.grant(everything)
    assert (await at.rest("GET", NAMESPACE))[0] == 200
    for method, path in (
        ("POST", "/namespaces/acme/x/permissions/bob"),
        ("DELETE", "/namespaces/acme/x?force=true"),
        ("GET", "/tenants/acme"),
    ):
        assert (await at.rest(method, path, ["produce"]))[0] == 403, path


async def test_a_topic_that_is_denied_stays_with_its_namespace(at: Guarded) -> None:
    everything = Right(Operation.ALL, ResourceType.TOPIC)
    deny = rule(Operation.ALL, "trains", permission=Permission.DENY, who=ANONYMOUS)
    await at.grant(anonymous(everything, Scope.NAMESPACE), deny)
    of_topic = "/persistent/public/default/{}/permissions/carol"
    assert (await at.rest("POST", of_topic.format("flights"), ["consume"]))[0] == 204
    assert (await at.rest("POST", of_topic.format("trains"), ["consume"]))[0] == 403
    forced = "/namespaces/public/default?force=true"
    assert (await at.rest("DELETE", forced))[0] == 403
    await at.forget_all()
    await at.grant(anonymous(everything, Scope.NAMESPACE))
    assert (await at.rest("DELETE", forced))[0] != 403


async def test_what_nobody_was_given_is_no_way_to_what_somebody_was(make_broker: Any) -> None:
    """With allow.everyone.if.no.acl.found: a namespace has no ACL, but a topic in it has."""
    settings = AUTHORIZER | {"allow.everyone.if.no.acl.found": "true"}
    at = Guarded(await make_broker(settings))
    await at.acls.load()
    await at.broker.runtime.topics.create([NewTopic("flights", 1)])
    on_cluster = rule(Operation.ALL, "kafka-cluster", ResourceType.CLUSTER)
    await at.grant(rule(Operation.ALL, "flights"))
    assert (await at.rest("POST", f"{NAMESPACE}/bob", ["produce"]))[0] == 204  # as kafka-acls
    assert (await at.rest("DELETE", "/namespaces/public/default?force=true"))[0] == 403
    await at.grant(on_cluster)
    assert (await at.rest("POST", f"{NAMESPACE}/bob", ["consume"]))[0] == 403


async def test_all_subscriptions_are_changed_by_who_may_use_all(at: Guarded) -> None:
    await at.grant(rule(Operation.READ, "flights", who=ANONYMOUS))
    topic = "/persistent/public/default/flights"
    assert (await at.rest("PUT", f"{topic}/subscription/mine"))[0] == 204
    expire = f"{topic}/all_subscription/expireMessages/1"
    assert (await at.rest("POST", expire))[0] == 204
    named = f"pulsar-subscription:{HERE}:mine"
    await at.grant(rule(Operation.READ, named, ResourceType.GROUP, who=BOB))
    assert (await at.rest("POST", expire))[0] == 403


async def test_the_subscription_asked_for_is_the_one_that_is_shown(at: Guarded) -> None:
    """Clients encode its name once here, and twice elsewhere."""
    await at.grant(rule(Operation.READ, "flights", who=ANONYMOUS))
    named = f"pulsar-subscription:{HERE}:a+b"
    await at.grant(rule(Operation.READ, named, ResourceType.GROUP, who=BOB))
    path = "/admin/v3/transactions/pendingAckStats/public/default/flights"
    assert (await at.rest("GET", f"{path}/a+b"))[0] == 403
    assert (await at.rest("GET", f"{path}/a%2Bb"))[0] == 403
    assert (await at.rest("GET", f"{path}/a%20b"))[0] == 404


# --- permissions ---


async def test_a_permission_on_a_namespace_is_an_acl(admin: Guarded) -> None:
    rest = admin.rest
    assert await rest("GET", NAMESPACE) == (200, {})
    with capture_logs() as logs:
        assert (await rest("POST", f"{NAMESPACE}/alice", ["produce", "consume"]))[0] == 204
    assert len([each for each in logs if each["event"] == "acl_changed"]) == 2
    assert await rest("GET", NAMESPACE) == (200, {"alice": ["consume", "produce"]})
    assert [each for each in await admin.rules() if "alice" in each] == [
        f"ALLOW User:alice from * {each} on TOPIC:PREFIXED:{HERE}" for each in ("READ", "WRITE")
    ]
    for topic in ("flights", "not-there-yet"):
        assert admin.may(ALICE, Operation.READ, topic) and admin.may(ALICE, Operation.WRITE, topic)
    assert not admin.may(ALICE, Operation.WRITE, "pulsar.t.n.x")
    assert not admin.may(ALICE, Operation.READ, "__consumer_offsets")
    # Again, with fewer: those alone stay.
    assert (await rest("POST", f"{NAMESPACE}/alice", ["consume"]))[0] == 204
    assert await rest("GET", NAMESPACE) == (200, {"alice": ["consume"]})
    assert not admin.may(ALICE, Operation.WRITE)
    assert (await rest("DELETE", f"{NAMESPACE}/alice"))[0] == 204
    assert await rest("GET", NAMESPACE) == (200, {})
    assert not admin.may(ALICE, Operation.READ)


async def test_a_permission_on_a_topic(admin: Guarded) -> None:
    rest, path = admin.rest, "/persistent/public/default/flights/permissions"
    assert await rest("DELETE", f"{path}/alice") == (
        412,
        "Permissions are not set at the topic level",
    )
    assert (await rest("POST", f"{path}/alice", ["produce"]))[0] == 204
    assert (await rest("POST", f"{NAMESPACE}/bob", ["consume"]))[0] == 204
    assert await rest("GET", path) == (200, {"alice": ["produce"], "bob": ["consume"]})
    assert await rest("GET", NAMESPACE) == (200, {"bob": ["consume"]})
    assert admin.may(ALICE, Operation.WRITE)
    assert not admin.may(ALICE, Operation.WRITE, "trains")
    assert (await rest("DELETE", f"{path}/alice"))[0] == 204
    assert not admin.may(ALICE, Operation.WRITE)
    assert admin.may(BOB, Operation.READ)
    assert (await rest("GET", "/persistent/public/default/nowhere/permissions"))[0] == 404


async def test_a_right_is_taken_away_by_whichever_name_it_was_given(admin: Guarded) -> None:
    await admin.grant(rule(Operation.WRITE, f"{HERE}flights"), rule(Operation.READ, "flights"))
    path = "/persistent/public/default/flights/permissions"
    assert await admin.rest("GET", path) == (200, {"alice": ["consume", "produce"]})
    assert (await admin.rest("DELETE", f"{path}/alice"))[0] == 204
    assert not admin.may(ALICE, Operation.WRITE)
    assert await admin.rest("GET", path) == (200, {})


async def test_in_another_namespace_a_topic_has_two_names(admin: Guarded) -> None:
    namespaces = admin.broker.runtime.namespaces
    assert await namespaces.create("public", "n") is None
    await admin.broker.runtime.topics.create([NewTopic("pulsar.public.n.x", 1)])
    path = "/namespaces/public/n/permissions"
    assert (await admin.rest("POST", f"{path}/alice", ["produce"]))[0] == 204
    assert admin.may(ALICE, Operation.WRITE, "pulsar.public.n.x")
    assert not admin.may(ALICE, Operation.WRITE, "flights")
    topic = "/persistent/public/n/x/permissions"
    assert (await admin.rest("POST", f"{topic}/bob", ["consume"]))[0] == 204
    assert any("TOPIC:LITERAL:pulsar.public.n.x" in each for each in await admin.rules())
    assert await admin.rest("GET", topic) == (200, {"alice": ["produce"], "bob": ["consume"]})


async def test_what_kafkas_tools_have_given_is_shown_where_it_can_be_said(admin: Guarded) -> None:
    deny, prefixed = Permission.DENY, PatternType.PREFIXED
    await admin.grant(
        rule(Operation.ALL, "*", who=Principal("all")),
        rule(Operation.WRITE, "fli", pattern=prefixed, who=BOB),
        rule(Operation.READ, "persistent://public/", pattern=prefixed, who=ALICE),
        rule(Operation.READ, "*", who=BOB, permission=deny),
        rule(Operation.ALTER, "*", who=BOB),
    )
    both = ["consume", "produce"]
    assert await admin.rest("GET", NAMESPACE) == (200, {"alice": ["consume"], "all": both})
    path = "/persistent/public/default/flights/permissions"
    shown = {"alice": ["consume"], "all": both, "bob": ["produce"]}
    assert await admin.rest("GET", path) == (200, shown)


async def test_a_permission_on_a_subscription(admin: Guarded) -> None:
    rest, path = admin.rest, f"{NAMESPACE}/subscription"
    assert (await rest("POST", f"{path}/mine", ["alice", "bob"]))[0] == 204
    assert await rest("GET", path) == (200, {"mine": ["alice", "bob"]})
    group_id = "pulsar-subscription:flights:0:mine"

    def may(who: Principal) -> bool:
        asked = (who, "h", Operation.READ, ResourceType.GROUP, group_id)
        return admin.acls.rules.authorize_unless_named(*asked).is_allowed

    assert (may(ALICE), may(BOB), may(Principal("carol"))) == (True, True, False)
    assert (await rest("POST", f"{path}/mine", ["alice"]))[0] == 204
    assert (may(ALICE), may(BOB)) == (True, False)
    assert (await rest("DELETE", f"{NAMESPACE}/mine/alice"))[0] == 204
    assert await rest("GET", path) == (200, {})
    assert may(Principal("carol"))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", f"{NAMESPACE}/alice", ["fly"], 501),
        ("POST", f"{NAMESPACE}/alice", ["functions"], 501),
        ("POST", f"{NAMESPACE}/alice", {"a": 1}, 400),
        ("POST", f"{NAMESPACE}/alice", BODY, 400),
        ("POST", f"{NAMESPACE}/%20", ["produce"], 412),
        ("POST", f"{NAMESPACE}/a%00b", ["produce"], 412),
        ("POST", f"{NAMESPACE}/subscription/mine", "alice", 400),
        ("POST", "/namespaces/public/nowhere/permissions/alice", ["produce"], 404),
        ("GET", "/namespaces/public/nowhere/permissions", BODY, 404),
    ],
)
async def test_what_is_no_permission(
    admin: Guarded, method: str, path: str, body: Any, status: int
) -> None:
    before = await admin.rules()
    assert (await admin.rest(method, path, body))[0] == status
    assert await admin.rules() == before


async def test_without_an_authorizer_there_are_none(broker: Broker) -> None:
    rest = Rest(broker)
    assert await rest("GET", NAMESPACE) == (200, {})
    for method, path, body in (
        ("POST", f"{NAMESPACE}/alice", ["produce"]),
        ("DELETE", f"{NAMESPACE}/alice", BODY),
    ):
        assert await rest(method, path, body) == (501, "Authorization is not enabled")

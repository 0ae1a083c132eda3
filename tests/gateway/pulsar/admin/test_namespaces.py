"""REST for tenants and namespaces. Statuses and sentences are those that Pulsar 4.2.4 answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.pulsar.admin.api import NOT_SERVED, PREFIX, AdminServices, load_endpoints
from gateway.pulsar.admin.rights import refuse
from gateway.web.peers import Peers
from gateway.web.server import Part, make_app
from tests.gateway.pulsar.conftest import Broker

BODY = object()


class Rest:
    """Asks the application, without a socket."""

    def __init__(self, broker: Broker) -> None:
        services = AdminServices(broker.front_end.services, Peers(None))
        part = Part(load_endpoints(), services, PREFIX, NOT_SERVED, refuse)
        self._app = make_app([part], broker.metrics.requests)

    async def __call__(self, method: str, path: str, body: Any = BODY) -> tuple[int, Any]:
        """The status, and the answer's JSON: a reason alone, where there is one."""
        path = path if path.startswith(("/lookup/", "/admin/")) else f"/admin/v2{path}"
        path, _, query = path.partition("?")
        sent: list[Any] = []
        content = b"" if body is BODY else body if isinstance(body, bytes) else json.dumps(body)
        content = content.encode() if isinstance(content, str) else content

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": content}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [],
        }
        await self._app(scope, receive, send)
        whole = b"".join(each.get("body", b"") for each in sent)
        is_json = (b"content-type", b"application/json") in sent[0]["headers"]
        answer = json.loads(whole) if is_json else whole or None
        reason = answer.get("reason") if isinstance(answer, dict) else None
        return sent[0]["status"], answer if reason is None else reason


@pytest.fixture
def rest(broker: Broker) -> Rest:
    return Rest(broker)


@pytest.fixture
async def namespace(rest: Rest) -> str:
    assert await rest("PUT", "/tenants/t", {"allowedClusters": ["standalone"]}) == (204, None)
    assert await rest("PUT", "/namespaces/t/n") == (204, None)
    return "/namespaces/t/n"


async def test_tenants(rest: Rest) -> None:
    first = {"adminRoles": ["a"], "allowedClusters": ["standalone"]}
    second = {"adminRoles": ["b", "c"], "allowedClusters": ["standalone"]}
    for method, path, body, status, answer in (
        ("GET", "/tenants", BODY, 200, ["public", "pulsar"]),
        ("GET", "/tenants/public", BODY, 200, {**first, "adminRoles": []}),
        ("GET", "/tenants/t", BODY, 404, "Tenant does not exist"),
        ("PUT", "/tenants/t", first, 204, None),
        ("PUT", "/tenants/t", first, 409, "Tenant already exist"),
        ("GET", "/tenants/t", BODY, 200, first),
        ("POST", "/tenants/t", second, 204, None),
        ("GET", "/tenants/t", BODY, 200, second),
        ("POST", "/tenants/u", second, 404, "Tenant u not found"),
        ("PUT", "/tenants/u", {"allowedClusters": ["x"]}, 412, "Clusters do not exist"),
        ("PUT", "/tenants/u", {"allowedClusters": []}, 412, "Clusters cannot be empty or blank"),
        ("PUT", "/tenants/u", {}, 412, "Clusters cannot be null"),
        ("PUT", "/tenants/u", BODY, 412, "TenantInfo is null"),
        ("PUT", "/tenants/u%20v", first, 412, "Tenant name is not valid"),
        ("PUT", "/namespaces/t/n", BODY, 204, None),
        ("DELETE", "/tenants/t", BODY, 409, "The tenant still has active namespaces"),
        ("DELETE", "/tenants/t?force=true", BODY, 405, None),
        ("DELETE", "/namespaces/t/n", BODY, 204, None),
        ("DELETE", "/tenants/t", BODY, 204, None),
        ("DELETE", "/tenants/t", BODY, 404, None),
    ):
        told = await rest(method, path, body)
        assert told[0] == status, (method, path, told)
        assert answer is None or told[1] == answer, (method, path, told)
    for bad in (b"{bad", [], {"allowedClusters": "standalone"}, {"allowedClusters": [1]}):
        assert (await rest("PUT", "/tenants/u", bad))[0] == 400


async def test_namespaces(rest: Rest, broker: Broker) -> None:
    await rest("PUT", "/tenants/t", {"allowedClusters": ["standalone"]})
    for method, path, body, status, answer in (
        ("GET", "/namespaces/public", BODY, 200, ["public/default"]),
        ("GET", "/namespaces/u", BODY, 404, "Tenant not found"),
        ("GET", "/namespaces/t/n", BODY, 404, "Namespace does not exist"),
        ("PUT", "/namespaces/t/n", BODY, 204, None),
        ("PUT", "/namespaces/t/n", BODY, 409, "Namespace already exists"),
        ("PUT", "/namespaces/u/n", BODY, 404, "Tenant does not exist"),
        ("PUT", "/namespaces/t/n%20m", BODY, 412, None),
        ("PUT", "/namespaces/t/o", {"message_ttl_in_seconds": 5}, 204, None),
        ("PUT", "/namespaces/t/p", {"message_ttl_in_seconds": -5}, 412, None),
        ("PUT", "/namespaces/t/p", {"replication_clusters": ["x"]}, 403, None),
        ("PUT", "/namespaces/t/p", {"encryption_required": True}, 501, None),
        ("PUT", "/namespaces/t/p", [], 204, None),
        ("GET", "/namespaces/t", BODY, 200, ["t/n", "t/o", "t/p"]),
        ("GET", "/namespaces/t/o/messageTTL", BODY, 200, 5),
        ("GET", "/namespaces/t/n/topics", BODY, 200, []),
        ("GET", "/namespaces/t/x/topics", BODY, 404, "Namespace does not exist"),
        ("GET", "/namespaces/t/n/permissions", BODY, 200, {}),
        ("GET", "/namespaces/t/n/replication", BODY, 200, ["standalone"]),
        ("POST", "/namespaces/t/n/replication", ["standalone"], 204, None),
        ("POST", "/namespaces/t/n/replication", ["x"], 403, "Invalid cluster id: x"),
        ("PUT", "/persistent/t/n/x", BODY, 204, None),
        ("PUT", "/persistent/t/y/x", BODY, 404, None),
        ("PUT", "/persistent/t/y/x/partitions", 3, 404, None),
        ("GET", "/namespaces/t/n/topics", BODY, 200, ["persistent://t/n/x"]),
        ("GET", "/namespaces/t/n/topics?mode=NON_PERSISTENT", BODY, 200, []),
        ("DELETE", "/namespaces/t/n", BODY, 409, "Cannot delete non empty namespace"),
        ("DELETE", "/namespaces/t/x", BODY, 404, "Namespace t/x does not exist."),
        ("DELETE", "/namespaces/t/n?force=true", BODY, 204, None),
        ("GET", "/namespaces/t/n", BODY, 404, "Namespace does not exist"),
    ):
        told = await rest(method, path, body)
        assert told[0] == status, (method, path, told)
        assert answer is None or told[1] == answer, (method, path, told)
    bundles = (await rest("GET", "/namespaces/t/o/bundles"))[1]
    assert bundles == {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}
    assert await broker.runtime.topics.all() == ()


async def test_where_a_topic_is_or_would_be(rest: Rest, namespace: str) -> None:
    """As clients ask whose service URL is HTTP's."""
    plain, made = "/persistent/t/n/x/partitions", "/persistent/t/n/y/partitions"
    asked = "?checkAllowAutoCreation=true"
    none = {"partitions": 0, "deleted": False}
    assert (await rest("GET", plain))[0] == 404
    assert await rest("GET", plain + asked) == (200, none)
    assert (await rest("POST", f"{namespace}/autoTopicCreation", TOPICS))[0] == 204
    assert (await rest("GET", made))[0] == 404
    assert await rest("GET", made + asked) == (200, {**none, "partitions": 3})
    assert await rest("GET", made) == (200, {**none, "partitions": 3})
    for path in ("/persistent/t/no/x/partitions", f"/persistent/t/no/x/partitions{asked}"):
        assert await rest("GET", path) == (404, "Namespace not found")
    assert await rest("GET", "/persistent/t/no") == (404, "Namespace does not exist")
    assert await rest("GET", "/persistent/t/n/partitioned") == (200, ["persistent://t/n/y"])
    assert (await rest("GET", "/lookup/v2/topic/persistent/t/no/x"))[0] == 404


async def test_what_a_client_has_read_it_may_send(rest: Rest, namespace: str) -> None:
    """Java's clients make namespaces with all of Pulsar's policies, most of them defaults."""
    await rest("POST", f"{namespace}/retention", {"retentionTimeInMinutes": 10, **MB_20})
    status, policies = await rest("GET", namespace)
    assert (status, policies["schema_compatibility_strategy"]) == (200, "UNDEFINED")
    assert await rest("PUT", "/namespaces/t/copy", policies) == (204, None)
    assert await rest("GET", "/namespaces/t/copy") == (200, policies)


MB_20 = {"retentionSizeInMB": 20}
RETENTION = {"retentionTimeInMinutes": 10, **MB_20}
TOPICS = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3}
SUBSCRIPTIONS = {"allowAutoSubscriptionCreation": False}
NO_BODY = "The request entity cannot be empty."
AUTO = "Invalid configuration for autoTopicCreationOverride. the detail is "


@pytest.mark.parametrize(
    ("policy", "method", "unset", "value", "bad"),
    [
        ("retention", "POST", None, RETENTION, [({"retentionTimeInMinutes": 5}, 400)]),
        ("messageTTL", "POST", None, 5, [(-5, 412), ("x", 400), (BODY, 400), (True, 400)]),
        ("deduplication", "POST", None, True, [(BODY, 400), (1, 400)]),
        ("schemaCompatibilityStrategy", "PUT", "UNDEFINED", "BACKWARD", [("FOO", 400)]),
        ("schemaAutoUpdateCompatibilityStrategy", "PUT", None, "Forward", [("FOO", 400)]),
        ("isAllowAutoUpdateSchema", "POST", True, False, [("x", 400)]),
        ("schemaValidationEnforced", "POST", False, True, [("x", 400)]),
        (
            "autoTopicCreation",
            "POST",
            None,
            TOPICS,
            [
                ({"allowAutoTopicCreation": True}, 412),
                ({"allowAutoTopicCreation": True, "topicType": "foo"}, 412),
                ({**TOPICS, "defaultNumPartitions": 0}, 412),
                ({**TOPICS, "topicType": "non-partitioned"}, 412),
            ],
        ),
        ("autoSubscriptionCreation", "POST", None, SUBSCRIPTIONS, [([], 400)]),
        ("maxUnackedMessagesPerConsumer", "POST", None, 10, [(-1, 412)]),
        ("maxUnackedMessagesPerSubscription", "POST", None, 10, [(-1, 412)]),
    ],
)
async def test_policies(
    rest: Rest,
    namespace: str,
    policy: str,
    method: str,
    unset: Any,
    value: Any,
    bad: list[tuple[Any, int]],
) -> None:
    path = f"{namespace}/{policy}"
    for body, status in bad:
        assert (await rest(method, path, body))[0] == status, body
    is_missing = unset is None and policy.startswith("schemaAuto")
    assert await rest("GET", path) == (204 if is_missing else 200, unset)
    assert await rest(method, path, value) == (204, None)
    assert await rest("GET", path) == (200, value)
    status, _ = await rest("DELETE", path)
    if method == "PUT" or policy in ("isAllowAutoUpdateSchema", "schemaValidationEnforced"):
        assert status == 501
        assert await rest("GET", path) == (200, value)
    else:
        assert status == 204
        assert await rest("GET", path) == (200, unset)
    told = await rest(method, f"/namespaces/t/none/{policy}", value)
    assert told == (404, "Namespace does not exist")
    assert await rest("GET", f"/namespaces/t/none/{policy}") == (404, "Namespace does not exist")


async def test_sentences(rest: Rest, namespace: str) -> None:
    for path, body, sentence in (
        ("messageTTL", -5, "Invalid value for message TTL, message TTL must >= 0"),
        ("messageTTL", BODY, NO_BODY),
        ("autoTopicCreation", {"topicType": "foo"}, f"{AUTO}Unknown topic type [foo]"),
        (
            "autoTopicCreation",
            {"allowAutoTopicCreation": True},
            f"{AUTO}Unknown topic type [null]",
        ),
        (
            "backlogQuota",
            {"limitTime": 10},
            "Set namespace[t/n] backlog quota failed because the data validation failed. "
            "the attribute policy cannot be null",
        ),
    ):
        assert (await rest("POST", f"{namespace}/{path}", body))[1] == sentence


async def test_quotas(rest: Rest, namespace: str) -> None:
    quota, quotas = f"{namespace}/backlogQuota", f"{namespace}/backlogQuotaMap"
    assert await rest("GET", quotas) == (200, {})
    assert (await rest("POST", f"{namespace}/retention", RETENTION))[0] == 204
    large = {"limitSize": 30_000_000, "policy": "producer_exception"}
    assert (await rest("POST", quota, large))[0] == 412
    size = {"limit": 1_000_000, "policy": "producer_request_hold"}
    assert await rest("POST", quota, size) == (204, None)
    age = {"limitTime": 10, "policy": "consumer_backlog_eviction"}
    by_age = f"{quota}?backlogQuotaType=message_age"
    assert await rest("POST", by_age, age) == (204, None)
    assert await rest("GET", quotas) == (
        200,
        {
            "destination_storage": {
                "limit": 1_000_000,
                "limitSize": 1_000_000,
                "limitTime": 0,
                "policy": "producer_request_hold",
            },
            "message_age": {
                "limit": 0,
                "limitSize": 0,
                "limitTime": 10,
                "policy": "consumer_backlog_eviction",
            },
        },
    )
    assert (await rest("POST", f"{quota}?backlogQuotaType=foo", age))[0] == 404
    assert (await rest("POST", by_age, {**age, "policy": "bad"}))[0] == 400
    assert (await rest("POST", by_age, None))[0] == 400
    small = {"retentionTimeInMinutes": -1, "retentionSizeInMB": 0}
    assert (await rest("POST", f"{namespace}/retention", small))[0] == 400
    for _ in range(2):
        assert await rest("DELETE", by_age) == (204, None)
    assert await rest("DELETE", quota) == (204, None)
    assert await rest("GET", quotas) == (200, {})


async def test_other_policies_are_not_served(rest: Rest, namespace: str) -> None:
    for path in ("persistence", "subscriptionExpirationTime", "dispatchRate", "antiAffinity"):
        assert (await rest("GET", f"{namespace}/{path}"))[0] == 501
        assert (await rest("POST", f"{namespace}/{path}", 1))[0] == 501

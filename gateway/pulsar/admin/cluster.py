"""The cluster, its brokers, and which of them has a topic.

Behavior: there is one cluster, and its brokers are those that listen for HTTP. Health is what
`/health` says, in Pulsar's word. Sources: ClustersBase, BrokersBase, TopicLookupBase.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import PlainTextResponse, Response

from core.errors import Refusal
from core.security.pulsar_operations import (
    OPEN,
    SEE_CLUSTER,
    SEE_TOPIC,
)
from core.version import VERSION
from gateway.pulsar.admin.api import CLUSTER, AdminCall, endpoint
from gateway.pulsar.admin.places import name_of, refused
from gateway.pulsar.session import LISTENER, Services
from gateway.pulsar.topics import broker_of, service_url
from gateway.web.api import Refused
from gateway.web.peers import http_url

_WHOLE_BUNDLE = "0x00000000_0xffffffff"
_NO_CLUSTER = Refused(404, "Cluster does not exist")


@endpoint("GET", "/admin/v2/clusters", OPEN)
async def clusters(_: AdminCall) -> list[str]:
    """The names of clusters: one."""
    return [CLUSTER]


@endpoint("GET", "/admin/v2/clusters/{cluster}", SEE_CLUSTER)
async def cluster(call: AdminCall) -> dict[str, Any] | Refused:
    """A cluster's addresses: this broker's."""
    if call.name("cluster") != CLUSTER:
        return _NO_CLUSTER
    return _addresses(call.services.pulsar)


def _addresses(services: Services) -> dict[str, Any]:
    this = services.cluster.this
    tls = "Tls" if services.is_tls else ""
    broker = service_url(this, services) if this.at(LISTENER) else None
    return {
        f"serviceUrl{tls}": http_url(this, is_tls=services.is_tls),
        f"brokerServiceUrl{tls}": broker,
    }


def _brokers(call: AdminCall) -> list[str]:
    services = call.services.pulsar
    urls = [http_url(each, is_tls=services.is_tls) for each in services.cluster.live]
    return sorted(url.partition("://")[2] for url in urls if url is not None)


@endpoint("GET", "/admin/v2/brokers", SEE_CLUSTER)
async def brokers(call: AdminCall) -> list[str]:
    """The live brokers, as HOST:PORT for HTTP."""
    return _brokers(call)


@endpoint("GET", "/admin/v2/brokers/{cluster}", SEE_CLUSTER)
async def brokers_of_cluster(call: AdminCall) -> list[str] | Refused:
    """The live brokers of a cluster."""
    return _brokers(call) if call.name("cluster") == CLUSTER else _NO_CLUSTER


@endpoint("GET", "/admin/v2/brokers/leaderBroker", SEE_CLUSTER)
async def leader(call: AdminCall) -> dict[str, str] | Refused:
    """The broker that does what one does for all: the one with the lowest id."""
    services = call.services.pulsar
    found = min(services.cluster.live, key=lambda each: each.broker_id)
    url = http_url(found, is_tls=services.is_tls)
    if url is None:
        return Refused(404, f"Broker {found.broker_id} does not listen for HTTP")
    return {"brokerId": url.partition("://")[2], "serviceUrl": url}


@endpoint("GET", "/admin/v2/brokers/health", OPEN)
async def health(call: AdminCall) -> Response | Refused:
    """`ok` where the broker has just renewed its session in the database."""
    if call.services.pulsar.cluster.has_left:
        return Refused(503, "The broker stops")
    await call.services.pulsar.cluster.look_now()
    return PlainTextResponse("ok")


@endpoint("GET", "/admin/v2/brokers/ready", OPEN)
async def ready(call: AdminCall) -> Response | Refused:
    """Whether it is healthy: as `health`."""
    return await health(call)


@endpoint("GET", "/admin/v2/brokers/version", OPEN)
async def version(_: AdminCall) -> Response:
    """What runs here."""
    return PlainTextResponse(f"Penstock {VERSION}")


# --- lookup ---


@endpoint("GET", "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}", SEE_TOPIC)
async def lookup(call: AdminCall) -> dict[str, Any] | Refused:
    """The broker to connect to for a topic, whether or not it is there; its namespace has to be."""
    services = call.services.pulsar
    name, log_name = name_of(call)
    topic = await services.topics.get(log_name)
    broker = await broker_of(name, topic, services)
    if isinstance(broker, Refusal):
        return refused(broker)
    if broker.at(LISTENER) is None:
        return Refused(503, "The broker that has the topic does not listen for Pulsar's clients")
    url, web = service_url(broker, services), http_url(broker, is_tls=services.is_tls) or ""
    plain, tls = ("", url) if services.is_tls else (url, "")
    plain_web, tls_web = ("", web) if services.is_tls else (web, "")
    # The C++ client (and so Python's) crashes without both of its addresses; "Ssl" is an old name.
    return {
        "brokerUrl": plain,
        "brokerUrlTls": tls,
        "brokerUrlSsl": tls,
        "httpUrl": plain_web,
        "httpUrlTls": tls_web,
        "nativeUrl": url,
    }


@endpoint("GET", "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}/bundle", SEE_TOPIC)
async def bundle(call: AdminCall) -> Response:
    """The bundle that a topic is in: namespaces are not cut into bundles here."""
    name_of(call)
    return PlainTextResponse(_WHOLE_BUNDLE)

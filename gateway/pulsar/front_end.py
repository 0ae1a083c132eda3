"""Makes Pulsar's front-end: its handlers, its services out of the runtime, and what it counts.

The only file of this folder that `gateway.app` knows.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from core.types import BatchFormat
from gateway.front_ends import FrontEnd, FrontEndFactory, Surroundings
from gateway.pulsar.api import load_handlers
from gateway.pulsar.connection import PulsarFrontEnd
from gateway.pulsar.conversion import write_stored
from gateway.pulsar.login import Door
from gateway.pulsar.producers import Producers
from gateway.pulsar.session import LISTENER, Services
from gateway.pulsar.topic_lists import TopicLists
from gateway.runtime.rights import rights_of
from gateway.runtime.runtime import Runtime

if TYPE_CHECKING:
    from gateway.web.server import Part

_REGISTRY: Final = load_handlers()  # when the program is loaded: the database starts meanwhile


def make(runtime: Runtime, around: Surroundings) -> PulsarFrontEnd:
    """See FrontEndFactory."""
    services = services_of(runtime, is_tls=around.settings.tls_cert is not None)
    observer = around.metrics.requests({served.type: served.name for served in _REGISTRY.table()})
    door = None
    if runtime.authentication.is_on:
        observe = partial(around.metrics.logins.count, LISTENER)
        door = Door(LISTENER, runtime.authentication, runtime.configs, observe)
    acls, find_rights = runtime.acls, None
    if acls.is_on:
        find_rights = partial(rights_of, acls, around.metrics.refusals.count)
    metrics = around.metrics
    runtime.throttles.observe = lambda *told: metrics.throttled.count(*told)
    made = PulsarFrontEnd(
        _REGISTRY,
        services,
        around.limits,
        around.memory,
        observer,
        door=door,
        rights_of=find_rights,
        throttles=runtime.throttles,
    )
    acls.watch(made.on_rights_changed)
    return made


def services_of(runtime: Runtime, *, is_tls: bool) -> Services:
    """What handlers may ask."""
    cluster = runtime.cluster
    producers = Producers(cluster, runtime.leases, runtime.subscriptions, runtime.partitions)
    runtime.upkeep.on_blocked(producers.close_all)
    return Services(
        topics=runtime.topics,
        partitions=runtime.partitions,
        translator=runtime.translations.into(BatchFormat.PULSAR, write_stored),
        cluster=cluster,
        configs=runtime.configs,
        producers=producers,
        subscriptions=runtime.subscriptions,
        topic_lists=TopicLists(runtime.topics),
        schemas=runtime.schemas,
        namespaces=runtime.namespaces,
        upkeep=runtime.upkeep,
        transactions=runtime.transactions,
        acls=runtime.acls,
        is_tls=is_tls,
        clock=_now_ms,
    )


def rest(front_end: FrontEnd, around: Surroundings) -> Part:
    """What it serves by HTTP; see `gateway.web.front_end.Bring`."""
    from gateway.pulsar.admin.api import NOT_SERVED, PREFIX, AdminServices, load_endpoints
    from gateway.pulsar.admin.rights import refuse
    from gateway.web.introductions import Introductions
    from gateway.web.peers import Peers
    from gateway.web.server import Part

    assert isinstance(front_end, PulsarFrontEnd), "it is asked for its own"
    door = front_end.door
    introductions = None if door is None else Introductions(door.authentication.users)
    services = AdminServices(
        front_end.services,
        Peers(around.settings.tls_cert, introductions),
        around.metrics.refusals.count,
    )
    return Part(load_endpoints(), services, PREFIX, NOT_SERVED, refuse)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


FRONT_END: Final = FrontEndFactory(LISTENER, make)

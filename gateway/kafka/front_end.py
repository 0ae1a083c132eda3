"""Makes Kafka's front-end: its handlers, its services out of the runtime, and what it counts.

The only file of this folder that `gateway.app` knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from core.config.listeners import bearer_settings
from core.security.listeners import ClientAuth
from core.security.principal_mapping import PrincipalMapping
from core.types import BatchFormat
from gateway.config import ListenAddress
from gateway.front_ends import FrontEnd, FrontEndFactory, Surroundings
from gateway.kafka.api import load_handlers
from gateway.kafka.connection import KafkaFrontEnd
from gateway.kafka.context import LISTENER, Services
from gateway.kafka.conversion import write_stored
from gateway.kafka.fetch_sessions import FetchSessions
from gateway.kafka.late_requests import LateRequests
from gateway.kafka.login import Door
from gateway.metrics.transactions import watch_fenced
from gateway.runtime.runtime import Runtime

if TYPE_CHECKING:
    from gateway.runtime.bearer_tokens import BearerTokens

_REGISTRY: Final = load_handlers()  # when the program is loaded: the database starts meanwhile


def make(runtime: Runtime, around: Surroundings) -> KafkaFrontEnd:
    """See FrontEndFactory."""
    first, *_ = around.settings.listen_addresses(LISTENER)
    services = replace(services_of(runtime), listener=first.names[-1])
    metrics = around.metrics
    watch_fenced(metrics, "connection", lambda: services.late_requests.refused)
    runtime.throttles.observe = lambda *told: metrics.throttled.count(*told)
    observer = metrics.requests({served.key: served.name for served in _REGISTRY.table()})
    return KafkaFrontEnd(
        _REGISTRY,
        services,
        around.limits,
        around.memory,
        observer,
        _door(runtime, around, first),
        _names(around, first),
        acls=runtime.acls if runtime.acls.is_on else None,
        on_refused=lambda *told: metrics.refusals.count(*told),
        throttles=runtime.throttles,
    )


def _beside(
    runtime: Runtime, around: Surroundings, first: FrontEnd, address: ListenAddress
) -> KafkaFrontEnd:
    """See FrontEndFactory."""
    assert isinstance(first, KafkaFrontEnd), "it is asked for its own"
    services = replace(first.services, listener=address.names[-1])
    return first.beside(services, _door(runtime, around, address), _names(around, address))


def _door(runtime: Runtime, around: Surroundings, address: ListenAddress) -> Door | None:
    if not address.protocol.is_sasl:
        return None
    name = address.by_name or address.key
    observe = partial(around.metrics.logins.count, name)
    return Door(
        name,
        runtime.users,
        runtime.delegation_tokens,
        runtime.configs,
        observe,
        _bearers(name, runtime.configs.values.static),
    )


def _bearers(listener: str, static: Mapping[str, str]) -> BearerTokens | None:
    settings = bearer_settings(listener, static)
    if settings is None:
        return None
    from gateway.runtime.bearer_tokens import bearer_tokens_of  # it takes a tenth of a second

    return bearer_tokens_of(settings)


def _names(around: Surroundings, address: ListenAddress) -> PrincipalMapping | None:
    """Where who logs in has another name, or certificates are not asked for: None."""
    if address.protocol.is_sasl or address.tls is None:
        return None
    if address.tls.client_auth is ClientAuth.NONE:
        return None
    return around.settings.principal_mapping(address.by_name or address.protocol.value)


def services_of(runtime: Runtime) -> Services:
    """What handlers may ask."""
    return Services(
        topics=runtime.topics,
        partitions=runtime.partitions,
        translator=runtime.translations.into(BatchFormat.KAFKA_V2, write_stored),
        cluster=runtime.cluster,
        configs=runtime.configs,
        producer_ids=runtime.producer_ids,
        producer_clients=runtime.producer_clients,
        groups=runtime.groups,
        transactions=runtime.transactions,
        subscriptions=runtime.subscriptions,
        staging=runtime.staging,
        users=runtime.users,
        acls=runtime.acls,
        quotas=runtime.quotas,
        delegation_tokens=runtime.delegation_tokens,
        throttles=runtime.throttles,
        late_requests=LateRequests(),
        fetch_sessions=FetchSessions(
            runtime.configs.broker_int("max.incremental.fetch.session.cache.slots")
        ),
        clock=_now_ms,
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


FRONT_END: Final = FrontEndFactory(LISTENER, make, _beside)

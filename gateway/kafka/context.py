"""What a handler is given beside its request: who asks, and the runtime services it may ask.

Values and references only; it does not know sockets, frames or SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from core.group.values import ClientIdentity
from core.security.acls import CLUSTER_NAME
from core.security.principal import ANONYMOUS, Principal, java_host
from core.topic.topic import find_partition
from core.transaction.values import TransactionVersion
from gateway.kafka.acl_codes import SUPPORTED_BITS
from gateway.kafka.errors import known_to
from gateway.runtime.throttling import Mutations

if TYPE_CHECKING:
    from core.errors import Error
    from core.security.acls import ResourceType
    from core.security.operations import Requirement
    from core.types import LiveBroker
    from gateway.kafka.api import Api
    from gateway.kafka.fetch_sessions import FetchSessions
    from gateway.kafka.late_requests import LateRequests
    from gateway.kafka.login import Login
    from gateway.kafka.pipelined_requests import PipelinedRequests
    from gateway.kafka.rights import KafkaRights
    from gateway.runtime.acls import Acls
    from gateway.runtime.cluster.membership import Cluster
    from gateway.runtime.delegation_tokens import DelegationTokens
    from gateway.runtime.groups.groups import Groups
    from gateway.runtime.log.partitions import Partitions
    from gateway.runtime.log.translation import Translator
    from gateway.runtime.quotas import Quotas
    from gateway.runtime.staging import Staging
    from gateway.runtime.subscriptions.subscriptions import Subscriptions
    from gateway.runtime.throttling import ClientLimits, Throttles
    from gateway.runtime.topics.configs import Configs
    from gateway.runtime.topics.topics import Topics
    from gateway.runtime.transactions.coordinator import Transactions
    from gateway.runtime.transactions.producer_clients import ProducerClients
    from gateway.runtime.transactions.producer_ids import ProducerIds
    from gateway.runtime.users import Users

# Kafka's ApiVersionsRequest.SOFTWARE_NAME_VERSION_PATTERN (KIP-511).
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


LISTENER: Final = "kafka"
"""The name under which brokers tell each other of the address for Kafka's clients."""


@dataclass(frozen=True, slots=True)
class Node:
    """A broker as clients are told of it (Kafka's Node)."""

    broker_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClientSoftware:
    """What a client says it is, in ApiVersions v3 and later (KIP-511)."""

    name: str
    version: str

    @property
    def is_valid(self) -> bool:
        """Whether Kafka would accept both texts; else ApiVersions answers INVALID_REQUEST."""
        return bool(_SOFTWARE.fullmatch(self.name) and _SOFTWARE.fullmatch(self.version))


def shown_host(peer: str) -> str:
    """The host of a client's address as Kafka shows it: a slash, and Java's way with IPv6."""
    return f"/{java_host(peer)}"


@dataclass(frozen=True, slots=True)
class Services:
    """The runtime, as handlers see it. One a listener.

    clock: milliseconds since the epoch, now. listener: the name of the one that clients came by;
    they are told of brokers' addresses on listeners of this name.
    """

    topics: Topics
    partitions: Partitions
    translator: Translator
    cluster: Cluster
    configs: Configs
    producer_ids: ProducerIds
    producer_clients: ProducerClients
    groups: Groups
    transactions: Transactions
    subscriptions: Subscriptions
    staging: Staging
    users: Users
    acls: Acls
    quotas: Quotas
    delegation_tokens: DelegationTokens
    throttles: Throttles
    fetch_sessions: FetchSessions
    late_requests: LateRequests
    clock: Callable[[], int]
    listener: str = LISTENER


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request's surroundings.

    api, api_version: what is asked.
    client_id: "" where the client sent none, as Kafka's RequestHeader has it.
    client_software: None until the connection has sent a valid ApiVersions v3 or later.
    peer: the client's address, "127.0.0.1:54321".
    principal: who asks; anonymous where the listener asks nobody, and until the login.
    rights: its; None where everybody may do everything.
    login: its connection's; None where the listener asks nobody.
    connection: its connection's number; a later one's is higher.
    behind: what its connection has received after it; None outside of a connection.
    """

    services: Services
    api: Api
    api_version: int
    client_id: str
    peer: str
    client_software: ClientSoftware | None = None
    principal: Principal = ANONYMOUS
    rights: KafkaRights | None = None
    login: Login | None = None
    connection: int = 0
    behind: PipelinedRequests | None = None

    @property
    def transaction_version(self) -> TransactionVersion:
        """Which version of transactions the client speaks, by the version it asks in."""
        since = self.api.v2_since
        if since is None or self.api_version < since:
            return TransactionVersion.V1
        return TransactionVersion.V2

    def may(self, requirement: Requirement, name: str = "") -> bool:
        """Whether the client may do what the API asks a right for. name: of the resource, where it
        is not the cluster. A refusal has a line in the log, unless what is asked is left out."""
        rights = self.rights
        return rights is None or rights.may(requirement, name, self.api.name)

    def authorized_operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """What the client may do with the resource, as bits (KIP-430)."""
        if self.rights is None:
            return SUPPORTED_BITS[kind]
        return self.rights.operations(kind, name)

    @property
    def may_handle_tokens(self) -> bool:
        """Whether the client has shown who it is, and otherwise than by a delegation token; who has
        not, gets and changes none (KafkaApis.allowTokenRequests)."""
        is_known = self.login is not None or self.principal != ANONYMOUS
        return is_known and not self.principal.is_by_token

    def known(self, error: Error) -> Error:
        """The error itself, or what the version it is asked in says instead."""
        return known_to(self.api_version, self.api.known_since, error)

    @property
    def client(self) -> ClientIdentity:
        """Who asks, as groups remember their members."""
        return ClientIdentity(self.client_id, shown_host(self.peer))

    @property
    def topics(self) -> Topics:
        return self.services.topics

    async def resolve(self, places: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The ids of those partitions that exist, by their topic's name and their number.

        Raises StoreUnavailable.
        """
        topics = await self.topics.get_many({name for name, _ in places})
        found = {}
        for name, number in places:
            partition_id = find_partition(topics, name, number)
            if partition_id is not None:
                found[name, number] = partition_id
        return found

    @property
    def partitions(self) -> Partitions:
        return self.services.partitions

    @property
    def translator(self) -> Translator:
        return self.services.translator

    @property
    def cluster(self) -> Cluster:
        return self.services.cluster

    @property
    def brokers(self) -> list[Node]:
        """The live brokers that the client can reach, by id."""
        nodes = (self.node(broker) for broker in self.cluster.live)
        return [node for node in nodes if node is not None]

    def node(self, broker: LiveBroker) -> Node | None:
        """A broker as the client reaches it; None where it has no listener of the same name."""
        endpoint = broker.at(self.services.listener)
        if endpoint is None:
            return None
        return Node(broker.broker_id, endpoint.host, endpoint.port, broker.rack)

    @property
    def configs(self) -> Configs:
        return self.services.configs

    @property
    def producer_ids(self) -> ProducerIds:
        return self.services.producer_ids

    @property
    def producer_clients(self) -> ProducerClients:
        return self.services.producer_clients

    @property
    def groups(self) -> Groups:
        return self.services.groups

    @property
    def transactions(self) -> Transactions:
        return self.services.transactions

    @property
    def staging(self) -> Staging:
        return self.services.staging

    @property
    def users(self) -> Users:
        return self.services.users

    @property
    def acls(self) -> Acls:
        return self.services.acls

    @property
    def quotas(self) -> Quotas:
        return self.services.quotas

    @property
    def delegation_tokens(self) -> DelegationTokens:
        return self.services.delegation_tokens

    @property
    def limits(self) -> ClientLimits | None:
        """What quotas limit the client to; None without any."""
        throttles = self.services.throttles
        if throttles.rules is None:
            return None
        return throttles.limits_of(self.principal.name, self.client_id)

    def mutations(self, strict_since: int) -> Mutations:
        """What the request makes or deletes. strict_since: the version that knows
        THROTTLING_QUOTA_EXCEEDED (KIP-599)."""
        limits = self.limits
        is_strict = self.api_version >= strict_since
        limit = None if limits is None else limits.mutation
        return Mutations(self.services.throttles, limit, is_strict)

    @property
    def fetch_sessions(self) -> FetchSessions:
        return self.services.fetch_sessions

    @property
    def late_requests(self) -> LateRequests:
        return self.services.late_requests

    @property
    def clock(self) -> Callable[[], int]:
        return self.services.clock

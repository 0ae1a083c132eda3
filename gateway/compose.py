"""Wires the rooms: makes the runtime that all front-ends share from a database and settings.

Only this file knows which class of `storage` implements which port; tests wire with it too.
Opens no socket, decides nothing, and knows no protocol except the bytes of Kafka's markers, and who
reads which stored format: a log keeps what it has, whether or not its front-end listens now.
Subscriptions are dispatched as Pulsar's entries, by brokers that listen for Pulsar; a topic's
namespace is what Pulsar's names say.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from core.config.values import broker_int
from core.inbox.partitioner import Spreader
from core.namespace.rules import schema_policy
from core.security.acls import AclBinding
from core.security.permissions import admin_bindings
from core.transaction.values import OpenTransaction
from core.types import BatchFormat, Endpoint
from core.version import VERSION
from gateway.kafka.conversion import read_stored as read_kafka
from gateway.kafka.inbox_batches import inbox_batch
from gateway.kafka.markers import control_batch
from gateway.kafka.single_records import single_batch
from gateway.pulsar.conversion import read_stored as read_pulsar
from gateway.pulsar.conversion import write_stored as write_pulsar
from gateway.pulsar.dispatching import entry_of, pieces_of
from gateway.pulsar.names import name_in_acls, namespace_of
from gateway.pulsar.session import LISTENER as PULSAR_LISTENER
from gateway.runtime.acls import Acls
from gateway.runtime.authentication import Authentication
from gateway.runtime.cluster.leases import ShardLeases
from gateway.runtime.cluster.membership import Cluster
from gateway.runtime.cluster.news import Announcer
from gateway.runtime.cluster.snapshots import SnapshotWatch
from gateway.runtime.delegation_tokens import DelegationTokens
from gateway.runtime.flush.flusher import Flusher
from gateway.runtime.groups.groups import Groups
from gateway.runtime.inbox.batches import BatchMaker
from gateway.runtime.inbox.inbox import Inbox
from gateway.runtime.log.partitions import Partitions
from gateway.runtime.log.retention import Janitor
from gateway.runtime.log.single_appends import SingleAppends
from gateway.runtime.log.translation import Translations
from gateway.runtime.namespaces import Namespaces
from gateway.runtime.quotas import Quotas
from gateway.runtime.runtime import Runtime
from gateway.runtime.schemas import Schemas
from gateway.runtime.sql_doors import SqlDoors
from gateway.runtime.staging import Staging
from gateway.runtime.subscriptions.live_consumers import LiveConsumers
from gateway.runtime.subscriptions.subscriptions import Subscriptions
from gateway.runtime.subscriptions.upkeep import Upkeep
from gateway.runtime.throttling import Throttles
from gateway.runtime.topics.configs import Configs
from gateway.runtime.topics.topics import Topics
from gateway.runtime.transactions.coordinator import Transactions
from gateway.runtime.transactions.producer_clients import ProducerClients
from gateway.runtime.transactions.producer_ids import ProducerIds
from gateway.runtime.users import Users
from storage.acls import AclStore
from storage.brokers import ClusterStore
from storage.configs import ConfigStore
from storage.connection.pool import Database
from storage.console import console_reads
from storage.delegation_tokens import DelegationTokenStore
from storage.flush.segments import Segments
from storage.groups.store import GroupStore
from storage.inbox import InboxStore
from storage.leases import LeaseStore
from storage.log.retention import PostgresRetentionStore
from storage.log.store import PostgresLogStore
from storage.namespaces import NamespaceStore
from storage.notifications import PostgresChangeFeed
from storage.producer_clients import ProducerClientStore
from storage.quotas import QuotaStore
from storage.schemas import SchemaStore
from storage.snapshots import PostgresSnapshots
from storage.sql_doors.settings import SqlDoorStore
from storage.staging import PostgresStagingStore
from storage.subscriptions.backlogs import BacklogStore
from storage.subscriptions.store import SubscriptionStore
from storage.topics import TopicStore
from storage.transactions import PostgresTransactionStore
from storage.users import UserStore


def cluster_of(
    database: Database,
    static: Mapping[str, str],
    *,
    endpoints: Sequence[Endpoint],
    broker_id: int | None = None,
    rack: str | None = None,
) -> Cluster:
    """This broker among the others, before it joins them.

    static: the broker's own settings. endpoints: how clients reach it.
    """
    return Cluster(
        ClusterStore(database),
        endpoints=endpoints,
        version=VERSION,
        session_timeout_s=broker_int("penstock.broker.session.timeout.ms", static) / 1000,
        broker_id=broker_id,
        rack=rack,
    )


def configs_of(database: Database, static: Mapping[str, str], broker_id: int = -1) -> Configs:
    """Settings; until they are loaded, only the broker's own (`static`)."""
    return Configs(ConfigStore(database), TopicStore(database), broker_id, static)


async def compose(database: Database, cluster: Cluster, static: Mapping[str, str]) -> Runtime:
    """The runtime of a broker that has joined its cluster. Raises StoreUnavailable."""
    configs = configs_of(database, static, cluster.broker_id)
    await configs.load()
    runtime = wire(database, cluster, configs)
    await runtime.acls.load()
    await runtime.quotas.refresh()
    await runtime.sql_doors.tell()
    return runtime


def wire(database: Database, cluster: Cluster, configs: Configs) -> Runtime:
    """The same, with loaded settings; does not use the database yet."""
    namespaces = Namespaces(NamespaceStore(database), TopicStore(database), namespace_of)
    topics = Topics(TopicStore(database), configs, lambda: cluster.live_ids, namespaces)
    feed = PostgresChangeFeed(database)
    announcer = Announcer(feed, cluster)
    segments = Segments(database)
    log_store = PostgresLogStore(database, segments)
    max_flush_bytes = configs.broker_int("penstock.flush.max.bytes")
    flusher = Flusher(log_store, max_flush_bytes=max_flush_bytes, make_marker=control_batch)
    partitions = Partitions(
        log_store,
        flusher,
        tail_cache_bytes=configs.broker_int("penstock.tail.cache.bytes"),
        announce=announcer.announce,
    )
    producer_ids = ProducerIds(log_store, lambda: cluster.live_ids)
    transactions = Transactions(
        PostgresTransactionStore(database),
        log_store,
        flusher,
        producer_ids,
        max_timeout_ms=configs.reader("transaction.max.timeout.ms"),
        expiration_ms=configs.reader("transactional.id.expiration.ms"),
        expiration_interval_ms=configs.reader(
            "transaction.remove.expired.transaction.cleanup.interval.ms"
        ),
        is_alone=lambda: cluster.is_alone,
    )
    leases = ShardLeases(
        LeaseStore(database), cluster, lambda broker: broker.at(PULSAR_LISTENER) is not None
    )
    staging = Staging(
        PostgresStagingStore(database, segments),
        flusher,
        max_flush_bytes=max_flush_bytes,
        max_bytes=configs.reader("penstock.staged.max.bytes"),
        expiration_ms=configs.reader("penstock.staged.expiration.ms"),
    )
    inbox = Inbox(
        InboxStore(database),
        flusher,
        staging,
        topics,
        BatchMaker(inbox_batch, Spreader(secrets.randbelow(2**31))),
    )
    cluster.on_heartbeat(inbox.on_heartbeat)
    translations = Translations({BatchFormat.KAFKA_V2: read_kafka, BatchFormat.PULSAR: read_pulsar})
    subscription_store = SubscriptionStore(database)
    subscriptions = Subscriptions(
        subscription_store,
        leases,
        partitions,
        translations.into(BatchFormat.PULSAR, write_pulsar),
        entry_of,
        pieces_of,
        transactions,
    )

    quotas = Quotas(QuotaStore(database))

    def on_acks_ended(
        ended: OpenTransaction, is_commit: bool, subscription_ids: Sequence[int]
    ) -> None:
        subscriptions.pending_acks.on_ended(ended, is_commit, subscription_ids)
        announcer.announce_ended(subscription_ids)

    transactions.on_acks_ended(on_acks_ended)
    users = Users(UserStore(database), cluster.session_timeout_s)

    async def find_admins() -> list[AclBinding]:
        admins = await namespaces.admins()
        return [each for tenant, roles in admins.items() for each in admin_bindings(tenant, roles)]

    acls = Acls(AclStore(database), configs, name_in_acls, find_admins)
    runtime = Runtime(
        cluster=cluster,
        configs=configs,
        topics=topics,
        flusher=flusher,
        partitions=partitions,
        single_appends=SingleAppends(partitions, single_batch),
        translations=translations,
        producer_ids=producer_ids,
        producer_clients=ProducerClients(
            ProducerClientStore(database),
            configs.reader("transactional.id.expiration.ms"),
            is_on_duty=lambda: cluster.is_lowest,
        ),
        transactions=transactions,
        leases=leases,
        groups=Groups(
            GroupStore(database),
            leases,
            topics,
            configs,
            transactions.unstable_partitions,
            acls,
        ),
        subscriptions=subscriptions,
        live_consumers=LiveConsumers(subscription_store, cluster, lambda: subscriptions.owned),
        schemas=Schemas(
            SchemaStore(database), lambda topic: schema_policy(namespaces.policies_of(topic))
        ),
        namespaces=namespaces,
        upkeep=Upkeep(BacklogStore(database), subscriptions, topics, namespaces, configs, cluster),
        staging=staging,
        inbox=inbox,
        users=users,
        quotas=quotas,
        throttles=Throttles(quotas, configs),
        acls=acls,
        delegation_tokens=DelegationTokens(
            DelegationTokenStore(database),
            configs,
            users,
            is_on_duty=lambda: cluster.is_lowest,
        ),
        authentication=Authentication(users, configs),
        sql_doors=SqlDoors(SqlDoorStore(database), configs),
        feed=feed,
        announcer=announcer,
        snapshots=SnapshotWatch(PostgresSnapshots(database).oldest),
        janitor=Janitor(
            PostgresRetentionStore(database, segments),
            topics,
            configs,
            partitions,
            is_on_duty=lambda: cluster.is_lowest,
            retention_of=lambda topic: namespaces.policies_of(topic).retention,
        ),
        console=console_reads(database),
    )
    acls.watch(runtime.groups.on_rights_changed)
    database.on_identity_change(runtime.on_other_history)
    return runtime

"""Sends a broker every version of every API that the gateway serves; run behind record.py.

First kafka-python as it speaks to brokers of each age (its `api_version` setting), then, made by
its encoder, one request for each version, so that none is missing. Knows what a sensible request
of each API looks like; must not know what the broker answers. `tests/captures/README.md` tells
how to run it.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.metadata import version as installed
from typing import Any

from confluent_kafka import KafkaException
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import AbortTransactionSpec, ConfigResource
from kafka.errors import KafkaError
from kafka.protocol.admin.topics import ElectionType
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS
from kafka.record import MemoryRecordsBuilder
from kafka.structs import OffsetAndMetadata, TopicPartition

from gateway.kafka import codec
from gateway.kafka.api import load_handlers
from tests.captures import group_requests, record, transaction_requests

ENCODER = f"encoder of kafka-python {installed('kafka-python')}"
LOGIN_KEYS = {17, 29, 30, 31, 36, 38, 39, 40, 41, 48, 49, 50, 51}
"""`logins.py` has a Kafka of its own for them."""
OLDEST = (1, 0)  # before it, kafka-python speaks versions that Kafka 4 no longer does


def speak_as_of(broker: tuple[int, ...], bootstrap: str) -> None:
    """Use the clients as they would speak to a broker of version `broker`."""
    topic = f"capture-{'-'.join(map(str, broker))}-{uuid.uuid4().hex[:6]}"
    common: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "api_version": broker,
        "client_id": f"kafka-python {installed('kafka-python')}",
    }
    partition = TopicPartition(topic, 0)
    with closing(KafkaAdminClient(**common)) as admin:
        new = {"num_partitions": 1, "replication_factor": 1, "configs": {"retention.ms": "9000000"}}
        admin.create_topics({topic: new})
        time.sleep(0.1)
        idempotent = broker >= (0, 11)
        with closing(
            KafkaProducer(**common, acks="all", enable_idempotence=idempotent)
        ) as producer:
            headers = [("trace", b"\x01\x02")]
            producer.send(topic, b"value", b"key", headers=headers, partition=0).get(20)
            producer.send(topic, b"another", b"key", partition=0).get(20)
            with suppress(KafkaError):
                admin.describe_producers([partition])
        with closing(KafkaConsumer(**common, auto_offset_reset="earliest")) as consumer:
            consumer.assign([partition])
            consumer.poll(timeout_ms=2000)
            consumer.offsets_for_times({partition: 0})
            consumer.end_offsets([partition])
        be_a_member(topic, common, admin)
        if idempotent:
            be_transactional(topic, common, admin)
        admin.describe_configs([ConfigResource("TOPIC", topic)])
        changed = ConfigResource("TOPIC", topic, {"retention.ms": "8000000"})
        admin.alter_configs([changed], raise_on_unknown=False)
        admin.create_partitions({topic: 2})
        admin.delete_records({partition: 1})
        with suppress(KeyError):  # this client expects the newest answer's fields
            admin.describe_cluster()
        admin.describe_log_dirs({topic: [0]})
        with suppress(KafkaError):
            admin.elect_leaders(ElectionType.PREFERRED, {topic: [0]})
        with suppress(KafkaError):
            admin.list_partition_reassignments({topic: [0]})
        with suppress(KafkaError):
            admin.alter_partition_reassignments({partition: None})
        with suppress(KafkaError):
            admin.describe_metadata_quorum()
        with suppress(KafkaError):
            admin.list_config_resources()
        with suppress(KafkaError):
            admin.describe_topic_partitions([topic])
            admin.alter_configs([changed], raise_on_unknown=False, incremental=False)
        admin.delete_topics([topic])


def be_a_member(topic: str, common: dict[str, Any], admin: KafkaAdminClient) -> None:
    """Join a group, commit, be described, leave; then remove what the group left behind."""
    often = {"heartbeat_interval_ms": 200, "auto_offset_reset": "earliest"}
    with closing(KafkaConsumer(topic, **common, **often, group_id=topic)) as member:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            member.poll(timeout_ms=100)
        partition = TopicPartition(topic, 0)
        member.commit()
        member.committed(partition)
        with suppress(KafkaError):
            admin.describe_groups([topic], include_authorized_operations=True)
        with suppress(KafkaError):
            admin.list_groups()
    with suppress(KafkaError):
        admin.list_group_offsets({topic: None})
    with suppress(KafkaError):
        admin.delete_group_offsets(topic, [partition])
    with suppress(KafkaError):
        admin.delete_groups([topic])


def be_transactional(topic: str, common: dict[str, Any], admin: KafkaAdminClient) -> None:
    """Commit a transaction with offsets, abort one, and have an open one looked at and ended."""
    name, partition = f"{topic}-transactions", TopicPartition(topic, 0)
    offsets = {partition: OffsetAndMetadata(1, "noted", -1)}
    with closing(KafkaProducer(**common, transactional_id=name)) as producer:
        producer.init_transactions()
        for end in (producer.commit_transaction, producer.abort_transaction):
            producer.begin_transaction()
            producer.send(topic, b"value", b"key", partition=0).get(20)
            producer.send_offsets_to_transaction(offsets, f"{name}-group")
            end()
        producer.begin_transaction()
        producer.send(topic, b"value", b"key", partition=0).get(20)
        with suppress(KafkaError):
            admin.list_transactions()
        with suppress(KafkaError):
            admin.describe_transactions([name])
        with suppress(KafkaError):
            active = admin.describe_producers([partition])[partition].active_producers
            [state] = [
                each for each in active if (each.current_transaction_start_offset or -1) >= 0
            ]
            admin.abort_transaction(
                AbortTransactionSpec(partition, state.producer_id, state.producer_epoch)
            )
        with suppress(KafkaError):
            producer.abort_transaction()
    with suppress(KafkaError):
        admin.update_features({"transaction.version": ("UPGRADE", 2)})


def batch() -> bytes:
    """A record batch of two records, as kafka-python's producer makes it."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1000)
    for i in range(2):
        builder.append(timestamp=1_700_000_000_000 + i, key=b"k", value=b"v%d" % i, headers=[])
    builder.close()
    return bytes(builder.buffer())


def request(name: str, topic: str, topic_id: uuid.UUID, version: int) -> Any:
    """A sensible request of API `name` in `version`; it may be sent more than once."""
    fresh = f"capture-{uuid.uuid4().hex[:12]}"
    match name:
        case "Produce":
            Topic = codec.ProduceRequest.TopicProduceData
            data = Topic.PartitionProduceData(index=0, records=batch())
            return codec.ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout_ms=5000,
                topic_data=[Topic(name=topic, topic_id=topic_id, partition_data=[data])],
            )
        case "Fetch":
            Topic = codec.FetchRequest.FetchTopic
            part = Topic.FetchPartition(
                partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1000
            )
            return codec.FetchRequest(
                max_wait_ms=100,
                min_bytes=1,
                max_bytes=1000,
                topics=[Topic(topic=topic, topic_id=topic_id, partitions=[part])],
            )
        case "FindCoordinator":
            return codec.FindCoordinatorRequest(key=topic, key_type=0, coordinator_keys=[topic])
        case "ListOffsets":
            Topic = codec.ListOffsetsRequest.ListOffsetsTopic
            parts = [Topic.ListOffsetsPartition(partition_index=0, timestamp=-1)]
            return codec.ListOffsetsRequest(
                replica_id=-1, timeout_ms=5000, topics=[Topic(name=topic, partitions=parts)]
            )
        case "Metadata":
            Topic = codec.MetadataRequest.MetadataRequestTopic
            return codec.MetadataRequest(
                topics=[Topic(name=topic)], allow_auto_topic_creation=False
            )
        case "ApiVersions":
            return codec.ApiVersionsRequest(
                client_software_name="encoder", client_software_version=installed("kafka-python")
            )
        case "CreateTopics":
            Topic = codec.CreateTopicsRequest.CreatableTopic
            configs = [Topic.CreatableTopicConfig(name="retention.ms", value="9000000")]
            new = Topic(name=fresh, num_partitions=1, replication_factor=1, configs=configs)
            return codec.CreateTopicsRequest(topics=[new], timeout_ms=5000, validate_only=True)
        case "DeleteTopics":
            Topic = codec.DeleteTopicsRequest.DeleteTopicState
            return codec.DeleteTopicsRequest(
                topics=[Topic(name=fresh)], topic_names=[fresh], timeout_ms=5000
            )
        case "DeleteRecords":
            Topic = codec.DeleteRecordsRequest.DeleteRecordsTopic
            parts = [Topic.DeleteRecordsPartition(partition_index=0, offset=0)]
            return codec.DeleteRecordsRequest(
                topics=[Topic(name=topic, partitions=parts)], timeout_ms=5000
            )
        case "OffsetForLeaderEpoch":
            Topic = codec.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            parts = [Topic.OffsetForLeaderPartition(partition=0, leader_epoch=0)]
            return codec.OffsetForLeaderEpochRequest(
                replica_id=-1, topics=[Topic(topic=topic, partitions=parts)]
            )
        case "DescribeConfigs":
            Resource = codec.DescribeConfigsRequest.DescribeConfigsResource
            asked = Resource(
                resource_type=2,
                resource_name=topic,
                configuration_keys=["retention.ms", "cleanup.policy"],
            )
            return codec.DescribeConfigsRequest(
                resources=[asked], include_synonyms=True, include_documentation=version >= 3
            )
        case "AlterConfigs":
            Resource = codec.AlterConfigsRequest.AlterConfigsResource
            configs = [Resource.AlterableConfig(name="retention.ms", value="9000000")]
            changed = Resource(resource_type=2, resource_name=topic, configs=configs)
            return codec.AlterConfigsRequest(resources=[changed], validate_only=True)
        case "IncrementalAlterConfigs":
            Resource = codec.IncrementalAlterConfigsRequest.AlterConfigsResource
            configs = [
                Resource.AlterableConfig(name="retention.ms", config_operation=0, value="9000000"),
                Resource.AlterableConfig(name="segment.ms", config_operation=1, value=None),
            ]
            changed = Resource(resource_type=2, resource_name=topic, configs=configs)
            return codec.IncrementalAlterConfigsRequest(resources=[changed], validate_only=True)
        case "ElectLeaders":
            Topic = codec.ElectLeadersRequest.TopicPartitions
            parts = [Topic(topic=topic, partitions=[0, 7])]
            return codec.ElectLeadersRequest(
                election_type=0, topic_partitions=parts, timeout_ms=5000
            )
        case "AlterPartitionReassignments":
            Topic = codec.AlterPartitionReassignmentsRequest.ReassignableTopic
            parts = [
                Topic.ReassignablePartition(partition_index=0, replicas=None),
                Topic.ReassignablePartition(partition_index=1, replicas=[1000]),
            ]
            return codec.AlterPartitionReassignmentsRequest(
                timeout_ms=5000, topics=[Topic(name=topic, partitions=parts)]
            )
        case "ListPartitionReassignments":
            Topic = codec.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
            return codec.ListPartitionReassignmentsRequest(
                timeout_ms=5000, topics=[Topic(name=topic, partition_indexes=[0])]
            )
        case "DescribeQuorum":
            Topic = codec.DescribeQuorumRequest.TopicData
            parts = [Topic.PartitionData(partition_index=0)]
            return codec.DescribeQuorumRequest(
                topics=[Topic(topic_name="__cluster_metadata", partitions=parts)]
            )
        case "ListConfigResources":
            return codec.ListConfigResourcesRequest(resource_types=[2, 4])
        case "DescribeLogDirs":
            Topic = codec.DescribeLogDirsRequest.DescribableLogDirTopic
            return codec.DescribeLogDirsRequest(topics=[Topic(topic=topic, partitions=[0])])
        case "CreatePartitions":
            Topic = codec.CreatePartitionsRequest.CreatePartitionsTopic
            grown = Topic(name=topic, count=3, assignments=None)
            return codec.CreatePartitionsRequest(
                topics=[grown], timeout_ms=5000, validate_only=True
            )
        case "DescribeCluster":
            return codec.DescribeClusterRequest(endpoint_type=1)
        case "UpdateFeatures":
            Feature = codec.UpdateFeaturesRequest.FeatureUpdateKey
            same = Feature(feature="transaction.version", max_version_level=2)
            return codec.UpdateFeaturesRequest(timeout_ms=5000, feature_updates=[same])
        case "DescribeTopicPartitions":
            Topic = codec.DescribeTopicPartitionsRequest.TopicRequest
            return codec.DescribeTopicPartitionsRequest(
                topics=[Topic(name=topic)], response_partition_limit=100
            )
    raise ValueError(f"no request written for {name}")


def framed(message: Any, version: int, correlation_id: int) -> bytes:
    """The request with its header and without its size, as kafka-python's encoder makes it."""
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id, client_id=ENCODER)
    return bytes(message.encode(header=True))


def ask(connection: socket.socket, frame: bytes) -> bytes:
    """Send a frame and read the answer's. Raises ConnectionError if the broker hangs up."""
    connection.sendall(len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(received(connection, 4), "big")
    return received(connection, size)


def received(connection: socket.socket, size: int) -> bytes:
    found = connection.recv(size, socket.MSG_WAITALL)
    if len(found) < size:
        raise ConnectionError("the broker closed the connection")
    return found


def made_answer(name: str, key: int, version: int, older: bytes) -> bytes:
    """An answer for a version the broker lacks: that of the version before, encoded again."""
    response = record.response_class(key)
    body = record.body_of_response(key, version - 1)
    message = response.decode(older[body:], version=version - 1)
    message._header = None  # its decoder leaves the attribute out, its encoder looks at it
    message.API_VERSION = version
    message.with_header(correlation_id=int.from_bytes(older[:4], "big"))
    return bytes(message.encode(header=True))


def send_every_version(bootstrap: str, topic: str, topic_id: uuid.UUID) -> Iterator[str]:
    """One request of each version served; yields a line about each that the broker lacks."""
    answer = b""

    def ask_one(message: Any, version: int) -> Any:
        with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
            found = ask(connection, framed(message, version, version))
        response = record.response_class(message.API_KEY)
        return response.decode(
            found[record.body_of_response(message.API_KEY, version) :], version=version
        )

    for api in load_handlers().table():
        if api.key in LOGIN_KEYS:
            continue
        for version in api.versions:
            fresh = f"capture-{uuid.uuid4().hex[:12]}"
            if api.name in group_requests.APIS:
                group = group_requests.Subject(topic, topic_id, fresh)
                message = group_requests.request(api.name, group, version, ask_one)
            elif api.name in transaction_requests.APIS:
                subject = transaction_requests.Subject(topic, topic_id, fresh)
                message = transaction_requests.request(api.name, subject, version, ask_one)
            else:
                message = request(api.name, topic, topic_id, version)
            frame = framed(message, version, version)
            try:
                with socket.create_connection(record.address(bootstrap), timeout=20) as connection:
                    answer = ask(connection, frame)
            except ConnectionError:
                answer = made_answer(api.name, api.key, version, answer)
                made = record.Exchange(api.key, version, ENCODER, frame, answer)
                record.store(made, ENCODER, replace=False)
                yield f"{api.name} v{version}: not known to the broker, answer made\n"


def main() -> int:
    bootstrap = os.environ["PENSTOCK_TEST_BOOTSTRAP"]
    for broker in sorted(BROKER_API_VERSIONS):
        if broker >= OLDEST:
            try:
                speak_as_of(broker, bootstrap)
            except (KafkaError, KafkaException, ValueError, NotImplementedError) as refused:
                sys.stdout.write(f"as of {broker}: {type(refused).__name__}: {refused}\n")
    topic = f"capture-{uuid.uuid4().hex[:8]}"
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
        admin.create_topics({topic: {"num_partitions": 2}}, wait_for_metadata=True)
        topic_id = uuid.UUID(str(admin.describe_topics([topic])[0]["topic_id"]))
        sys.stdout.writelines(send_every_version(bootstrap, topic, topic_id))
        admin.delete_topics([topic])
    return 0


if __name__ == "__main__":
    sys.exit(main())

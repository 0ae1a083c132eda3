"""A consumer's subscription as its client sends it, by kafka-python's encoder."""

from __future__ import annotations

from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription

from core.group.consumer.protocol import HIGHEST_VERSION, Subscription


def encode_subscription(subscription: Subscription) -> bytes:
    """Its bytes, in its version (at most the newest known)."""
    message = ConsumerProtocolSubscription(
        topics=list(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=list(partitions))
            for topic, partitions in subscription.owned_partitions.items()
        ],
        generation_id=subscription.generation_id,
        rack_id=subscription.rack_id,
    )
    return bytes(message.encode(version=min(subscription.version, HIGHEST_VERSION)))

"""A group of Kafka's classic protocol (JoinGroup, SyncGroup). Knows nothing of KIP-848."""

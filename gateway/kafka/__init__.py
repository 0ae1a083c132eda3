"""Kafka's wire protocol: frames, messages, one handler file per API. Knows no SQL and decides nothing."""

"""Kafka's wire protocol: frames, messages, one handler per API. Knows no SQL, decides nothing."""

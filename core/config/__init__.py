"""Kafka's properties: what each is, which are in effect, how they change. Reads no file."""

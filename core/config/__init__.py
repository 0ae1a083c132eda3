"""Kafka's properties: their definitions, effective values and changes. Reads no file."""

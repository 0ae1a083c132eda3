"""Transactions: Kafka's coordinator as pure code. Knows no clock, wire or store."""

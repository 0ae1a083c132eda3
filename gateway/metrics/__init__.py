"""Metrics: the registry and its names, and what groups, transactions and staging are in numbers."""

"""Subscriptions of this broker's partitions: loaded, dispatched, written. Knows no protocol."""

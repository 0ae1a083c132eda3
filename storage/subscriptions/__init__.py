"""Subscriptions and their cursors as rows: reading, making, deleting."""

"""Alembic migrations; CI checks that they build exactly `storage.schema`."""

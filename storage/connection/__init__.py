"""Connections to PostgreSQL: pool, sessions, pipeline, arrays as bytes. Knows no table."""

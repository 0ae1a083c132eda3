"""The embedded PostgreSQL: starting, stopping, memory."""

"""Pulsar's REST: one file a resource, as `pulsar-admin` calls it. Knows no SQL and no rule."""

"""Tenants and namespaces, which topics of Pulsar's clients are in, and the policies they have."""

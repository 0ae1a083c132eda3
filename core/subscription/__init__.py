"""Subscriptions: which offsets are acknowledged, and which consumer gets which stored batch.

Speaks of offsets only and knows neither protocol's messages: Pulsar's subscriptions use it, Kafka's
share groups (KIP-932) are to be the second user.
"""

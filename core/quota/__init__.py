"""Client quotas: how much of the broker a client may use; rules and values, without clocks."""

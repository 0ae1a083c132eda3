"""Groups that this broker coordinates: memory, waiting requests, writes. Rules: core.group."""

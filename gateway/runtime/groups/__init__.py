"""Groups that this broker coordinates: in memory, waiting, written. Rules are in core.group."""

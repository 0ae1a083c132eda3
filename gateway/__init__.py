"""Everything that speaks to a client, and the process that runs it."""

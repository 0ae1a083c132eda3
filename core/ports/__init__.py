"""What the runtime asks of storage, as typing.Protocols. No SQL, and no unused methods."""

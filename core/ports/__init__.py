"""What the runtime asks of storage, as typing.Protocols. No SQL; nothing that nobody calls."""

"""Pulsar's wire protocol: frames, commands, entries. Knows no SQL, decides nothing."""

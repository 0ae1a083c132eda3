"""Partitions as this broker serves them: append, read, wait. Decides nothing. Knows no wire."""

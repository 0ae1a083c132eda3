"""Partitions as this broker serves them: append, read, wait. Decides nothing; knows no wire."""

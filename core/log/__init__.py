"""The log of one partition: offsets, producers, duplicates. Pure."""

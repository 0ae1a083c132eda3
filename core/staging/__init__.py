"""Staged batches: payload that is in the store before it has an offset, and its publication."""

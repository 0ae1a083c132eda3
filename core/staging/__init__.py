"""Staged batches: payload that lies in the store before it has an offset, and its publication."""

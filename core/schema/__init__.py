"""Schemas of topics: what kinds there are, whether one is well formed, which may follow which."""

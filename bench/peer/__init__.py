"""Peers the benchmark can start by itself."""

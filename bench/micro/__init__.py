"""Micro benchmarks: bytes in, no socket, no database: what each step of a request costs.

python -m bench.micro [--json FILE] [NAME…]
"""

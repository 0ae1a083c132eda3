"""Spark on brokers: `python -m bench.spark`, beside the other benchmarks since it needs PySpark."""

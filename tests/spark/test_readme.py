"""The Spark block of README.md runs as it stands, but for the broker's address."""

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from tests.conftest import Gateway

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_block_of_the_readme_runs(
    spark: SparkSession, gateway: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = Producer({"bootstrap.servers": gateway.bootstrap})
    producer.produce("demo", b"hello")
    assert producer.flush(30) == 0
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (block,) = [each for each in blocks if "spark.read" in each]
    exec(block.replace("127.0.0.1:9092", gateway.bootstrap), {})  # the session's Spark has the jars
    assert "hello" in capsys.readouterr().out

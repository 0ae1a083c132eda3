"""README's blocks for clients run as they stand, but for the broker's address."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.banner import banner
from tests.compat.pulsar.conftest import Both, both
from tests.conftest import Gateway

__all__ = ["both"]

README = (Path(__file__).parents[2] / "README.md").read_text()
# The block with a test in it is tried in tests/penstock/testing.
BLOCKS = [
    block
    for block in re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    if "\ndef test_" not in block
]
CLIENTS = ("from confluent_kafka", "from aiokafka", "from kafka import")


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("client", CLIENTS)
def test_a_clients_block_runs_as_it_stands(gateway: Gateway, client: str) -> None:
    (block,) = [each for each in BLOCKS if client in each]
    create = ("topics", "create", "demo", "--if-not-exists")
    run("-m", "penstock", *create, "--bootstrap-server", gateway.bootstrap)
    if "Producer" not in block:
        send = f"import kafka; p = kafka.KafkaProducer(bootstrap_servers='{gateway.bootstrap}'); "
        run("-c", send + "p.send('demo', b'hello').get(10)")
    assert "hello" in run("-c", block.replace("127.0.0.1:9092", gateway.bootstrap))


def test_pulsars_block_runs_as_it_stands(both: Both) -> None:
    (block,) = [each for each in BLOCKS if "import pulsar" in each]
    create = ("topics", "create", "demo", "--if-not-exists")
    run("-m", "penstock", *create, "--bootstrap-server", both.gateway.bootstrap)
    assert "hello" in run("-c", block.replace("pulsar://127.0.0.1:6650", both.service_url))


def test_each_clients_block_says_what_to_install() -> None:
    for block in BLOCKS:
        before = README[: README.index(block)].rstrip("`python\n").rpartition("\n\n")[2]
        assert "pip install" in before, block


def test_the_first_line_to_try_does_not_fail_the_second_time(gateway: Gateway) -> None:
    text = banner(gateway.bootstrap, "psql URL", database="./data", version="1")
    (line,) = [each for each in text.splitlines() if "topics create" in each]
    arguments = line.partition("topics create ")[2].split()
    assert "Created" in run("-m", "penstock", "topics", "create", *["try", *arguments[1:]])
    assert "Exists" in run("-m", "penstock", "topics", "create", *["try", *arguments[1:]])
    shown = line.partition("topics create")[2].replace(gateway.bootstrap, "127.0.0.1:9092")
    assert f"topics create{shown}\n" in README

"""The findings in compat/ are about the versions that are tested; this notices when they part."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from compat.java import tools

COMPAT = Path(tools.__file__).parents[1]


@pytest.mark.parametrize(
    ("folder", "package"),
    [
        ("librdkafka", "confluent-kafka"),
        ("aiokafka", "aiokafka"),
        ("kafka-python", "kafka-python"),
        ("spark", "pyspark"),
        ("pulsar/python", "pulsar-client"),
    ],
)
def test_installed_client_is_the_one_the_findings_are_about(folder: str, package: str) -> None:
    assert version(package) == (COMPAT / folder / "VERSION").read_text().strip()


def test_java_tools_are_those_the_findings_are_about() -> None:
    found = re.search(r"<kafka\.version>(.+)</kafka\.version>", tools.POM.read_text())
    assert found is not None
    assert found[1] == (COMPAT / "java" / "VERSION").read_text().strip()


def test_pulsars_java_and_go_clients_are_those_the_findings_are_about() -> None:
    folder = COMPAT / "pulsar"
    java = re.search(
        r"<pulsar\.version>(.+)</pulsar\.version>", (folder / "java" / "pom.xml").read_text()
    )
    go = re.search(r"pulsar-client-go v(\S+)", (folder / "go" / "go.mod").read_text())
    assert java is not None
    assert go is not None
    assert java[1] == (folder / "java" / "VERSION").read_text().strip()
    assert go[1] == (folder / "go" / "VERSION").read_text().strip()

"""The generated pages are current, and what `docs/generate.py` knows by itself is true."""

import re
from functools import cache
from pathlib import Path

import pytest
from kafka.protocol.api_key import ApiKey

from core.config.definitions import BROKER_CONFIGS, TOPIC_CONFIGS
from core.config.inert import REASONS
from core.config.values import TopicConfig
from docs import generate
from gateway.kafka.api import load_handlers
from gateway.pulsar.admin.api import load_endpoints
from gateway.pulsar.api import load_handlers as load_commands
from gateway.pulsar.commands import CommandType

ROOT = Path(__file__).parents[2]

# How the code says that it asks for a topic's property, where it is not by the field's name.
SPELT = {"cleanup.policy": r"is_deleted|is_compacted"}
# The field of a topic's that has it, where that is called otherwise.
LEVELS = ("compression.gzip.level", "compression.lz4.level", "compression.zstd.level")
FIELDS = dict.fromkeys(LEVELS, "compression_level")
INERT = {name for names in REASONS.values() for name in names}
# Checked when it is set; there is nothing to do later.
VALIDATED_ONLY = {"remote.storage.enable"}


# Tables and rules of properties: they name all, and act on none.
TABLES = {ROOT / "core" / "config" / f"{name}.py" for name in ("definitions", "inert", "rules")}


@cache
def sources() -> str:
    """The server's code but for the tables of properties themselves."""
    files = (
        path for room in ("core", "gateway", "storage") for path in (ROOT / room).rglob("*.py")
    )
    return "\n".join(path.read_text() for path in files if path not in TABLES)


def is_read_of_topic(name: str) -> bool:
    field = FIELDS.get(name, name.removeprefix("penstock.").replace(".", "_"))
    if field not in TopicConfig.__slots__:
        return False
    spelt = SPELT.get(name, re.escape(field))
    return re.search(rf"\bconfig\.({spelt})\b", sources()) is not None


@pytest.mark.parametrize("name", generate.PAGES)
def test_page_is_current(name: str) -> None:
    written = (generate.DOCS / name).read_text(encoding="utf-8")
    assert written == generate.PAGES[name](), "run `make docs`"


def test_no_row_says_the_same_twice() -> None:
    rows = [row for row in generate.configuration().splitlines() if row.startswith("| `")]
    for row in rows:
        sentences = re.split(r"(?<=[.!?])\s+", row.rpartition(" | ")[2].removesuffix(" |"))
        assert len(set(sentences)) == len(sentences), row


def test_what_is_not_for_clients_is_not_served() -> None:
    served = {api.key for api in load_handlers().table()}
    assert not served & generate.NOT_FOR_CLIENTS
    assert {key.value for key in ApiKey} >= generate.NOT_FOR_CLIENTS


def test_every_command_of_pulsars_is_told_of_once() -> None:
    served = {each.type for each in load_commands().table()}
    by_connection, missing = set(generate.COMMANDS_OF_THE_CONNECTION), generate.missing_commands()
    kinds = [*served, *by_connection, *missing, *generate.NOT_OF_CLIENTS]
    assert sorted(kinds) == sorted(CommandType)
    assert generate.NOT_SERVED_OF_COMMANDS.keys() <= served | by_connection


def test_every_row_of_the_protocols_says_what_it_does() -> None:
    rows = [each for each in generate.protocol_support().splitlines() if each.startswith("| ")]
    for row in rows:
        number, name, *said = (cell.strip() for cell in row.strip("|").split("|"))
        assert number, row
        assert name, row
        assert any(said), row
    abouts = [each.about for each in load_endpoints()]
    assert not any(each.startswith(("The same.", "As ")) for each in abouts)


@pytest.mark.parametrize("name", TOPIC_CONFIGS)
def test_a_topic_property_has_the_effect_it_is_said_to_have(name: str) -> None:
    if name not in VALIDATED_ONLY:
        assert is_read_of_topic(name) == (name not in generate.WITHOUT_EFFECT_ON_TOPICS)


@pytest.mark.parametrize(
    "name", [name for name, row in BROKER_CONFIGS.items() if row.topic_name is None]
)
def test_a_broker_property_has_the_effect_it_is_said_to_have(name: str) -> None:
    weaker = {other.name for row in TOPIC_CONFIGS.values() for other in row.alternatives}
    if name not in weaker and BROKER_CONFIGS[name].set_by is None:
        without_effect = name in generate.WITHOUT_EFFECT_ON_BROKERS or name in INERT
        # A group's property is read by the group's name for it.
        spelt = {name, BROKER_CONFIGS[name].group_name or name}
        assert any(f'"{each}"' in sources() for each in spelt) == (not without_effect)


def test_what_is_said_of_properties_is_said_of_real_ones() -> None:
    assert generate.WITHOUT_EFFECT_ON_TOPICS.keys() <= TOPIC_CONFIGS.keys()
    assert generate.NOTES_ON_TOPICS.keys() <= TOPIC_CONFIGS.keys()
    assert generate.WITHOUT_EFFECT_ON_BROKERS.keys() <= BROKER_CONFIGS.keys()
    assert generate.NOTES_ON_BROKERS.keys() <= BROKER_CONFIGS.keys()

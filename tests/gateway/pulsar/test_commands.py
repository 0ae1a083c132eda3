"""Commands: the table of types is the definition's, and what is missing or broken is told."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from gateway.pulsar import commands, commands_pb2
from gateway.pulsar.commands import CommandType, MalformedCommand, UnknownCommand
from gateway.pulsar.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandConnect,
    CommandNewTxn,
    CommandPing,
    CommandSend,
    MessageIdData,
    MessageMetadata,
)

ROOT = Path(__file__).parents[3]
PROTO = Path("gateway/pulsar/commands.proto")


def test_the_generated_modules_are_current(tmp_path: Path) -> None:
    options = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "--proto_path", "."]
    subprocess.run([*compiler, *options, PROTO], cwd=ROOT, check=True, timeout=60)
    for name in ("commands_pb2.py", "commands_pb2.pyi"):
        made = (tmp_path / PROTO.parent / name).read_text()
        assert made == (ROOT / PROTO.parent / name).read_text(), f"{name}: run `make proto`"


def test_types_are_the_fields_of_base_command() -> None:
    fields = {f.number: f.name for f in BaseCommand.DESCRIPTOR.fields if f.name != "type"}
    assert fields == {int(each): each.name.lower() for each in CommandType}
    assert set(fields) == {*range(2, 41), *range(50, 69)}


@pytest.mark.parametrize("command", list(CommandType), ids=lambda each: each.name)
def test_an_empty_command_is_taken_or_told_what_it_lacks(command: CommandType) -> None:
    name = BaseCommand.DESCRIPTOR.fields_by_number[command].message_type.name
    message = getattr(commands_pb2, name)()
    encoded = commands.encode_command(message)
    base = BaseCommand.FromString(encoded)
    assert base.type == command and base.HasField(command.name.lower())  # type: ignore[arg-type]
    assert base.SerializeToString() == encoded
    try:
        assert commands.parse_command(encoded) == (command, message)
    except MalformedCommand as malformed:
        assert f"{command.name} without" in str(malformed)


def test_absent_is_not_zero() -> None:
    absent = commands.parse_command(commands.encode_command(CommandNewTxn(request_id=1))).message
    zero = CommandNewTxn(request_id=0, tc_id=0)
    present = commands.parse_command(commands.encode_command(zero)).message
    assert not absent.HasField("tc_id")
    assert present.HasField("tc_id")


def test_defaults_are_the_protocols() -> None:
    message_id = MessageIdData()
    assert (message_id.partition, message_id.batch_index) == (-1, -1)
    assert MessageMetadata().num_messages_in_batch == 1
    assert commands_pb2.CommandSubscribe().durable
    assert commands_pb2.CommandProducerSuccess().last_sequence_id == -1


def test_a_newer_enum_value_survives() -> None:
    schema = commands_pb2.Schema(name="s", type=99)
    assert commands_pb2.Schema.FromString(schema.SerializeToString()).type == 99


def test_keys_that_are_not_text_survive_and_names_do_not() -> None:
    metadata = MessageMetadata(partition_key=b"\xff", producer_name="p")
    assert MessageMetadata.FromString(metadata.SerializeToString()).partition_key == b"\xff"
    with pytest.raises(MalformedCommand, match="UTF-8"):
        commands.parse_command(b"\x08\x02\x12\x03\x0a\x01\xff")


@pytest.mark.parametrize(
    "data",
    [
        b"",  # no type
        b"\x08",
        b"\x08\x06",  # SEND without its command
        b"\x08\x06\x12\x00",  # SEND with CONNECT's
        b"\x08\x06\x32\x02\x08\x01",  # no sequence id
        b"\x08\x06\x32\x7f",
    ],
)
def test_broken_commands_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedCommand):
        commands.parse_command(data)


@pytest.mark.parametrize("number", [0, 1, 41, 49, 69, 2**31 - 1])
def test_an_unknown_type_is_named(number: int) -> None:
    with pytest.raises(UnknownCommand, match=str(number)):
        commands.parse_command(BaseCommand(type=number).SerializeToString())


def test_a_command_within_itself_without_end_is_refused() -> None:
    nested = b""
    for _ in range(500):
        nested = b"\x3a" + commands.encode_varint(len(nested)) + nested
    ack = b"\x1a" + commands.encode_varint(len(nested)) + nested
    with pytest.raises(MalformedCommand):
        commands.parse_command(b"\x08\x0a\x52" + commands.encode_varint(len(ack)) + ack)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_command_or_malformed(data: bytes) -> None:
    try:
        command = commands.parse_command(data)
    except MalformedCommand:
        return
    assert isinstance(command.message, Message)


@given(st.integers(0, 2**64 - 1))
def test_varints_are_protobufs(number: int) -> None:
    encoded = commands.encode_varint(number)
    assert CommandNewTxn.FromString(b"\x08" + encoded).request_id == number
    assert CommandNewTxn(request_id=number).SerializeToString() == b"\x08" + encoded


def test_commands_of_clients_come_back() -> None:
    for message in (
        CommandConnect(client_version="c", protocol_version=21),
        CommandSend(producer_id=0, sequence_id=0, txnid_least_bits=0, txnid_most_bits=0),
        CommandAck(consumer_id=1, ack_type=0, message_id=[MessageIdData(ledger_id=1, entry_id=0)]),
        CommandPing(),
    ):
        assert commands.parse_command(commands.encode_command(message)).message == message

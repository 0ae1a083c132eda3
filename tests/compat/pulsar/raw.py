"""Somebody else's connection, which ends a client's transaction: by the commands themselves."""

from __future__ import annotations

import itertools
import socket
import struct
from typing import Any, Self

from gateway.pulsar.commands import TxnAction, parse_command
from gateway.pulsar.commands_pb2 import CommandConnect, CommandEndTxn
from gateway.pulsar.framing import encode_frame


class RawClient:
    """A connection that asks one thing at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20)
        self._requests = itertools.count(1)
        self.ask(CommandConnect(client_version="raw", protocol_version=20))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, message: Any) -> Any:
        """What the broker answers."""
        self._socket.sendall(encode_frame(message))
        (size,) = struct.unpack(">I", self._read(4))
        frame = self._read(size)
        (size,) = struct.unpack_from(">I", frame)
        return parse_command(memoryview(frame)[4 : 4 + size]).message

    def end(self, txn: tuple[int, int], *, is_commit: bool) -> None:
        """END_TXN, which succeeds."""
        most, least = txn
        action = TxnAction.COMMIT if is_commit else TxnAction.ABORT
        wanted = CommandEndTxn(
            request_id=next(self._requests),
            txnid_most_bits=most,
            txnid_least_bits=least,
            txn_action=action,
        )
        answer = self.ask(wanted)
        assert not answer.HasField("error"), answer

    def _read(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            more = self._socket.recv(size - len(found))
            assert more, "closed"
            found += more
        return found

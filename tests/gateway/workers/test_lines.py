"""gateway.workers.lines: whole lines, each with its worker, whatever pieces they come in."""

from __future__ import annotations

import json

import pytest

from gateway.workers.lines import Lines, label_of

TEXT = b"one\n\ntwo words\nthe last"


def cut(text: bytes, size: int) -> list[bytes]:
    told: list[bytes] = []
    lines = Lines(label_of("console", 3), told.append)
    for start in range(0, len(text), size):
        lines.feed(text[start : start + size])
    lines.end()
    return told


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_pieces_of_any_size_give_the_same_lines(size: int) -> None:
    assert cut(TEXT, size) == [
        b"worker=3 one\n",
        b"worker=3 \n",
        b"worker=3 two words\n",
        b"worker=3 the last\n",
    ]


def test_what_has_no_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.workers.lines._LONGEST", 10)
    assert cut(b"x" * 23, 6) == [b"worker=3 " + b"x" * 12 + b"\n", b"worker=3 " + b"x" * 11 + b"\n"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"event": "stopping", "level": "info"}', {"event": "stopping", "level": "info"}),
        (b"Traceback \xff", {"event": "Traceback \ufffd", "level": "warning"}),
        (b'{"event": "to', {"event": '{"event": "to', "level": "warning"}),
        (b"[1]", {"event": "[1]", "level": "warning"}),
    ],
)
def test_every_line_of_json_is_one(line: bytes, told: dict[str, str]) -> None:
    assert json.loads(label_of("json", 3)(line)) == {"worker": 3, **told}

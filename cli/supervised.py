"""What a process that starts a broker asks of it: a file that says it is ready, and one end.

Knows files and standard input; nothing of brokers.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self


class ReadyFile:
    """A file that is there, whole, while a broker serves, and not before or after."""

    def __init__(self, path: Path | None) -> None:
        """path: None for none at all."""
        self._path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}") if path else None

    def write(self, lines: Sequence[str]) -> None:
        """Puts it in place at once: a reader never sees half of it. Raises OSError."""
        if self._path and self._beside:
            self._beside.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            self._beside.replace(self._path)

    @contextlib.contextmanager
    def only_while_serving(self) -> Iterator[None]:
        """Removes what an earlier process left, and in the end its own. Raises OSError, at once
        where it cannot be written."""
        self._remove()
        if self._beside:
            self._beside.touch()
        try:
            yield
        finally:
            self._remove()

    def _remove(self) -> None:
        for path in filter(None, (self._path, self._beside)):
            path.unlink(missing_ok=True)


def ready_lines(
    bootstrap: str,
    *,
    protocol: str | None,
    database_url: str | None,
    service_url: str | None = None,
    http_url: str | None = None,
) -> list[str]:
    """A Kafka client's properties; what is in comments, no Kafka client knows: the database's URL,
    where Pulsar's clients are served, and where HTTP is. bootstrap: a broker, or several after
    commas. protocol: None for PLAINTEXT."""
    lines = [f"bootstrap.servers={bootstrap}"]
    if protocol is not None:
        lines.append(f"security.protocol={protocol}")
    if database_url is not None:
        lines.append(f"# database_url={database_url}")
    if service_url is not None:
        lines.append(f"# pulsar_service_url={service_url}")
    if http_url is not None:
        lines.append(f"# http_url={http_url}")
    return lines


def stop_with_stdin() -> None:
    """From now on the end of standard input is a SIGTERM: its other end is closed, or its holder
    is gone, however it ended."""

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        _write_to_nobody()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="stop-with-stdin", daemon=True).start()


def _write_to_nobody() -> None:
    """Output that its reader has left with standard input must not fail: the end has to be said."""
    for number in (1, 2):
        output = select.poll()
        output.register(number, 0)
        if output.poll(0):  # an error: only those are told unasked
            with Path(os.devnull).open("wb") as nobody:
                os.dup2(nobody.fileno(), number)


class OrderlyEnd:
    """While it is entered, SIGTERM ends the program through its `finally` clauses.

    The broker takes the signal over once it runs.
    """

    def __init__(self) -> None:
        self._asked: int | None = None
        self._is_held = False
        self._before: Any = signal.SIG_DFL

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, self._end)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def _end(self, number: int, _: object) -> None:
        self._asked = number
        if not self._is_held:
            raise SystemExit(128 + number)

    def if_asked(self) -> None:
        """To be called between two steps: some library's `except:` may have swallowed the end."""
        if self._asked is not None:
            os.kill(os.getpid(), self._asked)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The end waits until behind it: for making something and noting that it is to go."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        self.if_asked()

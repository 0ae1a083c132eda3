"""Starts the drivers of Pulsar's clients in other languages, and talks to them in lines of JSON.

A driver is a program made of a stock client: `java/Driver.java`, `go/`; `admin/Admin.java` is made
of Pulsar's admin classes. It is compiled once into `.cache/` of the checkout. README.md has its
calls. Must not know what is tested with it.

    with java_driver() as call:
        client = call("client", url="pulsar://127.0.0.1:6650")
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compat.java import tools

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "pulsar"
SOURCES_OF_GO = (".go", ".mod", ".sum")
WITHIN_S = 120.0
"""After which a driver that does not answer is given up."""


class DriverUnavailable(RuntimeError):
    """A compiler or the client is missing; the message says which and what to do about it."""


class Refused(Exception):
    """What a client raised. name: of the exception's class, or what stands for it in Go. status:
    HTTP's, where that is how the broker has answered, else 0."""

    def __init__(self, name: str, message: str, status: int = 0) -> None:
        super().__init__(f"{name}: {message}" + (f" ({status})" if status else ""))
        self.name = name
        self.status = status


Call = Callable[..., Any]


def java_command() -> list[str]:
    """The command line of Java's driver; raises DriverUnavailable."""
    return _java_command(HERE / "java" / "Driver.java")


def admin_command() -> list[str]:
    """The command line of the admin classes' driver; raises DriverUnavailable."""
    return _java_command(HERE / "admin" / "Admin.java")


def _java_command(source: Path) -> list[str]:
    try:
        classes = tools.classes(source, source.with_name("pom.xml"))
        return tools.java_command(
            source.stem, heap="384m", log_level="error", jvm=tools.SHORT_LIVED, classes=classes
        )
    except tools.JavaUnavailable as missing:
        raise DriverUnavailable(str(missing)) from None


def go_command() -> list[str]:
    """The command line of Go's driver; raises DriverUnavailable."""
    go = shutil.which("go")
    if go is None:
        raise DriverUnavailable("no go found: install Go 1.24+, which compiles its Pulsar client")
    sources = sorted(each for each in (HERE / "go").iterdir() if each.suffix in SOURCES_OF_GO)
    name = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()[:12]

    def build(directory: Path) -> None:
        directory.mkdir()
        built = subprocess.run(
            [go, "build", "-o", directory / "driver", "."],
            cwd=HERE / "go",
            capture_output=True,
            text=True,
            check=False,
        )
        if built.returncode:
            raise DriverUnavailable(f"go build failed (is there a network?): {built.stderr}")

    return [str(tools.made_once(CACHE / f"go-{name}", build) / "driver")]


@contextlib.contextmanager
def driver(command: list[str], errors: Path) -> Iterator[Call]:
    """Runs a driver; yields what makes a call, one at a time, and gives its answer.

    errors: a file for what the client logs. A call that the client refuses raises Refused, one that
    is not answered within WITHIN_S TimeoutError; the driver is killed then, as at the end.
    """
    with (
        errors.open("w") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            start_new_session=True,  # Ctrl-C reaches Python first
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None

        def call(_call: str, **arguments: Any) -> Any:
            process.stdin.write(json.dumps({"call": _call, **arguments}) + "\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], WITHIN_S)[0]:
                process.kill()
                raise TimeoutError(f"{_call} takes longer than {WITHIN_S} s")
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the driver has ended: {errors.read_text()[-2000:]}")
            answer = json.loads(line)
            if "error" in answer:
                raise Refused(answer["error"], answer["message"], answer.get("status", 0))
            return answer["ok"]

        try:
            yield call
        finally:
            process.kill()

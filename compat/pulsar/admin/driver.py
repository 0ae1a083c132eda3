"""Starts the driver of Pulsar's admin classes (Java), and talks to it in lines of JSON.

It is compiled once into `.cache/` of the checkout. Must not know what is tested with it.

    with driver(Path("errors")) as call:
        admin = call("admin", url="http://127.0.0.1:8080")
        call("ask", admin=admin, of="topics", method="getStats", args=["t"])
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from compat.java import tools

HERE = Path(__file__).parent
WITHIN_S = 120.0
"""After which a driver that does not answer is given up."""

Call = Callable[..., Any]


class Refused(Exception):
    """What Java raised. name: its class. status: HTTP's, where the broker has answered, else 0."""

    def __init__(self, name: str, message: str, status: int) -> None:
        super().__init__(f"{name}: {message} ({status})")
        self.name = name
        self.status = status


@contextlib.contextmanager
def driver(errors: Path) -> Iterator[Call]:
    """Runs the driver; yields what makes a call, one at a time, and gives its answer.

    errors: a file for what Java logs. Raises JavaUnavailable. A call that is refused raises
    Refused, one that is not answered within WITHIN_S TimeoutError; the driver is killed then, as at
    the end.
    """
    classes = tools.classes(HERE / "Admin.java", HERE / "pom.xml")
    command = tools.java_command(
        "Admin", heap="384m", log_level="error", jvm=tools.SHORT_LIVED, classes=classes
    )
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

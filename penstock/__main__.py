"""The `penstock` program, also as `python -m penstock`: finds the server's rooms, then runs them.

Knows where the rooms lie and their names, and of them only the command line. This process is the
server's own, so the rooms come first: a package `core` of somebody else's is never taken for ours.
Pipelines run their users' modules, so their process never sees a room.
"""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_ROOMS = ("cli", "core", "gateway", "migrations", "storage")


def main() -> None:
    """Entry point of the program."""
    if sys.argv[1:2] == ["pipeline"]:
        from penstock.spark.pipelines.command import pipeline

        pipeline(sys.argv[2:], prog_name="penstock pipeline")
    _put_rooms_first()
    from cli.main import main as run

    run()


def _put_rooms_first() -> None:
    """From here on `core` is ours, even if something imported another one as Python started."""
    in_wheel = _PACKAGE / "_server"
    sys.path.insert(0, str(in_wheel if in_wheel.is_dir() else _PACKAGE.parent))
    for name in list(sys.modules):
        if name.partition(".")[0] in _ROOMS:
            del sys.modules[name]


if __name__ == "__main__":
    main()

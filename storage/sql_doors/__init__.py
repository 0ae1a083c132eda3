"""The functions that applications call in SQL, and what these rest on: a file a subject.

They run as the owner of the schema where they must, pin their search_path, and execute no text from
a table. Replaced whole, as the views are (`storage/migrate.py`). The rules that they ask for are
those of `core`; what cannot be asked there, because a COMMIT does not wait for a broker, is here
and compared with it by tests.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from storage.schema import INBOX_SLOTS

_FILES: Final = (
    *("rights.sql", "caller.sql", "produce.sql", "offsets.sql", "decode.sql", "read.sql"),
    "roles.sql",
)
"""In order: `roles.sql` grants what the others have made."""


_EACH_SLOT: Final = re.compile(r"^ *-- for each slot\n(.*?)^ *-- end\n", re.DOTALL | re.MULTILINE)


def statements() -> list[str]:
    """DDL, in order; each text has many statements, and takes no parameters. What stands between
    `-- for each slot` and `-- end` is there once for each slot of the inbox, as `{slot}`."""
    return [_EACH_SLOT.sub(_repeated, _text(name)) for name in _FILES]


def _text(name: str) -> str:
    return (files(__name__) / name).read_text(encoding="utf-8")


def _repeated(found: re.Match[str]) -> str:
    return "".join(found[1].replace("{slot}", str(slot)) for slot in range(INBOX_SLOTS))

"""The functions that applications call in SQL, and what these rest on: a file a subject.

They run as the owner of the schema where they must, pin their search_path, and execute no text from
a table. Replaced whole, as the views are (`storage/migrate.py`). The rules that they ask for are
those of `core`; what cannot be asked there, because a COMMIT does not wait for a broker, is here
and compared with it by tests.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

_FILES: Final = ("rights.sql", "produce.sql", "roles.sql")
"""In order: `roles.sql` grants what the others have made."""


def statements() -> list[str]:
    """DDL, in order; each text has many statements, and takes no parameters."""
    return [(files(__name__) / name).read_text(encoding="utf-8") for name in _FILES]

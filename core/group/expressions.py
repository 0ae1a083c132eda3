"""Regular expressions of subscriptions, and who has subscribed by them.

Where clients are asked for rights, an expression matches for each member what its client may see.
So it is kept together with the client, in one text: to a group, two clients' same expression are
two. Knows no rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from core.security.principal import Principal

_BEFORE: Final = "\x1f"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who sees topics. host: an address as ACLs are compared with."""

    principal: Principal
    host: str


def seen_by(expression: str, viewer: Viewer) -> str:
    """An expression as a group keeps it. Empty, it ends a subscription, whoever says so."""
    if not expression:
        return expression
    who = (viewer.principal.kind, viewer.principal.name, viewer.host)
    return "".join(_BEFORE + quote(each, safe="", errors="surrogatepass") for each in who) + (
        _BEFORE + expression
    )


def read_expression(kept: str) -> tuple[str, Viewer | None]:
    """The expression alone, and who sees by it; None: whoever it is, all topics are seen."""
    if not kept.startswith(_BEFORE):
        return kept, None
    parts = kept.split(_BEFORE, 4)
    if len(parts) < 5:
        return kept, None
    _, *who, expression = parts
    kind, name, host = (unquote(each, errors="surrogatepass") for each in who)
    return expression, Viewer(Principal(name, kind), host)


def is_of_somebody(kept: str) -> bool:
    """Whether it depends on who sees."""
    return read_expression(kept)[1] is not None

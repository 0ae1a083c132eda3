"""Templates filled in, and the headers of every page. Knows no page.

Names and values are others' text: templates escape everything, and `shown` makes visible what
would hide or turn around what stands beside it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import HTMLResponse, RedirectResponse, Response

from core.version import VERSION
from gateway.web.introductions import HEADER
from gateway.web.server import as_json

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.console.visit import Visit
    from gateway.web.api import Refused

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
SAID: Final = "said"
"""The query's name of what an action has to say on the next page."""
_MOST_SAID: Final = 1_000
_LONGEST_SAID: Final = 1_000

HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}

# Control characters, and those that change the direction or have no width (Unicode TR 36).
_HIDDEN: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ud800-\udfff]"
)
NOTHING: Final = "\N{EN DASH}"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Rendering:
    """Makes responses. One per process."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, str] = OrderedDict()
        self._environment = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "shown": shown,
            "shown_lines": shown_lines,
            "count": count,
            "size": size,
            "duration": duration,
            "moment": moment,
        }
        self._environment.globals |= {
            "version": VERSION,
            "link": link,
            "static": {each.name: static_url(each) for each in STATIC.iterdir()},
        }

    def page(
        self, visit: Visit, template: str, values: Mapping[str, Any], status: int = 200
    ) -> Response:
        """A template as a page. values: beside what every page has (`Visit.context`)."""
        said = self._said.get(visit.text(SAID))
        path = visit.call.request.url.path
        return self._response(
            template, status, {**visit.context(), "said": said, "path": path}, values
        )

    def piece(self, template: str, values: Mapping[str, Any]) -> str:
        """A part of a page, which a script puts into it."""
        return self._environment.get_template(template).render(values)

    def refusal(self, request: Request, refused: Refused) -> Response:
        """A refusal as a page. What is asked for by script gets it as well, and its status; another
        broker gets it as programs do."""
        if HEADER in request.headers:
            return as_json(request, refused)
        around: dict[str, object] = {"path": request.url.path, "is_writable": False}
        around |= dict.fromkeys(("visit", "user", "broker_id", "said"))
        values = {"refused": refused, "back": _page_before(request)}
        around["has_pages"] = refused.status != 401
        return self._response("refused.html", refused.status, around, values)

    def done(self, to: str, text: str) -> Response:
        """Sends the browser to a page of ours, which shows the text."""
        key = secrets.token_urlsafe(12)
        self._said[key] = text[:_LONGEST_SAID]
        while len(self._said) > _MOST_SAID:
            self._said.popitem(last=False)
        to += f"{'&' if '?' in to else '?'}{SAID}={key}"
        return RedirectResponse(to, 303)

    def _response(
        self, template: str, status: int, around: Mapping[str, Any], values: Mapping[str, Any]
    ) -> Response:
        text = self._environment.get_template(template).render(**around, **values)
        return HTMLResponse(text, status, HEADERS)


def _page_before(request: Request) -> str | None:
    """The page of ours that has led here."""
    before = urlsplit(request.headers.get("referer", ""))
    if before.netloc != request.headers.get("host") or not before.path.startswith("/"):
        return None
    path = f"/{before.path.lstrip('/')}{f'?{before.query}' if before.query else ''}"
    is_here = request.method == "GET" and path == str(request.url.path)
    return None if is_here else path


def link(path: str, **query: object) -> str:
    """A path of ours with a query. Names may be anything, so they are never in the path."""
    pairs = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def static_url(file: Path) -> str:
    """A file's address; another one when it changes, so that browsers keep it."""
    return f"/static/{file.name}?v={hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def shown(text: object) -> str:
    """Others' text with what cannot be seen made visible: `\\u202e`."""
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def shown_lines(text: str) -> str:
    """The same of text that may have several lines."""
    return "\n".join(map(shown, text.split("\n")))


def count(number: float | None) -> str:
    """A number with separators: 12,345."""
    if number is None:
        return NOTHING
    return f"{number:,.0f}" if number == int(number) or number >= 100 else f"{number:,.1f}"


def size(number: float | None) -> str:
    """Bytes for people: 3.4 MiB."""
    if number is None:
        return NOTHING
    rest = float(number)
    for unit in _UNITS:
        if abs(rest) < 1024 or unit == _UNITS[-1]:
            break
        rest /= 1024
    return f"{rest:.0f} {unit}" if unit == "B" or rest >= 100 else f"{rest:.1f} {unit}"


def duration(span: float | timedelta | None) -> str:
    """Seconds for people, in two units at most: 4 min 10 s."""
    if span is None:
        return NOTHING
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    parts: list[str] = []
    rest = int(seconds)
    for unit, in_it in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        many, rest = divmod(rest, in_it)
        if many or parts:
            parts.append(f"{many} {unit}" if many else "")
    return " ".join(each for each in parts[:2] if each)


def moment(at: datetime | int | None) -> Markup | str:
    """A time, which the script writes in the viewer's zone. at: or ms since the epoch."""
    if at is None:
        return NOTHING
    if isinstance(at, int):
        try:
            at = datetime.fromtimestamp(at / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            return f"{at} ms"
    at = at.astimezone(UTC)
    text = at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "")
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), text)


def time_field(at_ms: int) -> str:
    """A time as a form's field has it, in UTC; the script puts it into the viewer's zone. Empty
    where no calendar has it."""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return at.replace(tzinfo=None).isoformat(timespec="milliseconds")


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000

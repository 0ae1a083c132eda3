"""The page's style and script."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.responses import Response

from gateway.console.api import page
from gateway.console.rendering import HEADERS, STATIC
from gateway.console.visit import Visit
from gateway.web.api import Refused

_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@page("/static/{file}")
async def static(visit: Visit) -> Response | Refused:
    """A file of `static/`; its address has its digest, so browsers may keep it."""
    name = visit.call.name("file")
    file = next((each for each in STATIC.iterdir() if each.name == name), None)
    if file is None:
        return Refused(404, "There is no such file")
    content = await asyncio.to_thread(file.read_bytes)
    headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(content, 200, headers, _TYPES[file.suffix])

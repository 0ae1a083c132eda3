"""Logging in by a token, which a browser cannot show by itself as it does a password.

The cookie holds the token: it is looked at with each request as any client's is, so that it ends
when the token does.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.responses import RedirectResponse, Response

from gateway.console.api import Page, action, page
from gateway.console.visit import Visit
from gateway.runtime.authentication import TOKEN, Credentials, NotProved
from gateway.web.call import SMALL_BODY_BYTES
from gateway.web.guard import COOKIE

_LONGEST: Final = 4000  # browsers keep no longer cookie
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750


@page("/login")
async def login(visit: Visit) -> Page:
    """Asks for a token."""
    return _form(visit)


def _form(visit: Visit, refused: str | None = None) -> Page:
    values = {"takes_tokens": _takes_tokens(visit), "refused": refused}
    return Page("login.html", values, 200 if refused is None else 400)


@action("/login")
async def log_in(visit: Visit) -> Response | Page:
    """Keeps the token in a cookie, if it is good. Raises StoreUnavailable."""
    token = (await visit.form(SMALL_BODY_BYTES)).text("token").strip()
    if not _TOKEN.fullmatch(token) or len(token) > _LONGEST:
        return _form(visit, "This is no token")
    proved = await visit.runtime.authentication.prove(Credentials(TOKEN, token.encode()))
    if isinstance(proved, NotProved):
        configs = visit.runtime.configs
        delay_ms = configs.broker_int("connection.failed.authentication.delay.ms")
        await asyncio.sleep(delay_ms / 1000)  # so that guessing takes time
        return _form(visit, "This token is not valid here, or not any more")
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE,
        token,
        httponly=True,
        samesite="strict",
        secure=visit.call.request.url.scheme == "https",
    )
    return response


@action("/logout")
async def log_out(visit: Visit) -> Response:
    """Forgets the token."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _takes_tokens(visit: Visit) -> bool:
    return TOKEN in visit.runtime.authentication.methods

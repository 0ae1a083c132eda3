"""Who asks by HTTP: by the headers of each request, or by the certificate of its connection.

Headers and the text of refusals are Pulsar's (AuthenticationService, AuthenticationFilter). Knows
no endpoint; no secret is in a log line.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from core.config.definitions import TLS
from core.security.principal import Caller, Principal, java_host
from gateway.runtime.authentication import BASIC, TOKEN, UNSUPPORTED, Credentials, NotProved
from gateway.runtime.users import shown
from gateway.web.api import Refused
from gateway.web.introductions import HEADER, Introductions

if TYPE_CHECKING:
    from starlette.requests import Request

    from gateway.runtime.authentication import Authentication
    from gateway.runtime.topics.configs import Configs

log = structlog.get_logger(__name__)

CERTIFICATE: Final = "certificate"
"""In a request's state: DER of the certificate that its client has shown."""
COOKIE: Final = "penstock_token"
"""Holds the token of who has logged in on the page."""
METHOD_HEADER: Final = "x-pulsar-auth-method-name"
ORIGINAL_HEADER: Final = "x-original-principal"
_ONCE: Final = (METHOD_HEADER, ORIGINAL_HEADER, "authorization")
_SCHEMES: Final = {TOKEN: "Bearer", BASIC: "Basic"}
_REQUIRED: Final = "Authentication required"
_SAFE: Final = ("GET", "HEAD", "OPTIONS")

LoginObserver = Callable[[str, str], None]
"""Called with a method (or "unsupported") and an outcome for each request that asks for a login."""


class Guard:
    """A listener's. observe: counts logins."""

    def __init__(
        self,
        listener: str,
        authentication: Authentication,
        configs: Configs,
        observe: LoginObserver,
    ) -> None:
        self._listener = listener
        self._authentication = authentication
        self._configs = configs
        self._observe = observe
        self._introductions = Introductions(authentication.users)

    def challenges(self, request: Request, *, by_cookie: bool = False) -> list[str]:
        """How one may log in, as values of WWW-Authenticate: a header each, since Chromium reads
        one scheme of a header. Whose token was refused is not asked for a password instead, which
        browsers do by a dialog."""
        is_by_cookie = by_cookie and COOKIE in request.cookies
        return [
            f'{scheme} realm="penstock"'
            for method, scheme in _SCHEMES.items()
            if method in self._authentication.methods and (method == TOKEN or not is_by_cookie)
        ]

    async def admit(self, request: Request, *, by_cookie: bool = False) -> Caller | Refused:
        """Who asks; a refusal comes late. by_cookie: a browser may show its token so. Raises
        StoreUnavailable."""
        peer = peer_of(request)
        if (said := request.headers.get(HEADER)) is not None:
            caller = await self._introductions.read(said, request.method, target_of(request))
            reason = "no broker has said so"
            return caller or await self._refuse("", reason, None, peer)
        if any(len(request.headers.getlist(each)) > 1 for each in _ONCE):
            # A proxy may have added its own to the client's: whose is whose nobody knows.
            return await self._refuse("", "it has a header twice that says who asks", None, peer)
        method = request.headers.get(METHOD_HEADER) or ""
        if method and method not in self._authentication.methods:
            told = f"Unsupported authentication method: [{shown(method)}]."
            return await self._refuse(method, told, None, peer, told)
        credentials = _shown_by(request, method, by_cookie=by_cookie)
        found = await self._authentication.prove(credentials)
        if isinstance(found, NotProved):
            return await self._refuse(credentials.method, found.reason, found.user, peer)
        own, original = found.principal.name, (request.headers.get(ORIGINAL_HEADER) or "").strip()
        wrong = self._authentication.why_not_for(own, original, may_be_same=True)
        if wrong is not None:
            told = f"Unauthorized for originalPrincipal [{shown(original)}] and clientAppId [{own}]"
            return await self._refuse(credentials.method, wrong, own, peer, told)
        self._observe(credentials.method, "success")
        is_for_another = original not in ("", own)
        return Caller(
            Principal(original) if is_for_another else found.principal,
            java_host(peer),
            found.principal if is_for_another else None,
        )

    async def _refuse(
        self, method: str, reason: str, user: str | None, peer: str, told: str = _REQUIRED
    ) -> Refused:
        """Notes it, and lets the client wait, so that guessing takes time."""
        log.warning(
            "login_refused",
            reason=shown(reason),
            user=None if user is None else shown(user),
            mechanism=shown(method) or None,
            listener=self._listener,
            peer=peer,
        )
        known = method in self._authentication.methods
        self._observe(method if known else UNSUPPORTED, "failure")
        delay_ms = self._configs.broker_int("connection.failed.authentication.delay.ms")
        await asyncio.sleep(delay_ms / 1000)
        return Refused(401, told)


def target_of(request: Request) -> str:
    """Path and query, as they were sent."""
    query = request.scope["query_string"].decode("ascii")
    return str(request.scope["path"]) + (f"?{query}" if query else "")


def peer_of(request: Request) -> str:
    """HOST:PORT of the client."""
    host, port = request.client or ("?", 0)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_from_elsewhere(request: Request) -> bool:
    """Whether a page of another site makes a browser ask for a change: it would show its user's
    login, or come from a machine that is trusted. Programs send neither header."""
    if request.method in _SAFE:
        return False
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    if origin is None:
        return False
    # Not its scheme: a proxy in between may have ended TLS.
    _, _, place = origin.partition("://")
    return place != request.headers.get("host")


def is_by_anybodys_name(request: Request) -> bool:
    """Whether a browser asks for a change by a name that its owner may point at any machine (DNS
    rebinding): then the page and the broker look like one site. Addresses are nobody's to point."""
    if request.method in _SAFE or "origin" not in request.headers:
        return False
    host = host_of(request)
    return host != "localhost" and _address(host) is None


def host_of(request: Request) -> str:
    """What the client calls this broker, without the port and in lower case."""
    host = request.headers.get("host", "")
    end = host.partition("]")[0][1:] if host.startswith("[") else host.partition(":")[0]
    return end.lower()


def is_loopback(host: str) -> bool:
    """Whether it is an address of loopback."""
    address = _address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _shown_by(request: Request, method: str, *, by_cookie: bool) -> Credentials:
    """method: which of them the client says it means, if it does."""
    certificate: bytes | None = request.scope["state"][CERTIFICATE]
    if method == TLS or (certificate is not None and "authorization" not in request.headers):
        return Credentials(TLS, certificate=certificate)
    if by_cookie and "authorization" not in request.headers and COOKIE in request.cookies:
        return Credentials(TOKEN, request.cookies[COOKIE].encode())
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return Credentials(TOKEN, given.strip().encode())
    if scheme.lower() == "basic":
        try:
            return Credentials(BASIC, base64.b64decode(given.strip(), validate=True))
        except (binascii.Error, ValueError):
            return Credentials(BASIC)
    return Credentials("")

"""As whom a command asks Pulsar's REST: what the file of `--command-config` says.

It may be a `client.conf` of Pulsar's (`authPlugin`, `authParams`, `tlsTrustCertsFilePath`), or the
file for Kafka's listeners: its user and password are good here, too. Knows no socket.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.connecting import PLAIN, Login, PropertyError, connecting, read_properties

_PLUGIN: Final = "authPlugin"
_PARAMS: Final = "authParams"
_PACKAGE: Final = "org.apache.pulsar.client.impl.auth.Authentication"
_KINDS: Final = ("token", "basic")


@dataclass(frozen=True, slots=True)
class RestLogin:
    """authorization: the header, if there is a login. is_secret_shown: whether it has a password
    that may not be sent in plain text. certificate: trusted beside what the system trusts."""

    authorization: str | None = field(default=None, repr=False)
    is_secret_shown: bool = False
    certificate: Path | None = None

    def headers_to(self, url: str) -> dict[str, str]:
        """For a request to a broker. Raises PropertyError where the password would be shown to
        whoever listens on the way."""
        if self.authorization is None:
            return {}
        to = urlsplit(url)
        if self.is_secret_shown and to.scheme != "https" and not _is_loopback(to.hostname or ""):
            raise PropertyError(
                f"The password would be sent to {to.netloc} in plain text, which SCRAM never does: "
                "use https, or a file with sasl.mechanism=PLAIN."
            )
        return {"authorization": self.authorization}


def read_rest_login(file: Path) -> RestLogin:
    """Raises PropertyError."""
    given = read_properties(file)
    kind, params = given.get(_PLUGIN, "").strip(), given.get(_PARAMS, "").strip()
    authorization: str | None
    if kind:
        authorization, is_scram = _of_pulsar(kind, params), False
    else:
        login = connecting(given).login
        authorization = None if login is None else _basic(login.user, login.password)
        is_scram = isinstance(login, Login) and login.mechanism != PLAIN
    trusted = given.get("tlsTrustCertsFilePath") or given.get("ssl.truststore.location")
    return RestLogin(authorization, is_scram, Path(trusted) if trusted else None)


def _of_pulsar(plugin: str, params: str) -> str:
    kind = plugin.removeprefix(_PACKAGE).lower()
    if kind not in _KINDS:
        names = " or ".join(_PACKAGE + each.title() for each in _KINDS)
        raise PropertyError(f"{_PLUGIN} is {names}, not '{plugin}'.")
    if kind == "token":
        return f"Bearer {_token(params)}"
    options = _options(params)
    if not options.get("userId") or "password" not in options:
        raise PropertyError(f'{_PARAMS} is {{"userId":"…","password":"…"}}.')
    return _basic(options["userId"], options["password"])


def _options(params: str) -> Mapping[str, str]:
    try:
        found = json.loads(params)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _token(params: str) -> str:
    """`token:…`, `file:///…`, `env:NAME`, JSON with `token`, or the token itself
    (AuthenticationToken.configure)."""
    if params.startswith("file:"):
        path = Path(unquote(urlsplit(params).path))
        try:
            token = path.read_text("ascii").strip()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no token"
            raise PropertyError(f"{_PARAMS}: {path} cannot be read: {reason}.") from error
    elif params.startswith("env:"):
        token = os.environ.get(params.removeprefix("env:"), "")
    elif params.startswith("{"):
        token = _options(params).get("token", "")
    else:
        token = params.removeprefix("token:")
    if not token or not token.isascii() or not token.isprintable():
        raise PropertyError(f"{_PARAMS} is token:… or file:///…; there is no token in it.")
    return token


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.connecting import PLAIN, Certificate, PropertyError, connecting, read_properties

_PLUGIN: Final = "authPlugin"
_PARAMS: Final = "authParams"
_PACKAGE: Final = "org.apache.pulsar.client.impl.auth.Authentication"
_KINDS: Final = ("token", "basic", "tls")


@dataclass(frozen=True, slots=True)
class RestLogin:
    """authorization: the header, if there is a login. is_secret_shown: whether it has a password
    that may not be sent in plain text. certificate: trusted beside what the system trusts. shows: a
    certificate of one's own."""

    authorization: str | None = field(default=None, repr=False)
    is_secret_shown: bool = False
    certificate: Path | None = None
    shows: Certificate | None = None

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
    trusted = given.get("tlsTrustCertsFilePath") or given.get("ssl.truststore.location")
    certificate = Path(trusted) if trusted else None
    if kind:
        return replace(_of_pulsar(kind, params), certificate=certificate)
    found = connecting(given)
    shows = found.tls.shows if found.tls is not None else None
    if found.login is None:
        return RestLogin(certificate=certificate, shows=shows)
    if found.login.tokens is not None:
        raise PropertyError(
            f"Tokens of an issuer are for Kafka's listeners; for REST say {_PLUGIN} and {_PARAMS}, "
            "or a user's name and password."
        )
    authorization = _basic(found.login.user, found.login.password)
    return RestLogin(authorization, found.login.mechanism != PLAIN, certificate, shows)


def _of_pulsar(plugin: str, params: str) -> RestLogin:
    kind = plugin.removeprefix(_PACKAGE).lower()
    options = _options(params)
    if kind == "token":
        return RestLogin(f"Bearer {_token(params)}")
    if kind == "basic":
        if not options.get("userId") or "password" not in options:
            raise PropertyError(f'{_PARAMS} is {{"userId":"…","password":"…"}}.')
        return RestLogin(_basic(options["userId"], options["password"]))
    if kind == "tls":
        if not options.get("tlsCertFile") or not options.get("tlsKeyFile"):
            raise PropertyError(f"{_PARAMS} is tlsCertFile:…,tlsKeyFile:….")
        chain, key = _read(options["tlsCertFile"]), _read(options["tlsKeyFile"])
        return RestLogin(shows=Certificate(chain=chain, key=key))
    names = " or ".join(_PACKAGE + each.title() for each in _KINDS)
    raise PropertyError(f"{_PLUGIN} is {names}, not '{plugin}'.")


def _options(params: str) -> Mapping[str, str]:
    """JSON, or names and values as `name:value,name:value`."""
    try:
        found = json.loads(params)
    except ValueError:
        parts = (each.partition(":") for each in params.split(","))
        return {name.strip(): value.strip() for name, colon, value in parts if colon}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _token(params: str) -> str:
    """`token:…`, `file:///…`, `env:NAME`, JSON with `token`, or the token itself
    (AuthenticationToken.configure)."""
    if params.startswith("file:"):
        token = _read(unquote(urlsplit(params).path)).strip()
    elif params.startswith("env:"):
        token = os.environ.get(params.removeprefix("env:"), "")
    elif params.startswith("{"):
        token = _options(params).get("token", "")
    else:
        token = params.removeprefix("token:")
    if not token or not token.isascii() or not token.isprintable():
        raise PropertyError(f"{_PARAMS} is token:… or file:///…; there is no token in it.")
    return token


def _read(file: str) -> str:
    try:
        return Path(file).read_text("ascii")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII"
        raise PropertyError(f"{_PARAMS}: {file} cannot be read: {reason}.") from error


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"

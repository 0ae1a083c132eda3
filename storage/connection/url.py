"""The URL of a database: a form that people may see, and whether libpq can read it.

Must not connect. libpq quotes what it cannot read, which may be a part of the password; so a URL is
parsed here, once, before anything else uses it.
"""

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from core.ports.log import StoreUnavailable

# As libpq does: the user and the password end at the first "@", unless a "/" comes before it.
_PARTS = re.compile(
    r"(?P<scheme>[^:]*://)(?:(?P<user>[^@/:]*)(?P<password>:[^@/]*)?@)?(?P<rest>.*)"
)
_SECRET_PARAMETERS = {"password", "sslpassword", "oauth_client_secret"}


def check_url(url: str) -> None:
    """Raises StoreUnavailable if libpq cannot read the URL, or reads it otherwise than meant.

    The error's text has no part of the URL.
    """
    try:
        ports = str(conninfo_to_dict(url).get("port") or "").split(",")
    except psycopg.Error:
        is_meant = False
    else:
        is_url_meant = "://" not in url or _parts(url) is not None  # else it is "host=… user=…"
        is_meant = is_url_meant and all(not port or port.isdigit() for port in ports)
    if not is_meant:
        raise StoreUnavailable(
            "its URL cannot be read: in a user or password write special characters with a %, "
            "as in %40 for @, %2F for / and %25 for %"
        )


def describe_url(url: str) -> str:
    """The URL without its passwords, for logs and messages."""
    parts = _parts(url)
    if parts is None:
        return "(a URL that cannot be read)"
    rest, mark, query = parts["rest"].partition("?")
    who = "" if parts["user"] is None else parts["user"] + (":***" if parts["password"] else "")
    at = "@" if parts["user"] is not None else ""
    shown = "&".join(_described_parameter(pair) for pair in query.split("&"))
    return f"{parts['scheme']}{who}{at}{rest}{mark}{shown}"


def without_password(url: str) -> tuple[str, str | None]:
    """The URL for libpq without its password, and the password.

    Raises StoreUnavailable if the URL cannot be read, or has a secret of another kind.
    """
    check_url(url)
    parameters = conninfo_to_dict(url)
    password = parameters.pop("password", None)
    if others := sorted(_SECRET_PARAMETERS & parameters.keys()):
        raise StoreUnavailable(f"{others[0]} in its URL cannot be hidden from other users")
    rest = {name: str(value) for name, value in parameters.items()}
    return make_conninfo(**rest), None if password is None else str(password)


def _parts(url: str) -> re.Match[str] | None:
    """None if a password may reach beyond the "@" that libpq takes for its end."""
    parts = _PARTS.fullmatch(url)
    return None if parts is None or "@" in parts["rest"].partition("?")[0] else parts


def _described_parameter(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    return f"{name}{equals}***" if name in _SECRET_PARAMETERS else pair

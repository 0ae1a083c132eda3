"""How a client connects: TLS and a login, by the names of Kafka's Java clients.

The sink, the pipelines and the command line take the same properties as Kafka's tools and Spark's
own sink do. Standard library only; must not know a socket.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from textwrap import wrap
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.tokens import TokenSource

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)

_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROTOCOL: Final = "security.protocol"
_MECHANISM: Final = "sasl.mechanism"
_JAAS: Final = "sasl.jaas.config"
_TRUSTSTORE: Final = "ssl.truststore.location"
_TRUSTSTORE_TYPE: Final = "ssl.truststore.type"
_TRUSTED: Final = "ssl.truststore.certificates"
_KEYSTORE: Final = "ssl.keystore.location"
_KEYSTORE_TYPE: Final = "ssl.keystore.type"
_CHAIN: Final = "ssl.keystore.certificate.chain"
_KEY: Final = "ssl.keystore.key"
_KEY_PASSWORD: Final = "ssl.key.password"
_ALGORITHM: Final = "ssl.endpoint.identification.algorithm"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE: Final = "sasl.oauthbearer.scope"
_CALLBACK: Final = "sasl.login.callback.handler.class"  # Java needs it to ask an issuer
KNOWN: Final = (
    *(_PROTOCOL, _MECHANISM, _JAAS),
    *(_TOKEN_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE, _CALLBACK),
    *(_TRUSTSTORE, _TRUSTSTORE_TYPE, _TRUSTED),
    *(_KEYSTORE, _KEYSTORE_TYPE, _CHAIN, _KEY, _KEY_PASSWORD),
    _ALGORITHM,
)
"""The properties that mean something here."""

_CONCERNED: Final = ("security.", "sasl.", "ssl.")


class PropertyError(ValueError):
    """A property is missing, unknown or wrong; the message is a sentence for people."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a client shows brokers: a file (PEM) with its key and its chain, or these as text."""

    file: str | None = None
    chain: str = ""
    key: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Raises PropertyError."""
        try:
            if self.file is not None:
                context.load_cert_chain(self.file, password=self.password.encode)
                return
            # Python takes a file only.
            with NamedTemporaryFile("w") as file:  # which nobody else may read
                file.write(_in_lines(self.key) + _in_lines(self.chain))
                file.flush()
                context.load_cert_chain(file.name, password=self.password.encode)
        except (OSError, ValueError) as unreadable:
            place = f"{_KEYSTORE} is" if self.file is not None else f"{_KEY} and {_CHAIN} are"
            shown = f"'{self.file}'" if self.file is not None else "what is said"
            raise PropertyError(
                f"{place} a key and its certificates in PEM, with {_KEY_PASSWORD} if the key has "
                f"one; here, {shown} cannot be read: {unreadable}."
            ) from unreadable


@dataclass(frozen=True, slots=True)
class Tls:
    """ca_file: PEM, of who signs the brokers' certificates, or trusted: the same as text; None:
    those that the system trusts. shows: a certificate of one's own."""

    ca_file: str | None
    check_hostname: bool
    trusted: str | None = None
    shows: Certificate | None = None

    def context(self) -> ssl.SSLContext:
        """Raises PropertyError where a file cannot be read."""
        text = None if self.trusted is None else _in_lines(self.trusted)
        try:
            context = ssl.create_default_context(cafile=self.ca_file, cadata=text)
        except (OSError, ValueError) as unreadable:
            if self.ca_file is None:
                raise PropertyError(
                    f"{_TRUSTED} is no certificate in PEM: {unreadable}."
                ) from unreadable
            raise PropertyError(
                f"{_TRUSTSTORE} is a PEM file that every machine of this application has; "
                f"here, '{self.ca_file}' cannot be read: {unreadable}."
            ) from unreadable
        context.check_hostname = self.check_hostname
        if self.shows is not None:
            self.shows.load_into(context)
        return context


_IN_PEM: Final = re.compile(r"-----BEGIN ([A-Z ]+)-----(.*?)-----END \1-----", re.DOTALL)


def _in_lines(pem: str) -> str:
    """PEM as OpenSSL reads it: properties often have it in one line, with or without spaces."""
    return "".join(
        f"-----BEGIN {kind}-----\n" + "\n".join(wrap("".join(text.split()), 64)) + "\n"
        f"-----END {kind}-----\n"
        for kind, text in _IN_PEM.findall(pem)
    )


@dataclass(frozen=True, slots=True)
class Login:
    """As whom, and how. tokens: where they come from, for OAUTHBEARER; user is for people then."""

    mechanism: str
    user: str
    password: str = field(repr=False)
    tokens: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class Connecting:
    """tls: None for plain text. login: None where nobody asks."""

    tls: Tls | None = None
    login: Login | None = None

    def for_kafka_python(self, context: ssl.SSLContext | None = None) -> dict[str, Any]:
        """The arguments of its clients. context: the one of TLS, where it is made already. Raises
        PropertyError where a file cannot be read."""
        protocol = "SSL" if self.tls else "PLAINTEXT"
        options: dict[str, Any] = {
            "security_protocol": f"SASL_{protocol}" if self.login else protocol,
            "ssl_context": context or (self.tls.context() if self.tls else None),
        }
        if self.login is not None:
            options["sasl_mechanism"] = self.login.mechanism
            if self.login.tokens is not None:
                options["sasl_oauth_token_provider"] = _provider(self.login.tokens)
            else:
                options["sasl_plain_username"] = self.login.user
                options["sasl_plain_password"] = self.login.password
        return options


def _provider(tokens: TokenSource) -> Any:
    """As kafka-python takes them."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc] # it has no types
        def token(self) -> str:
            return tokens.token()

    return Provider()


def connecting(properties: Mapping[str, str], prefix: str = "") -> Connecting:
    """What properties say; prefix: what their names begin with, in sentences too. Those that
    concern something else are left alone. Raises PropertyError."""
    given = {
        name.removeprefix(prefix): value
        for name, value in properties.items()
        if name.startswith(prefix)
    }
    for name in sorted(given):
        if name.startswith(_CONCERNED) and name not in KNOWN:
            listed = ", ".join(prefix + each for each in KNOWN)
            raise PropertyError(f"{prefix}{name} is not known here. There are: {listed}.")
    protocol = given.get(_PROTOCOL, _PROTOCOLS[0]).strip().upper()
    if protocol not in _PROTOCOLS:
        *first, last = _PROTOCOLS
        raise PropertyError(
            f"{prefix}{_PROTOCOL} is {', '.join(first)} or {last}, not '{protocol}'."
        )
    for kind in (_TRUSTSTORE_TYPE, _KEYSTORE_TYPE):
        if given.get(kind, "PEM").strip().upper() != "PEM":
            raise PropertyError(f"{prefix}{kind} is PEM: Python reads no other.")
    for one, other in ((_TRUSTSTORE, _TRUSTED), (_KEYSTORE, _CHAIN), (_KEYSTORE, _KEY)):
        if one in given and other in given:
            raise PropertyError(f"{prefix}{one} and {prefix}{other} say the same: leave one out.")
    if (_CHAIN in given) != (_KEY in given):
        raise PropertyError(f"{prefix}{_CHAIN} and {prefix}{_KEY} go together.")
    algorithm = given.get(_ALGORITHM, "https").strip().lower()
    if algorithm not in ("https", ""):
        raise PropertyError(f"{prefix}{_ALGORITHM} is https or empty.")
    is_tls, is_login = protocol.endswith("SSL"), protocol.startswith("SASL")
    tls = Tls(given.get(_TRUSTSTORE), algorithm == "https", given.get(_TRUSTED), _shown(given))
    return Connecting(
        tls if is_tls else None,
        _login(given, prefix) if is_login else None,
    )


def _shown(given: Mapping[str, str]) -> Certificate | None:
    if _KEYSTORE not in given and _KEY not in given:
        return None
    password = given.get(_KEY_PASSWORD, "")
    if _KEYSTORE in given:
        return Certificate(given[_KEYSTORE], password=password)
    return Certificate(None, given[_CHAIN], given[_KEY], password)


def _login(given: Mapping[str, str], prefix: str) -> Login:
    mechanism = given.get(_MECHANISM, "").strip().upper()
    if mechanism not in MECHANISMS:
        *first, last = MECHANISMS
        said = f"'{mechanism}'" if mechanism else "nothing"
        raise PropertyError(f"{prefix}{_MECHANISM} is {', '.join(first)} or {last}, not {said}.")
    options = jaas_options(given.get(_JAAS, ""))
    if mechanism == OAUTHBEARER:
        tokens = _tokens(given, options or {}, prefix)
        return Login(mechanism, tokens.shown, "", tokens)
    if options is None or not options.get("username") or "password" not in options:
        raise PropertyError(
            f"{prefix}{_JAAS} is, in one line: org.apache.kafka.common.security.scram."
            'ScramLoginModule required username="…" password="…"; (or plain.PlainLoginModule).'
        )
    return Login(mechanism, options["username"], options["password"])


def _tokens(given: Mapping[str, str], options: Mapping[str, str], prefix: str) -> TokenSource:
    """options: of the JAAS configuration, Kafka's older way (KIP-768, KIP-1139)."""
    url = given.get(_TOKEN_URL, "").strip()
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path:
        return TokenSource(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PropertyError(
            f"{prefix}{_TOKEN_URL} is https://… of an issuer that gives tokens, or file:///… of a "
            f"file with one, not '{url}'."
        )
    client, secret, scope = (
        given.get(name) or options.get(option, "")
        for name, option in (
            *((_CLIENT_ID, "clientId"), (_CLIENT_SECRET, "clientSecret")),
            (_SCOPE, "scope"),
        )
    )
    if not client or not secret:
        raise PropertyError(
            f"{prefix}{_CLIENT_ID} and {prefix}{_CLIENT_SECRET} say as whom the issuer is asked; "
            f"or clientId and clientSecret in {prefix}{_JAAS}."
        )
    return TokenSource(url, client, secret, scope)


_WORD: Final = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s=;"\']+'
_MODULE: Final = re.compile(
    rf"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)((?:\s+[\w.]+\s*=\s*(?:{_WORD}))*)\s*;\s*",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(rf"([\w.]+)\s*=\s*({_WORD})")


def jaas_options(text: str) -> dict[str, str] | None:
    """The options of a login module, as `sasl.jaas.config` names it (Kafka's JaasConfig); None
    where it is something else."""
    found = _MODULE.fullmatch(text)
    if found is None:
        return None
    return {name: _unquoted(value) for name, value in _OPTION.findall(found[1])}


def _unquoted(word: str) -> str:
    if word[0] not in "\"'":
        return word
    return re.sub(r"\\(.)", r"\1", word[1:-1], flags=re.DOTALL)


# --- files ---


def read_properties(file: Path) -> dict[str, str]:
    """A file of properties as Java writes them (java.util.Properties), in UTF-8. Raises
    PropertyError."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise PropertyError(f"{file} cannot be read: {reason}.") from error
    found = {}
    for line in _lines(text):
        name, value = _split(line)
        found[_unescaped(name)] = _unescaped(value)
    return found


def _lines(text: str) -> Iterator[str]:
    """Without comments and empty ones; a backslash at its end joins a line with the next."""
    begun = ""
    for whole in re.split(r"\r\n|\r|\n", text):
        line = whole.lstrip(" \t\f")
        if not begun and (not line or line[0] in "#!"):
            continue
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun += line[:-1]
            continue
        yield begun + line
        begun = ""
    if begun:
        yield begun


_SPLIT: Final = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPECIAL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _split(line: str) -> tuple[str, str]:
    found = _SPLIT.fullmatch(line)
    assert found is not None, "it matches every text"
    return found[1], found[2]


def _unescaped(text: str) -> str:
    def meant(found: re.Match[str]) -> str:
        said = found[1]
        return chr(int(said[1:], 16)) if len(said) > 1 else _SPECIAL.get(said, said)

    return _ESCAPED.sub(meant, text)

"""Kafka's client properties: what they say of TLS and a login, and files of them as Java reads."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from penstock.connecting import (
    Connecting,
    Login,
    PropertyError,
    Tls,
    connecting,
    jaas_options,
    read_properties,
)
from penstock.tokens import TokenSource
from tests.certificates import Authority

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{MODULE} required username="alice" password="secret";'
SCRAM = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS}
ALICE = Login("SCRAM-SHA-256", "alice", "secret")
BEARER = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT = {
    "sasl.oauthbearer.client.credentials.client.id": "robot",
    "sasl.oauthbearer.client.credentials.client.secret": "secret",
}
TRUSTED = Tls("/ca", check_hostname=True)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, Connecting()),
        ({"acks": "all", "security.protocol": "plaintext"}, Connecting()),
        (SCRAM, Connecting()),  # as with Kafka's: nobody asks
        ({"security.protocol": "SSL"}, Connecting(Tls(None, check_hostname=True))),
        (
            {
                "security.protocol": "SSL",
                "ssl.truststore.location": "/ca",
                "ssl.endpoint.identification.algorithm": "",
            },
            Connecting(Tls("/ca", check_hostname=False)),
        ),
        (SCRAM | {"security.protocol": "SASL_PLAINTEXT"}, Connecting(None, ALICE)),
        (
            SCRAM | {"security.protocol": "sasl_ssl", "ssl.truststore.location": "/ca"},
            Connecting(TRUSTED, ALICE),
        ),
    ],
)
def test_properties(given: dict[str, str], found: Connecting) -> None:
    assert connecting(given) == found
    prefixed = {f"kafka.{name}": value for name, value in given.items()}
    assert connecting(prefixed | {"ssl.else": "x"}, "kafka.") == found


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"security.protocol": "TLS"}, r"security\.protocol is PLAINTEXT, SSL, .* not 'TLS'"),
        ({"ssl.protocol": "TLSv1.3"}, r"ssl\.protocol is not known here. There are:"),
        ({"ssl.keystore.type": "PKCS12"}, r"ssl\.keystore\.type is PEM"),
        ({"ssl.keystore.key": "k"}, "go together"),
        ({"ssl.keystore.location": "k", "ssl.keystore.key": "k"}, "say the same"),
        ({"ssl.truststore.location": "k", "ssl.truststore.certificates": "k"}, "say the same"),
        ({"sasl.username": "a"}, r"sasl\.username is not known here"),
        ({"ssl.truststore.type": "JKS"}, "is PEM"),
        ({"ssl.endpoint.identification.algorithm": "none"}, "is https or empty"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism is PLAIN, .* not nothing"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            r"sasl\.mechanism is PLAIN, .* or OAUTHBEARER, not 'GSSAPI'",
        ),
        (BEARER, r"sasl\.oauthbearer\.token\.endpoint\.url is https://… .*, not ''"),
        (BEARER | {URL: "ftp://issuer/"}, "is https://… of an issuer"),
        (BEARER | {URL: "https://issuer/"}, "client.id and sasl.* say as whom"),
        (
            BEARER | {URL: "https://issuer/", "sasl.jaas.config": 'a.b required clientId="x";'},
            "client.id and sasl.* say as whom",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"},
            r"sasl\.jaas\.config is, in one line: org",
        ),
        (
            {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{MODULE} required username="alice";',
            },
            r"sasl\.jaas\.config is",
        ),
    ],
)
def test_what_is_wrong_is_said(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(PropertyError, match=sentence):
        connecting(given)


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({URL: "file:///run/token"}, TokenSource("file:///run/token")),
        (
            {URL: "https://issuer/t", **CLIENT, "sasl.oauthbearer.scope": "s"},
            TokenSource("https://issuer/t", "robot", "secret", "s"),
        ),
        (
            {
                URL: "http://issuer/t",
                "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer."
                'OAuthBearerLoginModule required clientId="robot" clientSecret="secret" scope="s";',
                "sasl.login.callback.handler.class": "for.Java",
            },
            TokenSource("http://issuer/t", "robot", "secret", "s"),
        ),
    ],
)
def test_where_tokens_come_from(given: dict[str, str], tokens: TokenSource) -> None:
    login = connecting(BEARER | given).login
    assert login is not None
    assert login.tokens == tokens
    assert "secret" not in repr(login)
    if tokens.client_id:
        assert login.user == "robot"


def test_a_password_is_shown_nowhere() -> None:
    given = SCRAM | {"security.protocol": "SASL_PLAINTEXT"}
    assert "secret" not in repr(connecting(given))
    broken = given | {"sasl.jaas.config": JAAS.replace(";", "")}
    with pytest.raises(PropertyError) as raised:
        connecting(broken)
    assert "secret" not in str(raised.value)


def in_one_line(pem: str) -> str:
    """As a file of properties has it where each line ends with a backslash."""
    return "".join(pem.split("\n"))


@pytest.mark.parametrize("how", ["file", "text", "one line"])
@pytest.mark.parametrize("password", ["", "swordfish"])
def test_a_certificate_is_read_in_each_form(tmp_path: Path, how: str, password: str) -> None:
    authority = Authority.made(tmp_path)
    key, certificate = authority.issued("CN=alice")
    lock = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock).decode()
    chain = certificate.public_bytes(Encoding.PEM).decode()
    given = {"security.protocol": "SSL", "ssl.truststore.certificates": authority.pem.decode()}
    if how == "file":
        (tmp_path / "alice.pem").write_text(pem + chain)
        given["ssl.keystore.location"] = str(tmp_path / "alice.pem")
    else:
        as_said = in_one_line if how == "one line" else str
        given["ssl.keystore.key"] = as_said(pem)
        given["ssl.keystore.certificate.chain"] = as_said(chain)
    if password:
        given["ssl.key.password"] = password
    tls = connecting(given).tls
    assert tls is not None
    assert len(tls.context().get_ca_certs()) == 1
    assert "swordfish" not in repr(tls)
    assert "PRIVATE" not in repr(tls)
    if password:
        wrong = connecting(given | {"ssl.key.password": "wrong"}).tls
        assert wrong is not None
        with pytest.raises(PropertyError, match=r"with ssl\.key\.password if") as raised:
            wrong.context()
        assert "wrong" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (JAAS, {"username": "alice", "password": "secret"}),
        ("a.B  REQUIRED\n u = x\n p='y z' ;\n", {"u": "x", "p": "y z"}),
        (r"""a.B required p="with \"quotes\", = ; and \\";""", {"p": 'with "quotes", = ; and \\'}),
        ("a.B required;", {}),
        ("a.B required", None),
        ("a.B username=x;", None),
        ("a.B required u=x; a.C required u=y;", None),
        ("", None),
    ],
)
def test_jaas(text: str, options: dict[str, str] | None) -> None:
    assert jaas_options(text) == options


def test_a_file_as_java_writes_it(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# a comment\n"
        "! another\n\n"
        "plain=value with = and :  \n"
        "  spaced   :   out\n"
        "by-space value\n"
        "empty\n"
        "long = one \\\n"
        "    two \\\n"
        "# no comment\n"
        "even = \\\\\n"
        "with\\ space\\=and\\:=\\u00e9\\tü\n",
        "utf-8",
    )
    assert read_properties(file) == {
        "plain": "value with = and :  ",
        "spaced": "out",
        "by-space": "value",
        "empty": "",
        "long": "one two # no comment",
        "even": "\\",
        "with space=and:": "é\tü",
    }


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PropertyError, match="cannot be read: No such file"):
        read_properties(tmp_path / "none")
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\xff")
    with pytest.raises(PropertyError, match="it is not UTF-8"):
        read_properties(wrong)

"""Kafka's client properties: what they say of TLS and a login, and files of them as Java reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.connecting import (
    Connecting,
    Login,
    PropertyError,
    Tls,
    connecting,
    jaas_options,
    read_properties,
)

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = f'{MODULE} required username="alice" password="secret";'
SCRAM = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": JAAS}
ALICE = Login("SCRAM-SHA-256", "alice", "secret")
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
        ({"ssl.keystore.location": "k"}, r"ssl\.keystore\.location is not known here. There are:"),
        ({"sasl.username": "a"}, r"sasl\.username is not known here"),
        ({"ssl.truststore.type": "JKS"}, "is PEM"),
        ({"ssl.endpoint.identification.algorithm": "none"}, "is https or empty"),
        ({"security.protocol": "SASL_SSL"}, r"sasl\.mechanism is PLAIN, .* not nothing"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"},
            r"sasl\.mechanism is PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512, not 'GSSAPI'",
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


def test_a_password_is_shown_nowhere() -> None:
    given = SCRAM | {"security.protocol": "SASL_PLAINTEXT"}
    assert "secret" not in repr(connecting(given))
    broken = given | {"sasl.jaas.config": JAAS.replace(";", "")}
    with pytest.raises(PropertyError) as raised:
        connecting(broken)
    assert "secret" not in str(raised.value)


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

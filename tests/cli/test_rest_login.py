"""As whom a command asks Pulsar's REST: the files that say it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from cli.rest_login import RestLogin, read_rest_login
from penstock.connecting import Certificate, PropertyError

PLUGIN = "authPlugin=org.apache.pulsar.client.impl.auth.Authentication"
JAAS = (
    "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="p:w";\n'
)
HERE = "http://127.0.0.1:8080/admin"
BASIC = {"authorization": f"Basic {base64.b64encode(b'alice:p:w').decode()}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "client.conf"


def login(file: Path, text: str) -> RestLogin:
    file.write_text(text)
    return read_rest_login(file)


def test_a_token_is_given_in_pulsars_ways(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = file.with_name("my token")
    token.write_text("a.b.c\n")
    monkeypatch.setenv("MINE", "a.b.c")
    for params in ("token:a.b.c", token.as_uri(), "env:MINE", '{"token":"a.b.c"}', "a.b.c"):
        found = login(file, f"{PLUGIN}Token\nauthParams={params}\n")
        assert found.headers_to("http://broker.example") == {"authorization": "Bearer a.b.c"}
        assert "a.b.c" not in repr(found)


def test_a_password_is_given_in_pulsars_way_and_in_kafkas(file: Path) -> None:
    params = 'authParams={"userId":"alice","password":"p:w"}\n'
    assert login(file, f"{PLUGIN}Basic\n{params}").headers_to(HERE) == BASIC
    plain = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nssl.truststore.location=/ca.pem\n"
    found = login(file, plain + JAAS)
    assert found.headers_to("http://broker.example") == BASIC
    assert found.certificate == Path("/ca.pem")
    assert login(file, "tlsTrustCertsFilePath=/ca.pem\n") == RestLogin(certificate=Path("/ca.pem"))


def test_the_password_of_a_scram_login_is_not_shown_to_others(file: Path) -> None:
    scram = "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
    found = login(file, scram + JAAS)
    for url in (HERE, "http://localhost:8080", "http://[::1]:8080", "https://broker.example"):
        assert found.headers_to(url) == BASIC
    with pytest.raises(PropertyError, match=r"sent to broker.example:8080 in plain text") as raised:
        found.headers_to("http://broker.example:8080/admin")
    assert "p:w" not in str(raised.value)


def test_a_certificate_is_given_in_pulsars_way_and_in_kafkas(file: Path) -> None:
    for name in ("cert.pem", "key.pem"):
        file.with_name(name).write_text(name)
    cert, key = file.with_name("cert.pem"), file.with_name("key.pem")
    for params in (
        f"tlsCertFile:{cert},tlsKeyFile:{key}",
        json.dumps({"tlsCertFile": str(cert), "tlsKeyFile": str(key)}),
    ):
        found = login(file, f"{PLUGIN}Tls\nauthParams={params}\n")
        assert found.shows == Certificate(chain="cert.pem", key="key.pem")
        assert found.headers_to(HERE) == {}
    found = login(file, f"security.protocol=SSL\nssl.keystore.location={cert}\n")
    assert found.shows == Certificate(str(cert))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("authPlugin=athenz\n", "not 'athenz'"),
        (f"{PLUGIN}Token\n", "there is no token in it"),
        (f"{PLUGIN}Token\nauthParams=file:///missing\n", "/missing cannot be read: No such"),
        (f"{PLUGIN}Token\nauthParams=token:a\\nb\n", "there is no token in it"),
        (f'{PLUGIN}Basic\nauthParams={{"userId":"a"}}\n', "authParams is "),
        (f"{PLUGIN}Basic\nauthParams=a:b\n", "authParams is "),
        (f"{PLUGIN}Tls\nauthParams=tlsCertFile:/x\n", "authParams is tlsCertFile"),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            "sasl.oauthbearer.token.endpoint.url=file:///run/token\n",
            "Tokens of an issuer are for Kafka's listeners",
        ),
    ],
)
def test_what_is_missing_is_said(file: Path, text: str, sentence: str) -> None:
    with pytest.raises(PropertyError, match=sentence):
        login(file, text)

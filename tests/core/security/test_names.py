"""Names of certificates, and whom they stand for: as Java and Apache Kafka have them."""

from __future__ import annotations

import contextlib
import subprocess
import warnings
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from compat.java import tools
from core.config.types import ConfigError
from core.security.names import (
    MalformedName,
    common_name_of,
    distinguished_name,
    subject_of,
)
from core.security.principal_mapping import read_mapping
from tests.certificates import Authority, named

JAVA = Path(__file__).with_name("CertificateNames.java")


def part(
    value: str, oid: x509.ObjectIdentifier = NameOID.COMMON_NAME, kind: str = ""
) -> x509.RelativeDistinguishedName:
    given = _ASN1Type[kind] if kind else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengths that RFC 5280 does not like
        attribute = x509.NameAttribute(oid, value, given, _validate=False)
    return x509.RelativeDistinguishedName([attribute])


def several(*parts: x509.RelativeDistinguishedName) -> x509.RelativeDistinguishedName:
    return x509.RelativeDistinguishedName([each for one in parts for each in one])


NAMES = {
    "plain": named("CN=alice,OU=Ops,O=Penstock,L=Graz,ST=Styria,C=AT"),
    "comma": x509.Name([part("Doe, Jane"), part("Rivers, Inc.", NameOID.ORGANIZATION_NAME)]),
    "umlauts": x509.Name([part("Jörg Müßig 𝄞")]),
    "plus": x509.Name([part("a+b=c")]),
    "every special": x509.Name([part('q"<x>;y#z\\\\ =')]),
    "blanks": x509.Name([part("  two before, one after ")]),
    "only blanks": x509.Name([part("   ")]),
    "returns": x509.Name([part("\r a \r")]),
    "hash first": x509.Name([part("#7")]),
    "nul": x509.Name([part("a\0b")]),
    "control": x509.Name([part("a\tb\nc\x7f")]),
    "of several": x509.Name(
        [part("at", NameOID.DOMAIN_COMPONENT), several(part("a, b"), part("7", NameOID.USER_ID))]
    ),
    "street": x509.Name([part("Ring 1", NameOID.STREET_ADDRESS)]),
    "of no keyword": x509.Name(
        [
            part("a@b.at", NameOID.EMAIL_ADDRESS),
            part("ser", NameOID.SERIAL_NUMBER),
            part("Dr", NameOID.TITLE),
            part("Roe", NameOID.SURNAME),
            part("own", x509.ObjectIdentifier("1.3.6.1.4.1.99999.2147483647.1")),
            part("bob"),
        ]
    ),
    "printable": x509.Name([part("alice", kind="PrintableString")]),
    "ia5": x509.Name([part("alice", kind="IA5String")]),
    "teletex": x509.Name([part("alice", kind="T61String")]),
    "bmp": x509.Name([part("Jö", kind="BMPString")]),
    "universal": x509.Name([part("alice", kind="UniversalString")]),
    "visible": x509.Name([part("alice", kind="VisibleString")]),
    "empty": x509.Name([]),
    "empty value": x509.Name([part(""), part("x")]),
    "long": x509.Name([part("x" * 32_000)]),
}

RULES = (
    ("DEFAULT", "CN=alice,O=Penstock"),
    ("RULE:^CN=(.*?),.*$/$1/", "CN=alice,O=Penstock"),
    ("RULE:^CN=(.*?),.*$/$1/U", "CN=alice,O=Penstock"),
    ("RULE:^CN=(.*?),OU=(.*?)$/$2-$1/L, DEFAULT", "CN=Alice,OU=Ops"),
    ("RULE:^CN=(.*?),OU=(.*?)$/$2-$1/L, DEFAULT", "CN=Alice,O=Ops"),
    ("RULE:^CN=(.*?)$/$1/", "O=nobody"),
    ("RULE:.*/x/", "CN=alice"),
    ("RULE:^CN=([^,]*),.*$/$1$2/", "CN=alice,O=x"),
    ("RULE:^CN=([^,]*),.*$/\\$1/", "CN=alice,O=x"),
    ("RULE:^CN=a\\/b$/c\\/d/", "CN=a/b"),
    ("RULE:^CN=a\\,b$/c/,DEFAULT", "CN=a,b"),
    ("  RULE:^CN=b$/c/ ,  RULE:^CN=a$/d/ ", "CN=a"),
    ("RULE:^CN=(\\w+)$/$1@x.at/", "CN=jane"),
    ("RULE:^(CN)=(a)$/$11/", "CN=a"),
    ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L", "O=x,CN=Carol.D,C=AT"),
)


def java(lines: Sequence[str]) -> list[str]:
    """What Java says to each line."""
    command = [tools.find_java(), *tools.SHORT_LIVED, "-cp", tools.classes(JAVA, tools.POM)]
    done = subprocess.run(
        [*command, JAVA.stem], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    return [b64decode(line).decode() for line in done.stdout.splitlines()]


def in_base64(*given: bytes) -> str:
    return " ".join(b64encode(each).decode() for each in given)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """By what is in their names: DER."""
    authority = Authority.made(tmp_path_factory.mktemp("names"))
    return {
        what: authority.issued(name)[1].public_bytes(Encoding.DER) for what, name in NAMES.items()
    }


@pytest.mark.java
def test_names_and_mappings_are_javas(certificates: dict[str, bytes]) -> None:
    ours = [subject_of(each) for each in certificates.values()]
    ours += [read_mapping(rules).user_of(name) or "!" for rules, name in RULES]
    theirs = java(
        [
            *(in_base64(each) for each in certificates.values()),
            *(in_base64(rules.encode(), name.encode()) for rules, name in RULES),
        ]
    )
    assert dict(zip([*certificates, *RULES], ours, strict=True)) == dict(
        zip([*certificates, *RULES], theirs, strict=True)
    )


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("plain", "CN=alice,OU=Ops,O=Penstock,L=Graz,ST=Styria,C=AT"),
        ("comma", "O=Rivers\\, Inc.,CN=Doe\\, Jane"),
        ("umlauts", "CN=Jörg Müßig 𝄞"),
        ("of several", "CN=a\\, b+UID=7,DC=at"),
        ("blanks", "CN=\\ \\ two before\\, one after\\ "),
        ("nul", "CN=a\\00b"),
        ("universal", "CN=#1c14000000610000006c000000690000006300000065"),
        ("empty", ""),
    ],
)
def test_a_name_is_spelt_as_rfc_2253_says(
    certificates: dict[str, bytes], what: str, name: str
) -> None:
    assert subject_of(certificates[what]) == name


def test_a_name_without_its_number_s_keyword_is_in_hexadecimal() -> None:
    name = x509.Name([part("a@b.at", NameOID.EMAIL_ADDRESS)]).public_bytes()
    assert distinguished_name(name) == "1.2.840.113549.1.9.1=#16066140622e6174"


@given(st.data())
def test_what_is_cut_or_changed_is_a_name_or_malformed(data: st.DataObject) -> None:
    whole = NAMES["of several"].public_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    changed = bytearray(whole[:cut])
    if changed:
        changed[data.draw(st.integers(0, cut - 1))] = data.draw(st.integers(0, 255))
    for read in (distinguished_name, subject_of):
        with contextlib.suppress(MalformedName):
            assert isinstance(read(bytes(changed)), str)


@pytest.mark.parametrize(
    "text",
    ["", "RULE:a/b", "NONE", "DEFAULT DEFAULT", "RULE:(/x/", "RULE:a/b/X", "DEFAULT,RULE:a"],
)
def test_rules_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="mapping"):
        read_mapping(text)


@pytest.mark.parametrize(
    ("name", "common"),
    [
        ("CN=alice,O=Flights", "alice"),
        ("O=Flights,CN=alice", "alice"),
        ("CN=Jörg M\\, Ops\\+x,O=Rivers", "Jörg M, Ops+x"),
        ("CN=b\\,CN=admin,O=Rivers", "b,CN=admin"),  # one CN, with a comma in it
        ("CN=first,OU=x,CN=last", "first"),  # in this form the last part of the name is first
        ("OU=x+CN=alice,O=Rivers", "alice"),
        ("O=CN=admin", None),
        ("UID=7,O=Rivers", None),
    ],
)
def test_a_client_of_pulsars_is_known_by_its_cn(
    name: str, common: str | None, tmp_path: Path
) -> None:
    _, certificate = Authority.made(tmp_path).issued(name)
    assert common_name_of(certificate.public_bytes(Encoding.DER)) == common


@given(st.binary(max_size=60))
def test_what_is_no_certificate_has_no_cn(data: bytes) -> None:
    with contextlib.suppress(MalformedName):
        assert common_name_of(data) is None

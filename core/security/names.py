"""The name of who holds a certificate, spelt as Java spells it (X500Principal.getName, RFC 2253).

ACLs name principals by this text, so it has to be the same letter by letter: the last part first,
keywords for few attributes, everything else by number and in hexadecimal. Reads DER as far as the
subject; whether a certificate is good is for TLS to say. Knows no file and no library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0  # [0], absent in certificates of version 1
_FIELDS_BEFORE_SUBJECT: Final = 4  # serial number, algorithm, issuer, validity

_COMMON_NAME: Final = "2.5.4.3"
_KEYWORDS: Final = {
    _COMMON_NAME: "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# Java's choice (AVA.isDerString). It takes the bytes of each for UTF-8, also of those that are not.
_TEXTS: Final = {
    0x0C: "UTF8String",
    0x13: "PrintableString",
    0x14: "TeletexString",
    0x16: "IA5String",
    0x1B: "GeneralString",
    0x1E: "BMPString",
}
_PLAIN_TEXTS: Final = (0x0C, 0x13, 0x16)  # those of them that are UTF-8, or a part of it
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_BLANK: Final = " \r"


class MalformedName(ValueError):
    """The bytes are no certificate, or no name."""


class _Value(NamedTuple):
    """One value of DER. whole: with its tag and length."""

    tag: int
    content: memoryview
    whole: memoryview


def subject_of(certificate: bytes) -> str:
    """The subject's name in RFC 2253's form. certificate: DER. Raises MalformedName."""
    return distinguished_name(_subject(certificate))


def common_name_of(certificate: bytes) -> str | None:
    """The subject's last CN, which is the first one in RFC 2253's form; None where it has none.

    By it Pulsar knows clients (AuthenticationProviderTls); a comma in it ends no name here.
    certificate: DER. Raises MalformedName.
    """
    found = None
    try:
        for part in _within(_only(memoryview(_subject(certificate)), _SEQUENCE)):
            for attribute in _within(part.content):
                kind, value = _within(attribute.content)
                if _object_identifier(kind.content) == _COMMON_NAME and value.tag in _PLAIN_TEXTS:
                    found = bytes(value.content).decode()
    except (IndexError, ValueError) as error:  # of UTF-8, too
        raise MalformedName("it is no name") from error
    return found


def _subject(certificate: bytes) -> bytes:
    """DER of the subject's name."""
    try:
        to_be_signed = next(_within(_only(memoryview(certificate), _SEQUENCE)))
        fields = _within(to_be_signed.content)
        first = next(fields)
        if first.tag == _VERSION:
            next(fields)
        for _ in range(_FIELDS_BEFORE_SUBJECT - 1):
            next(fields)
        return bytes(next(fields).whole)
    except (StopIteration, IndexError, ValueError) as error:  # of unpacking, too
        raise MalformedName("it is no certificate") from error


def distinguished_name(name: bytes) -> str:
    """A name in RFC 2253's form. name: DER of X.501's Name. Raises MalformedName."""
    try:
        parts = [_relative_name(part) for part in _within(_only(memoryview(name), _SEQUENCE))]
    except (IndexError, ValueError) as error:
        raise MalformedName("it is no name") from error
    return ",".join(reversed(parts))


def _relative_name(part: _Value) -> str:
    if part.tag != _SET:
        raise MalformedName("a part of the name is no set")
    return "+".join(_attribute(each) for each in _within(part.content))


def _attribute(attribute: _Value) -> str:
    kind, value = _within(attribute.content)
    if kind.tag != _OBJECT_IDENTIFIER:
        raise MalformedName("an attribute of the name has no type")
    number = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(bytes(value.content).decode(errors='replace'))}"


def _escaped(text: str) -> str:
    """The characters of RFC 2253, = and every # as well; blanks at both ends only."""
    bare = text.strip(_BLANK)
    before = text[: len(text) - len(text.lstrip(_BLANK))]
    after = text[len(before) + len(bare) :]
    middle = "".join(
        f"\\{each}" if each in _ESCAPED else "\\00" if each == "\0" else each for each in bare
    )
    return "".join(f"\\{each}" for each in before) + middle + "".join(f"\\{each}" for each in after)


def _object_identifier(content: memoryview) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _only(data: memoryview, tag: int) -> memoryview:
    """The content of the one value that is there."""
    found, *others = _within(data)
    if found.tag != tag or others:
        raise MalformedName("it does not begin as it should")
    return found.content


def _within(data: memoryview) -> Iterator[_Value]:
    """One value after another."""
    at = 0
    while at < len(data):
        size, start = data[at + 1], at + 2
        if size & 0x80:  # so many bytes have the size
            count = size & 0x7F
            size = int.from_bytes(data[start : start + count], "big")
            start += count
        end = start + size
        if end > len(data):
            raise MalformedName("it is cut short")
        yield _Value(data[at], data[start:end], data[at:end])
        at = end

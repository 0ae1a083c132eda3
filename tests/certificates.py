"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

DAY = datetime.timedelta(days=1)


def named(text: str) -> x509.Name:
    """Of a name in RFC 4514's form."""
    return x509.Name.from_rfc4514_string(text)


def key_in_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Without a password."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True, slots=True)
class Authority:
    """One that signs; it has no file of its own. directory: for what it signs."""

    directory: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, directory: Path, name: str = "CN=Authority") -> Self:
        """A new one, signed by itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _of(named(name), named(name), key, -1, 3650)
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        return cls(directory, key, builder.sign(key, hashes.SHA256()))

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issued(
        self, name: str | x509.Name, *, begins: int = -1, ends: int = 30, host: str = ""
    ) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """A key and its certificate. begins, ends: in days from now. host: one that it is of."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = named(name) if isinstance(name, str) else name
        builder = _of(subject, self.certificate.subject, key, begins, ends)
        if host:
            names = x509.SubjectAlternativeName([x509.DNSName(host)])
            builder = builder.add_extension(names, critical=False)
        return key, builder.sign(self.key, hashes.SHA256())

    def write(
        self, file: str, name: str, *, begins: int = -1, ends: int = 30, host: str = ""
    ) -> Path:
        """A file with a new key and its certificate; the certificate alone is beside it, `.crt`."""
        key, certificate = self.issued(name, begins=begins, ends=ends, host=host)
        path = self.directory / file
        pem = certificate.public_bytes(Encoding.PEM)
        path.write_bytes(key_in_pem(key) + pem)
        path.with_suffix(".crt").write_bytes(pem)
        return path

    def write_of_version_2(self, file: str, name: str) -> Path:
        """As `write`, of a version that OpenSSL takes and `cryptography` does not read."""
        key, made = self.issued(name)
        signed = made.tbs_certificate_bytes.replace(b"\xa0\3\2\1\2", b"\xa0\3\2\1\1", 1)
        with_sha256 = bytes.fromhex("300a06082a8648ce3d040302")
        signature = b"\0" + self.key.sign(signed, ec.ECDSA(hashes.SHA256()))
        content = signed + with_sha256 + bytes((3, len(signature))) + signature
        path = self.directory / file
        der = b"\x30\x82" + len(content).to_bytes(2, "big") + content
        path.write_bytes(key_in_pem(key) + ssl.DER_cert_to_PEM_cert(der).encode())
        return path

    def write_list(self, *revoked: Path, file: str = "revoked.crl", ends: int = 30) -> Path:
        """A file with the list of what it takes back. ends: in days from now."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - 9 * DAY)
            .next_update(now + ends * DAY)
        )
        for each in revoked:
            number = x509.load_pem_x509_certificate(each.read_bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        path = self.directory / file
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path

    def write_own(self, file: str = "authority.crt") -> Path:
        """A file with its own certificate."""
        path = self.directory / file
        path.write_bytes(self.pem)
        return path


def _of(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: int, ends: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + ends * DAY)
    )

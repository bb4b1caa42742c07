"""Certificates by the library `cryptography`: an authority that signs them, and what is in one. No files are read or written here.

Made as OpenSSL's strict checks want it (`VERIFY_X509_STRICT`, RFC 5280): key identifiers, key usage, and basic constraints that are critical
where they must be.
"""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from parley.certs.names import AltName, CertificateSpec, meanings, name_faults

CLOCK_SKEW: Final = timedelta(minutes=5)
"""Certificates hold from so long ago: other machines' clocks are a little behind."""
_MAX_COMMON_NAME: Final = 64
_AUTHORITY_TITLE: Final = "Parley development authority"

PrivateKey = ec.EllipticCurvePrivateKey


class CertificateError(ValueError):
    """PEM that cannot be used; the message says why and quotes no content."""


@dataclass(frozen=True, slots=True)
class SeenCertificate:
    """A certificate as it was read."""

    subject: str
    issuer: str
    serial: str
    names: tuple[AltName, ...]
    not_before: datetime
    not_after: datetime
    key: str
    usages: tuple[str, ...]
    is_authority: bool
    fingerprint: str
    """SHA-256 of the whole certificate, in hexadecimal digits."""
    has_authority_key_id: bool

    def is_for(self, usage: str) -> bool:
        return not self.usages or usage in self.usages

    def meanings(self) -> tuple[str, ...]:
        return tuple(meanings(self.names, **self._uses()))

    def faults(self, now: datetime) -> tuple[str, ...]:
        """Why it cannot be used now."""
        found = []
        if now > self.not_after:
            found.append("it has expired")
        if now < self.not_before:
            found.append("it is not valid yet")
        if not self.is_authority and not self.has_authority_key_id:
            found.append("it lacks the key identifier of its authority, which strict peers want")
        return (*found, *name_faults(self.names, **self._uses()))

    def _uses(self) -> dict[str, bool]:
        return {
            "is_client": self.is_for("clientAuth"),
            "is_server": self.is_for("serverAuth"),
            "is_authority": self.is_authority,
        }


def new_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: PrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(pem: bytes) -> PrivateKey:
    """Raises `CertificateError`."""
    try:
        found = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise CertificateError("holds no private key in PEM without a password") from None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise CertificateError("holds a key that is none of an elliptic curve")
    return found


class Authority:
    """Signs certificates; `certificate` is what others trust."""

    def __init__(self, certificate: x509.Certificate, key: PrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def new(cls, now: datetime, days: float) -> Self:
        key = new_key()
        name = _title(_AUTHORITY_TITLE)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        made = (
            _builder(name, name, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(made, key)

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Self:
        """The authority of two files. Raises `CertificateError`."""
        (first, *others) = _parsed(certificate)
        found = read_key(key)
        if others:
            raise CertificateError("holds several certificates, where the authority's own is wanted")
        if not _seen(first).is_authority:
            raise CertificateError("holds a certificate that may sign no others")
        if first.public_key() != found.public_key():
            raise CertificateError("belongs to another key than the one beside it")
        return cls(first, found)

    def has_issued(self, certificate: bytes) -> bool:
        """Whether this authority has signed the first certificate in PEM. Raises `CertificateError`."""
        try:
            _parsed(certificate)[0].verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    @property
    def certificate(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key(self) -> bytes:
        return key_pem(self._key)

    @property
    def not_after(self) -> datetime:
        return self._certificate.not_valid_after_utc

    def issue(self, asked: CertificateSpec, key: PrivateKey, now: datetime, days: float) -> bytes:
        """A certificate for the public half of `key`."""
        usages = [
            usage
            for usage, is_wanted in (
                (ExtendedKeyUsageOID.CLIENT_AUTH, asked.is_client),
                (ExtendedKeyUsageOID.SERVER_AUTH, asked.is_server),
            )
            if is_wanted
        ]
        own = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        return (
            _builder(_title(asked.title), self._certificate.subject, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(map(_general_name, asked.names)), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False
            )
            .sign(self._key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )


def is_pair(certificate: bytes, key: PrivateKey) -> bool:
    """Whether the first certificate belongs to the key. Raises `CertificateError`."""
    return _parsed(certificate)[0].public_key() == key.public_key()


def read(pem: bytes) -> list[SeenCertificate]:
    """Every certificate of a file, in its order. Raises `CertificateError`."""
    return [_seen(each) for each in _parsed(pem)]


def _parsed(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise CertificateError("holds no certificate in PEM") from None


def _seen(certificate: x509.Certificate) -> SeenCertificate:
    try:
        extensions = {type(each.value): each.value for each in certificate.extensions}
        subject, issuer = certificate.subject.rfc4514_string(), certificate.issuer.rfc4514_string()
        key = _key_text(certificate)
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        raise CertificateError("holds a certificate whose parts cannot be read") from None
    names = extensions.get(x509.SubjectAlternativeName)
    usage = extensions.get(x509.ExtendedKeyUsage)
    constraints = extensions.get(x509.BasicConstraints)
    return SeenCertificate(
        subject=subject,
        issuer=issuer,
        serial=format(certificate.serial_number, "x"),
        names=_alt_names(names) if isinstance(names, x509.SubjectAlternativeName) else (),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        key=key,
        usages=tuple(map(_usage_name, usage)) if isinstance(usage, x509.ExtendedKeyUsage) else (),
        is_authority=isinstance(constraints, x509.BasicConstraints) and constraints.ca,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
        has_authority_key_id=x509.AuthorityKeyIdentifier in extensions,
    )


def _key_text(certificate: x509.Certificate) -> str:
    match certificate.public_key():
        case ec.EllipticCurvePublicKey(curve=curve):
            return f"EC {curve.name}"
        case rsa.RSAPublicKey(key_size=bits):
            return f"RSA {bits}"
        case ed25519.Ed25519PublicKey():
            return "Ed25519"
        case ed448.Ed448PublicKey():
            return "Ed448"
        case _:
            return "another kind"


def _alt_names(names: x509.SubjectAlternativeName) -> tuple[AltName, ...]:
    """The names of kinds that Parley knows."""
    found = [
        *(AltName("URI", each) for each in names.get_values_for_type(x509.UniformResourceIdentifier)),
        *(AltName("DNS", each) for each in names.get_values_for_type(x509.DNSName)),
        *(AltName("IP", str(each)) for each in names.get_values_for_type(x509.IPAddress)),
    ]
    return tuple(found)


def _usage_name(usage: x509.ObjectIdentifier) -> str:
    known = {ExtendedKeyUsageOID.CLIENT_AUTH: "clientAuth", ExtendedKeyUsageOID.SERVER_AUTH: "serverAuth"}
    return known.get(usage, usage.dotted_string)


def _general_name(name: AltName) -> x509.GeneralName:
    match name.kind:
        case "URI":
            return x509.UniformResourceIdentifier(name.value)
        case "DNS":
            return x509.DNSName(name.value)
        case "IP":
            return x509.IPAddress(ipaddress.ip_address(name.value))


def _title(text: str) -> x509.Name:
    """A distinguished name; a common name has 64 characters at most (RFC 5280, ub-common-name)."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_MAX_COMMON_NAME])])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: float
) -> x509.CertificateBuilder:
    now = now.astimezone(UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """An authority signs certificates, all others signatures of handshakes: with elliptic curves nothing is encrypted by the key."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )

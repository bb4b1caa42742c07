"""Certificates of the benchmarks: an authority, the server's, and one for each caller."""

from collections.abc import Mapping
from pathlib import Path

import trustme


def write(directory: Path, callers: Mapping[str, str]) -> None:
    """Write `ca.crt`, `server.crt` and `server.key`, and for each caller, by its SAN, `NAME.pem` with certificate and key."""
    ecdsa = trustme.KeyType.ECDSA
    authority = trustme.CA(key_type=ecdsa)
    authority.cert_pem.write_to_path(directory / "ca.crt")
    own = authority.issue_cert("localhost", "127.0.0.1", key_type=ecdsa)
    own.cert_chain_pems[0].write_to_path(directory / "server.crt")
    own.private_key_pem.write_to_path(directory / "server.key")
    for name, identity in callers.items():
        made = authority.issue_cert(identity, key_type=ecdsa)
        made.private_key_and_cert_chain_pem.write_to_path(directory / f"{name}.pem")

"""The files of `parley certs`, and its output.

A directory holds the authority (`ca.crt`, `ca.key`) and a folder for each certificate with `tls.crt`, `tls.key` and `ca.crt`: the names of a
Secret of the type kubernetes.io/tls. Folders are 0700 and files 0600. A file is replaced as a whole, so a running program finds the old one
or the new one.
"""

import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import click

from parley.certs import issuing
from parley.certs.issuing import Authority, CertificateError, SeenCertificate
from parley.certs.names import CertificateSpec
from parley.listing import output as outputs
from parley.top.texts import MAX_LINE, clean

AUTHORITY, AUTHORITY_KEY = "ca.crt", "ca.key"
CERTIFICATE, KEY = "tls.crt", "tls.key"
MAX_BYTES: Final = 2**20
SOON: Final = timedelta(days=2)
"""A certificate that ends sooner is shown in another colour."""


class FileFaultsError(Exception):
    """Files cannot be used, each with the reason."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


def create(
    directory: Path, wanted: Sequence[CertificateSpec], *, days: float, authority_days: float, replaces: bool
) -> int:
    """Make the certificates, and the authority if there is none; the exit code."""

    def make() -> int:
        now = datetime.now(UTC)
        faults = [*_directory_faults(directory)]
        authority: Authority | None = None
        has_authority = any(os.path.lexists(directory / name) for name in (AUTHORITY, AUTHORITY_KEY))
        if has_authority:
            try:
                authority = _authority(directory)
                faults += _too_late(authority, now, days)
            except FileFaultsError as error:
                faults += error.faults
        elif days > authority_days:
            faults.append(f"--days {days:g} is more than --authority-days {authority_days:g}")
        for each in wanted:
            faults += _folder_faults(directory / each.folder, replaces=replaces)
        if faults:
            raise FileFaultsError(faults)
        _make_directory(directory)
        if authority is None:
            authority = Authority.new(now, authority_days)
            _write(directory / AUTHORITY_KEY, authority.key)
            _write(directory / AUTHORITY, authority.certificate)
            _tell("made", directory / AUTHORITY, authority.certificate)
        for each in wanted:
            folder = directory / each.folder
            _make_directory(folder)
            key = issuing.new_key()
            _put(folder, authority, authority.issue(each, key, now, days), issuing.key_pem(key))
            _tell("made", folder / CERTIFICATE, (folder / CERTIFICATE).read_bytes())
        return 0

    return _told(make)


def renew(
    directory: Path, chosen: Sequence[str], *, days: float, within_days: float | None, new_keys: bool
) -> int:
    """Make every certificate of the directory anew, with the names that it has; the exit code.

    Without `new_keys` a certificate keeps its key: then one file is replaced, and it fits the key at every moment.
    """

    def make() -> int:
        now = datetime.now(UTC)
        authority = _authority(directory)
        faults = [*_directory_faults(directory), *_too_late(authority, now, days)]
        folders = [directory / name for name in chosen] or sorted(
            file.parent for file in directory.glob(f"*/{CERTIFICATE}") if not file.parent.is_symlink()
        )
        if not folders:
            faults.append(f"{directory} holds no certificate but the authority's")
        found = []
        for folder in folders:
            try:
                found.append((folder, *_issued(folder)))
                if not authority.has_issued(_content(folder / CERTIFICATE)):
                    faults.append(
                        f"{folder / CERTIFICATE} is none of this authority's: its names are not signed anew"
                    )
            except FileFaultsError as error:
                faults += error.faults
        if faults:
            raise FileFaultsError(faults)
        for folder, seen, old_key in found:
            if within_days is not None and seen.not_after - now > timedelta(days=within_days):
                _tell("left", folder / CERTIFICATE, (folder / CERTIFICATE).read_bytes())
                continue
            key = issuing.new_key() if new_keys or old_key is None else old_key
            made = authority.issue(_as_asked(folder.name, seen), key, now, days)
            _put(folder, authority, made, None if key is old_key else issuing.key_pem(key))
            _tell("renewed", folder / CERTIFICATE, made)
        return 0

    return _told(make)


def show(files: Sequence[Path], output: str) -> int:
    """Tell what is in certificates; the exit code."""
    now = datetime.now(UTC)
    found: list[tuple[Path, SeenCertificate]] = []
    faults: list[str] = []
    for file in files:
        try:
            found += [(file, seen) for seen in issuing.read(_content(file))]
        except (FileFaultsError, CertificateError) as error:
            faults.append(str(error) if isinstance(error, FileFaultsError) else f"{file} {error}")

    def tell() -> int:
        if output == "json":
            click.echo(json.dumps({"certificates": [_document(file, seen, now) for file, seen in found]}))
        else:
            color = False if os.environ.get("NO_COLOR") else None
            for number, (file, seen) in enumerate(found):
                lines = _lines(file, seen, now)
                click.echo("\n".join(("", *lines) if number else lines), color=color)
        for fault in faults:
            click.echo(clean(fault, MAX_LINE), err=True)
        return 1 if faults or any(seen.faults(now) for _, seen in found) else 0

    return outputs.ended(tell)


# ------------------------------------------------------------ what is told


def _told(make: Callable[[], int]) -> int:
    try:
        return outputs.ended(make)
    except FileFaultsError as error:
        for fault in error.faults:
            click.echo(clean(fault, MAX_LINE), err=True)
        return 1


def _tell(verb: str, file: Path, pem: bytes) -> None:
    (seen,) = issuing.read(pem)
    click.echo(f"{verb} {file}: {'; '.join(seen.meanings())}; until {_time(seen.not_after)}")


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _lines(file: Path, seen: SeenCertificate, now: datetime) -> Iterator[str]:
    faults = seen.faults(now)
    is_soon = seen.not_after - now < SOON
    until = click.style(
        _time(seen.not_after), fg="red" if now > seen.not_after else "yellow" if is_soon else "green"
    )
    yield click.style(clean(str(file), MAX_LINE), bold=True)
    yield f"  subject   {clean(seen.subject, MAX_LINE)}"
    yield f"  issuer    {clean(seen.issuer, MAX_LINE)}"
    yield f"  names     {clean(', '.join(map(str, seen.names)), MAX_LINE) or 'none'}"
    yield f"  valid     {_time(seen.not_before)} to {until} ({_left(seen.not_after - now)})"
    yield f"  key       {seen.key}{', for ' + ', '.join(seen.usages) if seen.usages else ''}"
    yield f"  sha256    {seen.fingerprint}"
    yield f"  to Parley {clean('; '.join(seen.meanings()), MAX_LINE) or 'nobody that it knows by name'}"
    for fault in faults:
        yield click.style(f"  fault     {clean(fault, MAX_LINE)}", fg="red")


def _left(left: timedelta) -> str:
    if left < timedelta():
        return "over"
    hours = int(left.total_seconds() // 3600)
    return f"{hours // 24} d {hours % 24} h left" if hours >= 24 else f"{hours} h left"


def _document(file: Path, seen: SeenCertificate, now: datetime) -> dict[str, object]:
    return {
        "file": str(file),
        "subject": seen.subject,
        "issuer": seen.issuer,
        "serial": seen.serial,
        "names": [str(name) for name in seen.names],
        "notBefore": _time(seen.not_before),
        "notAfter": _time(seen.not_after),
        "key": seen.key,
        "usages": list(seen.usages),
        "isAuthority": seen.is_authority,
        "sha256": seen.fingerprint,
        "parley": list(seen.meanings()),
        "faults": list(seen.faults(now)),
    }


# ------------------------------------------------------------ files


def _authority(directory: Path) -> Authority:
    """The authority of a directory. Raises `FileFaultsError`."""
    try:
        return Authority.read(_content(directory / AUTHORITY), _content(directory / AUTHORITY_KEY))
    except CertificateError as error:
        raise FileFaultsError((f"{directory / AUTHORITY} (with {AUTHORITY_KEY}) {error}",)) from None


def _issued(folder: Path) -> tuple[SeenCertificate, issuing.PrivateKey | None]:
    """A certificate, and its key if it is there and belongs to it. Raises `FileFaultsError`."""
    faults = [*_folder_faults(folder, replaces=True)]
    if faults:
        raise FileFaultsError(faults)
    content = _content(folder / CERTIFICATE)
    try:
        seen = issuing.read(content)[0]
    except CertificateError as error:
        raise FileFaultsError((f"{folder / CERTIFICATE} {error}",)) from None
    if seen.is_authority:
        raise FileFaultsError((f"{folder / CERTIFICATE} is an authority's, which is not made anew here",))
    try:
        key = issuing.read_key(_content(folder / KEY))
    except (CertificateError, FileFaultsError):
        return seen, None
    return seen, key if issuing.is_pair(content, key) else None


def _as_asked(folder: str, seen: SeenCertificate) -> CertificateSpec:
    title = seen.subject.removeprefix("CN=")
    return CertificateSpec(
        folder, title, seen.names, is_server=seen.is_for("serverAuth"), is_client=seen.is_for("clientAuth")
    )


def _too_late(authority: Authority, now: datetime, days: float) -> Iterator[str]:
    if now + timedelta(days=days) > authority.not_after:
        yield (
            f"the authority ends at {_time(authority.not_after)}, before certificates of {days:g} days would: give fewer --days, or make a "
            "new authority in another directory"
        )


def _content(file: Path) -> bytes:
    """Raises `FileFaultsError`."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise FileFaultsError((f"{file} cannot be read: {error.strerror}",)) from None
    if len(content) > MAX_BYTES:
        raise FileFaultsError((f"{file} is larger than any certificate: more than {MAX_BYTES} bytes",))
    return content


def _directory_faults(directory: Path) -> Iterator[str]:
    """Why keys cannot lie in a directory that is there."""
    try:
        found = directory.stat()
    except FileNotFoundError:
        return
    except OSError as error:
        yield f"{directory} cannot be used: {error.strerror}"
        return
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode):
        yield f"{directory} is no directory"
    elif mode & 0o077:
        yield f"{directory} is open to other users ({mode:04o}), and keys are to lie there: chmod 700 {directory}"


def _folder_faults(folder: Path, *, replaces: bool) -> Iterator[str]:
    if folder.is_symlink():
        yield f"{folder} is a link, which is not followed"
        return
    yield from _directory_faults(folder)
    there = [name for name in (CERTIFICATE, KEY) if os.path.lexists(folder / name)]
    if there and not replaces:
        yield (
            f"{folder} has {' and '.join(there)} already: `parley certs renew` makes them anew with the names that they have, --force with others"
        )


def _make_directory(directory: Path) -> None:
    """Raises `FileFaultsError`."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise FileFaultsError((f"{directory} cannot be made: {error.strerror}",)) from None


def _put(folder: Path, authority: Authority, certificate: bytes, key: bytes | None) -> None:
    """Write what changes. The key goes first: a program that reads between the two refuses the pair, and reads again."""
    if key is not None:
        _write(folder / KEY, key)
    _write(folder / CERTIFICATE, certificate)
    _write(folder / AUTHORITY, authority.certificate)


def _write(file: Path, content: bytes) -> None:
    """Put a file of the user alone in place of the one that is there, or of a link. Raises `FileFaultsError`."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as opened:  # 0600, as mkstemp makes it
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileFaultsError((f"{file} cannot be written: {error.strerror}",)) from None

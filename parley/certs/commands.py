"""The commands `parley certs`. Nothing here needs `cryptography`: `--help` works without it, and so does saying that it is missing."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from hosting.options import FiniteRange
from parley.certs.names import asked
from parley.reach.ways import TEXT_OR_JSON

_DAYS: Final = FiniteRange(min=0, min_open=True, max=3650)
_FOLDER: Final = click.Path(path_type=Path, file_okay=False)
_CODES: Final = "0; 1 when files cannot be read or written, or hold what cannot be used; 2 for a wrong command line, or if cryptography is not installed."


@click.group()
def certs() -> None:
    """Make certificates for development, renew them, and look at any.

    Needs the extra `certs`.
    """


@certs.command(epilog=f"Exit codes: {_CODES}")
@click.argument("directory", type=_FOLDER)
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="HOST",
    help="An address or a name of the scheduler; may be given again.",
)
@click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="NODE[=HOST,...]",
    help="The agent of a node; with hosts, for its own port with TLS, too. May be given again.",
)
@click.option(
    "--agent-ports",
    multiple=True,
    metavar="HOST",
    help="A name for the ports with TLS of all agents, where agents show tokens to the scheduler, as on Kubernetes; may be given again.",
)
@click.option("--viewer", is_flag=True, help="A client that may read pages.")
@click.option("--kube-scheduler", is_flag=True, help="The kube-scheduler that calls the extender.")
@click.option(
    "--days", type=_DAYS, default=7, show_default=True, help="How long certificates are valid, in days."
)
@click.option(
    "--authority-days",
    type=_DAYS,
    default=365,
    show_default=True,
    help="How long a new authority is valid, in days.",
)
@click.option("--force", is_flag=True, help="Replace certificates that are there. An authority never is.")
def create(
    directory: Path,
    days: float,
    authority_days: float,
    *,
    force: bool,
    **named: Any,
) -> None:
    """Make certificates in DIRECTORY, and an authority if need be.

    Each gets a folder there: `scheduler`, `agent-NODE`, `agent-ports`, `viewer`, `kube-scheduler`, with tls.crt, tls.key and ca.crt. A client is known by its subject
    alternative name: spiffe://parley/agent/NODE, viewer.parley, kube-scheduler.parley. Keep ca.key from everybody: its holder is whom they like to be.
    """
    wanted, faults = asked(**named)
    if faults:
        raise click.UsageError("\n".join(faults))
    if not wanted:
        raise click.UsageError(
            "nothing is asked for: give --scheduler, --agent, --agent-ports, --viewer or --kube-scheduler"
        )
    sys.exit(_loaded().create(directory, wanted, days=days, authority_days=authority_days, replaces=force))


@certs.command(epilog=f"Exit codes: {_CODES}")
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--days", type=_DAYS, default=7, show_default=True, help="How long the new ones are valid, in days."
)
@click.option("--within", type=_DAYS, help="Only certificates that end within so many days.")
@click.option(
    "--new-keys",
    is_flag=True,
    help="Make new keys, too. Without it one file changes, so a program that reads it finds a pair at every moment.",
)
def renew(
    directory: Path, names: tuple[str, ...], days: float, within: float | None, *, new_keys: bool
) -> None:
    """Make the certificates of DIRECTORY anew.

    All, or those in the folders that are named. Each keeps its names.

    The authority stays. Running programs take the new files up by themselves.
    """
    if strange := [name for name in names if "/" in name or name in (".", "..")]:
        raise click.UsageError(f"{', '.join(map(repr, strange))}: give names of folders in {directory}")
    sys.exit(_loaded().renew(directory, names, days=days, within_days=within, new_keys=new_keys))


@certs.command(
    epilog="Exit codes: 0; 1 when a file holds no certificate, or one that cannot be used now; 2 for a wrong command line, or if cryptography is not installed."
)
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILE...")
@TEXT_OR_JSON
def show(files: tuple[Path, ...], output: str) -> None:
    """Tell what is in the certificates of FILE.

    Who they are for, how long they are valid, who they are to Parley, and what is wrong with them.

    Parley's view is by the names that `parley certs create` gives; the file of --access decides what each may do.
    """
    sys.exit(_loaded().show(files, output))


def _loaded() -> ModuleType:
    """The module that makes certificates. Ends the program if cryptography is missing."""
    try:
        from parley.certs import program  # noqa: PLC0415 - optional, and slow to load
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "cryptography":
            raise
        click.echo(
            "parley certs needs cryptography, which is not installed here. In Parley's directory, the extra `certs`:\n"
            "  .venv/bin/pip install '.[certs]'",
            err=True,
        )
        sys.exit(2)
    return program

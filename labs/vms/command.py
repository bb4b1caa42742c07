"""The commands `parley vm …`. Slow modules are loaded by the command that needs them."""

import asyncio
import json
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from hosting.options import MemoryAmount
from labs.vms.machine import MIB, MachineSpec, MachineSpecError, addressable_bytes

if TYPE_CHECKING:
    from labs.vms.running import RunningGuest
    from labs.vms.store import ListedGuest, VmStore

_T = TypeVar("_T")
_DEFAULT: Final = MachineSpec()


_DIRECTORY = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="The guests' directories are below this one ($XDG_STATE_HOME/labs/vms otherwise).",
)


@click.group()
def vm() -> None:
    """Real guests under QEMU on this machine. Each has the informant inside.

    `make vm-assets` gets what they need, once. Guests are emulated unless --accel kvm is given.
    """


@vm.command("build-image")
def build_image() -> None:
    """Build the image that guests boot. It is made of the interpreter and the packages that are installed here.

    Needs no root. An image is kept in the cache until something that is in it changes.

    Exit codes: 0; 1 when the image cannot be built.
    """
    from labs.vms import image  # noqa: PLC0415 - `--version` should not load it

    try:
        built = image.build(_say)
    except image.ImageError as error:
        _fail(str(error))
    click.echo(str(built.folder))


@vm.command()
@click.argument("name", required=False)
@click.option(
    "--vcpus", type=click.IntRange(1), default=_DEFAULT.vcpus, show_default=True, help="Plugged at the start."
)
@click.option(
    "--max-vcpus",
    type=click.IntRange(1),
    default=_DEFAULT.max_vcpus,
    show_default=True,
    help="That can be plugged.",
)
@click.option(
    "--memory",
    "memory_bytes",
    type=MemoryAmount(),
    default="512Mi",
    show_default=True,
    help="At the start.",
)
@click.option(
    "--slots",
    type=click.IntRange(0),
    default=_DEFAULT.slots,
    show_default=True,
    help="Slots of 128Mi that can be plugged.",
)
@click.option(
    "--provider",
    type=click.Choice(["dimm", "virtio-mem"]),
    default=_DEFAULT.provider,
    show_default=True,
    help="What memory is plugged as.",
)
@click.option(
    "--accel",
    type=click.Choice(["tcg", "kvm"]),
    default=_DEFAULT.accel,
    show_default=True,
    help="Emulation, or KVM if a short probe shows that it works.",
)
@click.option("--workload", is_flag=True, help="Start the load generator in the guest.")
@click.option("--cold", is_flag=True, help="Boot, although there is a saved state of such a guest.")
@_DIRECTORY
def boot(name: str | None, directory: Path | None, cold: bool, workload: bool, **machine: Any) -> None:
    """Boot a guest, and wait until its informant answers. NAME is vm-1 (vm-2, …) unless it is given.

    Prints the place of the guest, and the lines for the agent's settings. `parley vm stop` ends it.

    Exit codes: 0; 1 when the guest did not start; 2 for a wrong command line.
    """
    try:
        spec = MachineSpec(
            **machine, max_memory_bytes=addressable_bytes(machine["memory_bytes"], machine["slots"])
        )
    except MachineSpecError as error:
        raise click.UsageError(str(error)) from None
    guest = _run(_boot(_store(directory), name, spec, workload=workload, is_cold=cold))
    click.echo(_where(guest))
    click.echo(agents_file(guest))


@vm.command("list")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people or scripts.",
)
@_DIRECTORY
def list_guests(output: str, directory: Path | None) -> None:
    """Show the guests: what is plugged, and QEMU's state. `gone`: the guest has ended by itself.

    Exit codes: 0; 1 when the directory cannot be read.
    """
    found = _run(_store(directory).list())
    if output == "json":
        click.echo(json.dumps({"vms": [_as_json(each) for each in found]}))
    elif not found:
        click.echo(f"no guests in {_store(directory).folder}")
    else:
        _print_table(found)


@vm.command()
@click.argument("name", required=False)
@click.option("--all", "is_all", is_flag=True, help="Every guest.")
@_DIRECTORY
def stop(name: str | None, is_all: bool, directory: Path | None) -> None:
    """End a guest, and remove its directory.

    Exit codes: 0; 1 when there is no such guest, or it does not end; 2 for a wrong command line.
    """
    if (name is None) != is_all:
        raise click.UsageError("give the NAME of a guest, or --all")
    store = _store(directory)
    _run(_stop(store, store.names() if name is None else [name]))


async def _stop(store: "VmStore", names: "Sequence[str]") -> None:
    """End all of them, even if one does not end. Raises `StoreError` with every fault."""
    from labs.vms.running import GuestError  # noqa: PLC0415 - as above
    from labs.vms.store import StoreError  # noqa: PLC0415 - as above

    faults = []
    for each in names:
        try:
            ran = await store.stop(each)
        except (StoreError, GuestError, OSError) as error:
            faults.append(str(error))
        else:
            click.echo(f"{each}: stopped" if ran else f"{each}: had ended by itself; removed")
    if faults:
        raise StoreError("\n".join(faults))


async def _boot(
    store: "VmStore", name: str | None, spec: MachineSpec, *, workload: bool, is_cold: bool
) -> "RunningGuest":
    from labs.vms import image, probe, starting  # noqa: PLC0415 - as above
    from labs.vms.machine import GuestWords  # noqa: PLC0415 - as above
    from labs.vms.running import GuestSetup  # noqa: PLC0415 - as above

    with store.booting(name) as directory:
        built = image.build(_say)
        if spec.accel == "kvm":
            _say(f"trying KVM ({probe.PROBE_S:g} s at most)")
            await probe.prove(spec.accel, built)
        words = GuestWords(workload=workload, secret=True)
        setup = GuestSetup(spec, built, directory, words, is_kept=True)
        guest = await starting.start(setup, is_cold=is_cold, say=_say)
        await guest.release()
    return guest


def _store(directory: Path | None) -> "VmStore":
    try:
        from labs.vms.store import VmStore, default_folder  # noqa: PLC0415 - `--version` should not load it
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "qemu":
            raise
        _fail(
            "parley vm needs qemu.qmp, which is not installed here. In Parley's directory, the extra `vm`:\n"
            "  .venv/bin/pip install '.[vm]'"
        )
    return VmStore((directory or default_folder()).absolute())


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """The result of the coroutine. A fault that a person can mend ends the program with its text and code 1."""
    from labs.vms.image import ImageError  # noqa: PLC0415 - as above
    from labs.vms.probe import ProbeError  # noqa: PLC0415 - as above
    from labs.vms.running import GuestError  # noqa: PLC0415 - as above
    from labs.vms.store import StoreError  # noqa: PLC0415 - as above

    try:
        return asyncio.run(work)
    except (ImageError, ProbeError, GuestError, StoreError) as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _fail(why: str) -> NoReturn:
    click.echo(why, err=True)
    sys.exit(1)


def _say(line: str) -> None:
    """Progress is for people: nothing that a script reads."""
    click.echo(line, err=True)


def _where(guest: "RunningGuest") -> str:
    return f"""\
{guest.setup.directory.name} runs: process {guest.pid}
informant  {guest.informant_url}
qmp        {guest.qmp_path}
"""


def agents_file(guest: "RunningGuest") -> str:
    """The lines for the agent's file that make it scale a guest."""
    name, spec = guest.setup.directory.name, guest.setup.spec
    return f"""\
# in the agent's file
backend: qemu
advertise: 10.0.2.2:10300 # the agent's port, as the guest reaches it
vms:
  - namespace: default
    name: {name}
    uid: {name}
    informant: {guest.informant_url}
    qmp: {guest.qmp_path}
    secretFile: {guest.secret_path}
    min: {{cpu: {spec.vcpus}, memory: {_amount(spec.memory_bytes)}}}
    max: {{cpu: {spec.max_vcpus}, memory: {_amount(spec.memory_bytes + spec.growth_bytes)}}}
    computeUnit: {{cpu: 1, memory: {_amount(spec.slot_bytes)}}}
    slotSize: {_amount(spec.slot_bytes)}"""


def _amount(memory_bytes: int) -> str:
    return f"{memory_bytes // MIB}Mi"


def _as_json(guest: "ListedGuest") -> dict[str, Any]:
    return {
        "name": guest.name,
        "pid": guest.pid,
        "address": guest.address,
        "state": guest.state,
        "vcpusPlugged": guest.plugged_vcpus,
        "memory": None if guest.memory_bytes is None else _amount(guest.memory_bytes),
        "qmp": str(guest.qmp_path),
    }


def _print_table(guests: "Sequence[ListedGuest]") -> None:
    rows = [("NAME", "PID", "ADDRESS", "VCPUS", "MEMORY", "STATE")]
    for each in guests:
        vcpus = "-" if each.plugged_vcpus is None else str(each.plugged_vcpus)
        memory = "-" if each.memory_bytes is None else _amount(each.memory_bytes)
        rows.append((each.name, str(each.pid), each.address, vcpus, memory, each.state))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())

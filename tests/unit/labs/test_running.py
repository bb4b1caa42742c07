"""QEMU that ends too early, by scripts that take its place."""

import shutil
from pathlib import Path

import pytest

from labs.vms import assets
from labs.vms.image import VmImage
from labs.vms.machine import GuestWords, MachineSpec
from labs.vms.running import GuestError, GuestSetup, HostError, launch
from labs.vms.saved import SavedStates, state_key
from labs.vms.starting import qemu_version, start


@pytest.fixture
def setup(tmp_path: Path) -> GuestSetup:
    (tmp_path / "image").mkdir()
    return GuestSetup(
        MachineSpec(), VmImage(tmp_path / "image", "d"), tmp_path / "g", GuestWords(), is_kept=True
    )


def qemu(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    file = folder / "qemu"
    file.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setattr(
        assets, "program", lambda name: str(file) if name == assets.QEMU else shutil.which(name)
    )


async def test_what_qemu_and_the_guest_said_is_shown_when_it_ends_at_once(
    setup: GuestSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial = setup.directory / "serial.log"
    qemu(monkeypatch, tmp_path, f"echo 'qemu: no memory' >&2; echo 'Kernel panic' > {serial}; exit 3")
    with pytest.raises(GuestError) as caught:
        await launch(setup)
    assert str(caught.value).splitlines() == [
        "QEMU has ended at its start with code 3",
        "QEMU:",
        "qemu: no memory",
        "the guest:",
        "Kernel panic",
    ]
    assert setup.directory.stat().st_mode & 0o777 == 0o700


async def test_another_address_is_tried_when_somebody_took_the_first(
    setup: GuestSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the second address is free, and then QEMU ends for another reason.
    seen = tmp_path / "seen"
    taken = "qemu: Could not set up host forwarding rule"
    qemu(
        monkeypatch,
        tmp_path,
        f"echo \"$*\" | grep -o 'tcp:[0-9.]*:10301' >> {seen}\n[ $(wc -l < {seen}) -gt 1 ] || {{ echo '{taken}'; exit 1; }}\nexit 4",
    )
    with pytest.raises(GuestError, match="QEMU has ended at its start with code 4"):
        await launch(setup)
    first, second = seen.read_text().split()
    assert first != second


async def test_it_ends_when_every_address_is_taken(
    setup: GuestSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu(monkeypatch, tmp_path, "echo 'Could not set up host forwarding rule'; exit 1")
    states = SavedStates(tmp_path / "states")
    key = state_key(await qemu_version(), setup.image.digest, setup.spec, setup.words)
    with states.lock(key):
        states.unfinished(key).write_bytes(b"state")
        states.keep(key)
    with pytest.raises(HostError, match="5 addresses in a row were taken"):
        await start(setup, states=states)
    assert states.find(key) is not None  # it is not to blame


async def test_an_image_that_was_removed_is_named(
    setup: GuestSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qemu(monkeypatch, tmp_path, "exit 0")
    setup.image.folder.rmdir()
    with pytest.raises(GuestError, match=f"{setup.image.folder}: No such file"):
        await launch(setup)

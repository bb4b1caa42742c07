"""The test whether an accelerator works on this machine. A guest shows it, because a device that opens does not show it."""

import asyncio
import tempfile
from pathlib import Path
from typing import Final

from labs.vms import assets, processes
from labs.vms.image import VmImage
from labs.vms.machine import PROBE_LINE, Accelerator, probe_arguments

PROBE_S: Final = 10.0


class ProbeError(Exception):
    """The accelerator does not work here. The text is for a person."""


async def prove(accel: Accelerator, image: VmImage, *, deadline_s: float = PROBE_S) -> None:
    """Boot a guest that only says that its kernel runs, and ends. Raises `ProbeError`."""
    qemu, setpriv = assets.program(assets.QEMU), assets.program("setpriv")
    if qemu is None or setpriv is None:
        raise ProbeError("; ".join(assets.missing_programs()))
    command = [setpriv, "--pdeathsig", "KILL", "--", qemu, *probe_arguments(accel, image.files)]
    with tempfile.TemporaryDirectory(prefix="parley-") as folder:
        output = Path(folder) / "output"
        process = processes.spawn(command, output)
        try:
            async with asyncio.timeout(deadline_s):
                await process.ended()
        except TimeoutError:
            why = f"its kernel had not begun after {deadline_s:g} s"
        else:
            why = _last_line(output)
        finally:
            process.kill()
            await process.ended()
            process.close()
        if PROBE_LINE in output.read_text(errors="replace"):
            return
    raise ProbeError(
        f"{accel} does not work on this machine. A guest was tried: {why}\nUse --accel tcg (emulation), the default"
    )


def _last_line(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return f"QEMU ended: {lines[-1]}" if lines else "QEMU ended without a word"

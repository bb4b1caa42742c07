"""The state of the vCPUs of a silent guest, for somebody who looks for the reason: a guest that hangs tells nothing itself."""

import asyncio
from typing import Final

from hosting.qmp import QmpError, QmpMonitor

TIMES: Final = 3
BETWEEN_S: Final = 1.0


async def registers(monitor: QmpMonitor) -> str:
    """The registers and interrupt controllers of all vCPUs, several times, so that one sees which of them move. Raises `QmpError`."""
    told = []
    for _ in range(TIMES):
        cpus = await monitor.execute("query-cpus-fast")
        asked = [("info cpus", 0), ("info registers -a", 0)]
        asked += [("info lapic", cpu["cpu-index"]) for cpu in cpus]
        told += [await _asked(monitor, line, cpu) for line, cpu in asked]
        await asyncio.sleep(BETWEEN_S)
    return "\n".join(told)


async def _asked(monitor: QmpMonitor, line: str, cpu: int) -> str:
    try:
        answer = await monitor.execute("human-monitor-command", {"command-line": line, "cpu-index": cpu})
    except QmpError as error:
        answer = str(error)
    return f"{line} ({cpu})\n{answer}"

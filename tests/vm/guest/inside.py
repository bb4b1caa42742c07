"""The inside of the guest: a memory hog that follows orders, busy loops, the files of the workload's group, the kernel's log."""

import base64

from tests.support.vms import GuestShell
from tests.support.waiting import PATIENCE_S

GROUP = "/sys/fs/cgroup/workload"
_HOG = r"""
import mmap, os, pathlib, time
held, folder, filled = [], pathlib.Path("/run/hog"), b"x" * 2**20
folder.joinpath("pid").write_text(f"{os.getpid()}\n")
while True:
    wanted = int(folder.joinpath("wanted").read_text() or len(held))
    while len(held) < wanted:
        held.append(mmap.mmap(-1, 2**20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        held[-1].write(filled)
        if len(held) % 4 == 0:
            folder.joinpath("held").write_text(f"{len(held)}\n")
    while len(held) > wanted:
        held.pop().close()
    folder.joinpath("held").write_text(f"{len(held)}\n")
    time.sleep(0.02)
"""
"""Holds as many MiB as it is told, each of them written to. Its own files are no memory of the group: /run belongs to the root."""
_BURNING = "/run/burning"


class Inside:
    """Everything here runs as root; what is started in the workload's group has an oom_score_adj of 0, as workloads have."""

    def __init__(self, shell: GuestShell) -> None:
        self.shell = shell

    async def text(self, command: str, deadline_s: float = 30.0) -> str:
        """The output of a command, which must succeed."""
        return (await self.shell.run(command, deadline_s=deadline_s)).output.strip()

    async def until(self, condition: str, deadline_s: float = PATIENCE_S) -> None:
        """Return when a command succeeds. The guest itself looks again and again: a command for each look would keep its vCPU busy."""
        done = await self.shell.run(
            f"until {condition}; do sleep 0.1; done", deadline_s=deadline_s, check=False
        )
        assert done.code == 0, f"never seen: {condition}: {done.output}"

    async def start(self, command: str, group: str = GROUP) -> None:
        """Start a command in the workload's group, and let it run."""
        inner = f"echo 0 > {group}/cgroup.procs && exec {command}"
        await self.text(f"setsid sh -c '{inner}' < /dev/null > /dev/null 2>&1 &")

    async def script(self, name: str, text: str) -> None:
        """Write a script for the guest's `sh`, as /run/NAME."""
        content = base64.b64encode(text.encode()).decode()
        await self.text(f"echo {content} | base64 -d > /run/{name}")

    async def file(self, name: str) -> str:
        return await self.text(f"cat {GROUP}/{name}")

    async def limit(self, name: str) -> int | None:
        """A limit in bytes; None where there is none."""
        text = await self.file(name)
        return None if text == "max" else int(text)

    async def counts(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in (await self.file(name)).splitlines())
        return {name: int(number) for name, number in pairs}

    async def kill_workload(self) -> None:
        """Kill everything in the group, and return when it is empty."""
        await self.text(f"echo 1 > {GROUP}/cgroup.kill")

        await self.until(f"! grep -q . {GROUP}/cgroup.procs")

    # ------------------------------------------------------------ memory

    async def hog(self, wanted_mib: int = 0) -> None:
        """Start a hog, and return when it runs."""
        script = base64.b64encode(_HOG.encode()).decode()
        await self.text(
            f"mkdir -p /run/hog; rm -f /run/hog/held; echo {script} | base64 -d > /run/hog/hog.py"
        )
        await self.want(wanted_mib)
        await self.start("python3 -I -S /run/hog/hog.py")
        await self.until("[ -s /run/hog/held ]")

    async def want(self, wanted_mib: int) -> None:
        """Let the hog hold so much from now on."""
        await self.text(f"echo {wanted_mib} > /run/hog/wanted")

    async def held_mib(self) -> int:
        return int(await self.text("cat /run/hog/held") or 0)

    async def held(self, mib: int) -> None:
        """Return when the hog holds exactly so much."""
        await self.until(f"read held < /run/hog/held && [ ${{held:-0}} -eq {mib} ]")

    # ------------------------------------------------------------ CPU

    async def burn(self, count: int) -> None:
        """Start so many busy loops, and return when all of them run."""
        await self.script("burn", f"echo $$ >> {_BURNING}; while :; do :; done")
        await self.script("burners", f"for number in $(seq {count}); do sh /run/burn & done; wait")
        await self.text(f"rm -f {_BURNING}")
        await self.start("sh /run/burners")
        await self.until(f"[ $(grep -c . {_BURNING}) -eq {count} ]")

    # ------------------------------------------------------------ the machine

    async def cpus_used(self, over_s: int) -> float:
        """How many CPUs the group used over so many seconds of the guest's own clock, or some more."""
        before_s, before_used_s = await self._used()
        await self.until(f"read now _ < /proc/uptime && [ ${{now%.*}} -ge {int(before_s) + over_s + 1} ]")
        after_s, after_used_s = await self._used()
        return (after_used_s - before_used_s) / (after_s - before_s)

    async def _used(self) -> tuple[float, float]:
        """The guest's clock, and the CPU seconds that the group has used until then."""
        now_s, _, _, used_us = (await self.text(f"cat /proc/uptime; head -n 1 {GROUP}/cpu.stat")).split()
        return float(now_s), int(used_us) / 1e6

    async def informant_pid(self) -> int:
        return int(await self.text("cat /sys/fs/cgroup/informant/cgroup.procs | head -n 1"))

    async def kills(self) -> list[str]:
        """The scopes in which the kernel killed for lack of memory: CONSTRAINT_MEMCG in the group, CONSTRAINT_NONE in the whole machine."""
        told = await self.text("dmesg | grep -o 'oom-kill:constraint=[A-Z_]*' || true")
        return [line.partition("=")[2] for line in told.split()]

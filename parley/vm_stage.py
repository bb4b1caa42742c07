"""`parley demo --vms qemu`: real Linux guests under QEMU, each with its informant and a load generator inside.

Guests are restored from a saved state, or booted if there is none yet. A guest whose QEMU ends is taken out of the files of
agent and scheduler at once, and booted again with another UID. All end with the demo, even if it is killed.
"""

import asyncio
import contextlib
import importlib.util
import random
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from hosting import lifecycle
from hosting.backoff import Backoff
from hosting.client import HttpClient
from labs.vms import image as images
from labs.vms import starting
from labs.vms.load.client import LoadClient, LoadError
from labs.vms.load.plan import MIB, GuestLoad
from labs.vms.machine import WORKLOAD_PORT, GuestWords, MachineSpec
from labs.vms.running import GuestError, GuestSetup, RunningGuest
from parley.children import ProgramSpec
from parley.scene import (
    NAMESPACE,
    NODE,
    Say,
    Stage,
    StageError,
    agent_of,
    agent_settings,
    free_ports,
    scheduler_of,
    write,
)
from protocol.values import Resources

SPEC: Final = MachineSpec()
LEAST: Final = Resources(SPEC.vcpus * 1000, SPEC.memory_bytes)
MOST: Final = Resources(SPEC.max_vcpus * 1000, SPEC.memory_bytes + SPEC.growth_bytes)
STEP: Final = Resources(1000, SPEC.slot_bytes)
MORE: Final = Resources(2000, 3 * SPEC.slot_bytes)
"""The amount that the node has beside the smallest sizes of its guests."""
QUIET: Final = GuestLoad(cpus=0.1)
BUSY_CPUS: Final = 2.4
"""More than two vCPUs can do at the target: the guest takes all that the node has left."""
TOO_MANY_CPUS: Final = 3.6
"""The wish of a guest that is alone: one vCPU more than the node has left."""
FULL_BYTES: Final = 480 * MIB
"""The guest needs two slots for that, and asks for more while it grows."""
BYTES_PER_S: Final = 40 * MIB
SILENCE_S: Final = 15.0
"""After so long without an answer of a guest all its plugged vCPUs count."""
FIRST_S: Final = 4.0
"""When the first guest begins: the agent knows all guests by then."""
TURN_S: Final = 16.0
"""How long after one guest the next one begins."""
REST_S: Final = 10.0
"""How long after the last turn the turns begin again."""
CPU_S: Final = (0.0, 17.0)
"""From when to when a guest wants CPUs, since its turn began; longer than a turn, so that the next guest has to wait."""
MEMORY_S: Final = (14.0, 32.0)
"""The same for memory. Taking it needs CPU time, too, of which jobs leave little."""


def wanted_load(index: int, guests: int, since_s: float) -> GuestLoad:
    """The load of the guest of that index, so long after the start. The turns repeat themselves when all guests have had one."""
    period_s = TURN_S * max(guests, 2) + REST_S  # a guest that is alone rests for the turn of another one
    if since_s < FIRST_S + index * TURN_S:
        return QUIET
    into_s = (since_s - FIRST_S - index * TURN_S) % period_s
    cpus = BUSY_CPUS if guests > 1 else TOO_MANY_CPUS
    return GuestLoad(
        cpus=cpus if CPU_S[0] <= into_s < CPU_S[1] else QUIET.cpus,
        memory_bytes=FULL_BYTES if MEMORY_S[0] <= into_s < MEMORY_S[1] else 0,
        memory_bytes_per_s=BYTES_PER_S,
    )


@dataclass(frozen=True, slots=True)
class GuestVm:
    """A guest that runs, as the files name it."""

    name: str
    uid: str
    qmp: Path
    """The agent's socket."""
    informant_url: str
    secret: Path | None = None


@dataclass(frozen=True, slots=True)
class GuestScene:
    """The node and its programs."""

    directory: Path
    guests: int
    scheduler_port: int
    agent_port: int

    @property
    def reservable(self) -> Resources:
        """The amount that all guests may use together."""
        return LEAST * self.guests + MORE

    def write_files(self, running: Sequence[GuestVm], absent: Sequence[str]) -> None:
        """Write the cluster file and the agent's settings with the guests that run (JSON is YAML too).

        For each guest that is `absent`, by its name, a pod keeps the room in which it will begin again: others would take it meanwhile.
        """
        common = [
            {
                "namespace": NAMESPACE,
                "name": vm.name,
                "uid": vm.uid,
                "min": LEAST.written(),
                "max": MOST.written(),
                "computeUnit": STEP.written(),
                "slotSize": f"{SPEC.slot_bytes // MIB}Mi",
            }
            for vm in running
        ]
        node = {
            "name": NODE,
            "allocatable": self.reservable.written(),
            "computeUnit": STEP.written(),
        }
        pods = [
            {
                "namespace": NAMESPACE,
                "name": f"room-for-{name}",
                "uid": f"room-for-{name}",
                "node": NODE,
                "requests": LEAST.written(),
            }
            for name in absent
        ]
        vms = [{**each, "node": NODE} for each in common]
        # The cluster first: an agent may tell of its VMs only when the scheduler can know them.
        write(self.directory / "cluster.yaml", {"nodes": [node], "vms": vms, "pods": pods})
        write(self.directory / "agent.yaml", self._agent(common, running))

    def _agent(self, common: list[dict[str, Any]], running: Sequence[GuestVm]) -> dict[str, Any]:
        return {
            **agent_settings(NODE, self.scheduler_port, self.directory / "state"),
            "advertise": f"10.0.2.2:{self.agent_port}",  # this machine's loopback, as guests see it
            "backend": "qemu",
            # Emulated guests share this machine's cores: one that is late is not silent, and its plugged vCPUs are not all in use.
            "qemu": {"silence": SILENCE_S},
            "vms": [
                {
                    **entry,
                    "informant": vm.informant_url,
                    "qmp": str(vm.qmp),
                    **({"secretFile": str(vm.secret)} if vm.secret is not None else {}),
                }
                for entry, vm in zip(common, running, strict=True)
            ],
        }

    def programs(self) -> tuple[ProgramSpec, ...]:
        """The programs in the order of their start. The informants run inside the guests."""
        cluster, settings = self.directory / "cluster.yaml", self.directory / "agent.yaml"
        return scheduler_of(("--cluster", str(cluster)), self.scheduler_port), agent_of(
            settings, self.agent_port
        )


AGAIN: Final = Backoff(base_s=2.0, cap_s=30.0)
HEALTHY_S: Final = 60.0
"""A guest that has run for so long had no failure before it."""
KNOB_S: Final = 0.5
"""How often the script is looked at."""
SWEEP_S: Final = 30.0
INSTEAD: Final = "The simulated demo needs none of this: `parley demo`"


def image(say: Callable[[str], None]) -> images.VmImage:
    """The image of the guests, which is built if there is none of the installed software. Raises `StageError`."""
    if importlib.util.find_spec("qemu") is None:
        raise _cannot("the extra `vm` is not installed: `make setup` installs it")
    try:
        return images.build(say)
    except images.ImageError as error:
        raise _cannot(str(error)) from None


@contextlib.asynccontextmanager
async def staged(
    image: images.VmImage, directory: Path, guests: int, stop: lifecycle.Stop, say: Callable[[str], None]
) -> AsyncIterator[Stage | None]:
    """A stage whose guests run, and end with the block; None if `stop` came before they ran. Raises `StageError`.

    Call this in the main thread: the kernel kills the guests when the thread that has started them ends.
    """
    scheduler_port, agent_port = free_ports(2)
    scene = GuestScene(directory, guests, scheduler_port, agent_port)
    if (directory / "state").exists():
        raise StageError(f"{directory}/state is that of another demo: give an empty directory")
    (directory / "state").mkdir()
    with _place_for_sockets() as place:
        keeper = GuestKeeper(scene, image, place)
        try:
            if await _unless(stop, keeper.start(say)):
                yield keeper.stage()
            else:
                say("ended before all guests ran")
                yield None
        finally:
            await keeper.stop()


def _cannot(why: str) -> StageError:
    return StageError(f"the demo with --vms qemu cannot run here: {why}\n{INSTEAD}")


@contextlib.contextmanager
def _place_for_sockets() -> Iterator[Path]:
    """A directory for the guests' sockets, which has a short path. It is removed at the end, also when this process is killed."""
    made = Path(tempfile.mkdtemp(prefix="parley-vms-"))
    # It reads until nobody has the other end any more.
    sweeper = subprocess.Popen(  # noqa: S603 - a fixed script, and a directory of our own
        ["/bin/sh", "-c", 'cat > /dev/null; rm -rf -- "$1"', "sh", str(made)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield made
    finally:
        assert sweeper.stdin is not None
        sweeper.stdin.close()
        sweeper.wait(SWEEP_S)


async def _unless(stop: lifecycle.Stop, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; False if the end of the program was requested before it was done."""
    working = asyncio.create_task(work, name="setting the stage")
    stopping = asyncio.create_task(stop.wait(), name="waiting for the end")
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        await working
        return True
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


class GuestKeeper:
    """Starts the guests, keeps them running, and sets their load."""

    def __init__(self, scene: GuestScene, image: images.VmImage, place: Path) -> None:
        self._scene = scene
        self._image = image
        self._place = place
        self._names = tuple(f"vm-{number}" for number in range(scene.guests))
        self._running: dict[str, RunningGuest] = {}
        self._vms: dict[str, GuestVm] = {}
        self._lives = dict.fromkeys(self._names, 0)
        self._restarts: dict[str, int] = {}
        self._rng = random.Random()

    def stage(self) -> Stage:
        return Stage(
            directory=self._scene.directory,
            node=NODE,
            reservable=self._scene.reservable,
            agent_port=self._scene.agent_port,
            scheduler_port=self._scene.scheduler_port,
            programs=self._scene.programs(),
            steps={f"{NAMESPACE}/{name}": STEP for name in self._names},
            beside=self._beside,
            restarts=self._restarts,
        )

    async def start(self, say: Callable[[str], None]) -> None:
        """Start all guests. Raises `StageError`."""
        began_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in self._names:
                    tasks.create_task(self._boot(name, partial(_say_of, say, name)), name=f"start {name}")
        except* (GuestError, OSError) as group:
            raise _cannot(str(group.exceptions[0])) from None
        count = len(self._names)
        say(f"{count} guest{'s run' if count > 1 else ' runs'} after {time.monotonic() - began_s:.1f} s")

    async def stop(self) -> None:
        """End all guests. Their output is kept beside the programs' logs. Raises `StageError` if QEMU does not end."""
        stops = (guest.stop() for guest in self._running.values())
        ends = await asyncio.gather(*stops, return_exceptions=True)
        logs = self._scene.directory / "logs"
        logs.mkdir(exist_ok=True)
        for file in self._place.glob("*/*.log"):
            shutil.copyfile(file, logs / f"{file.parent.name}-{file.name}")
        for fault in ends:
            if isinstance(fault, GuestError):
                raise StageError(str(fault)) from None

    async def _boot(self, name: str, say: Callable[[str], None]) -> None:
        """Start a guest, and enter it in the files. Raises `GuestError`."""
        self._lives[name] += 1
        directory = self._place / f"{name}-{self._lives[name]}"
        setup = GuestSetup(SPEC, self._image, directory, GuestWords(workload=True, quick=True, secret=True))
        guest = await starting.start(setup, say=say)
        self._running[name] = guest
        uid = f"uid-{name}-{uuid.uuid4().hex[:8]}"
        self._vms[name] = GuestVm(name, uid, guest.qmp_path, guest.informant_url, guest.secret_path)
        self._write_files()

    def _write_files(self) -> None:
        absent = [name for name in self._names if name not in self._vms]
        self._scene.write_files([self._vms[name] for name in self._names if name in self._vms], absent)

    async def _beside(self, say: Say) -> None:
        async with HttpClient() as http, asyncio.TaskGroup() as tasks:
            for index, name in enumerate(self._names):
                tasks.create_task(self._keep(name, say), name=f"keep {name}")
                tasks.create_task(self._load(index, name, http), name=f"load {name}")

    async def _keep(self, name: str, say: Say) -> None:
        """Wait for the end of a guest, take it out, and boot it again: again and again."""
        failures, how = 0, "does not run"
        while True:
            guest = self._running.get(name)
            if guest is not None:
                began_s = time.monotonic()
                await guest.process.ended()
                del self._running[name], self._vms[name]
                self._write_files()
                await guest.stop()
                failures = 1 if time.monotonic() - began_s >= HEALTHY_S else failures + 1
                code = guest.process.exit_code or 0
                how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            delay_s = AGAIN.delay_s(max(failures, 1), self._rng.random())
            say(name, f"{name}: QEMU {how}; the VM is taken out, and boots again in {delay_s:.1f} s")
            await asyncio.sleep(delay_s)
            try:
                await self._boot(name, partial(say, name))
            except GuestError as error:
                failures += 1
                how = f"did not start ({str(error).partition(chr(10))[0]})"
            else:
                self._restarts[name] = self._restarts.get(name, 0) + 1
                say(name, f"{name} runs again, as {self._vms[name].uid}")

    async def _load(self, index: int, name: str, http: HttpClient) -> None:
        """Set what a guest's script says, also in a guest that was booted again."""
        began_s = time.monotonic()
        told: tuple[RunningGuest, GuestLoad] | None = None
        while True:
            guest = self._running.get(name)
            wanted = wanted_load(index, len(self._names), time.monotonic() - began_s)
            if guest is not None and told != (guest, wanted):
                with contextlib.suppress(
                    LoadError
                ):  # a guest without free memory may take long: it is told again
                    await LoadClient(http, f"{guest.address}:{WORKLOAD_PORT}").set(wanted)
                    told = guest, wanted
            await asyncio.sleep(KNOB_S)


def _say_of(say: Callable[[str], None], name: str, line: str) -> None:
    say(f"{name}: {line}")

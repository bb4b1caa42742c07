"""Nothing is left behind of a real node: the other tests here rely on that."""

import signal
from pathlib import Path

from labs.clusters.node.claim import NodeClaim
from labs.clusters.node.real_node import RealNode
from tests.support.processes import running
from tests.support.waiting import shown_blocking


def test_what_a_killed_run_leaves_behind_is_removed_by_the_next(real_node: RealNode, tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from labs.clusters.control_plane import ControlPlane
from labs.clusters.node.real_node import RealNode
from labs.clusters.programs import Programs
from tests.support.processes import free_port
plane = ControlPlane(Programs(), Path({str(tmp_path / "plane")!r}), free_port).start()
node = RealNode(Programs(), plane, free_port).start()
print("up", node.name, flush=True)
time.sleep(600)
"""
    with running("-c", code, output=tmp_path / "output") as run:
        line = shown_blocking("the other node", lambda: _line(run.text(), "up "))
        name = line.split()[1]
        assert name != real_node.name
        run.end(signal.SIGKILL)
    NodeClaim.take().release()
    left = [str(each) for each in Path("/sys/fs/cgroup").glob(f"*/{name}")]
    left += [each for each in (f"/tmp/{name}",) if Path(each).exists()]
    assert left == []
    assert [command for command in _commands() if name in command] == []


def _line(text: str, begin: str) -> str | None:
    return next((line for line in text.splitlines() if line.startswith(begin)), None)


def _commands() -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # the process has ended meanwhile
            continue
    return found

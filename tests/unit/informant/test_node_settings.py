"""The node informant's settings: what they turn into, their bounds, and what only a guest has."""

from pathlib import Path
from typing import Any

import pytest

from hosting.settings import SettingsError, parse
from informant.core.guard import MIB, GuardSettings
from informant.core.limits import Spare, Thresholds
from informant.settings import NodeSettings

FULL = """
cgroupRoot: /host/sys/fs/cgroup
poll: 0.05
sample: 3
mostPods: 110
memory: {margin: 11Mi, waitingShare: 0.13, over: 14, left: 15Mi, leftShare: 0.16, killedHold: 17}
cpu: {waitingShare: 0.31, busyShare: 0.32, over: 33, throttledShare: 0.34, throttledOver: 0.35}
wish: {hold: 44, arrival: 45}
"""


def read(text: str) -> NodeSettings:
    return parse(Path("node.yaml"), text.encode(), NodeSettings)


def test_every_setting_turns_into_what_decides() -> None:
    settings = read(FULL)
    spare = Spare(11 * MIB, 15 * MIB, 0.16)
    assert settings.thresholds() == Thresholds(0.31, 0.32, 33.0, 0.34, 0.35, 0.13, 14.0, 45.0, spare)
    assert settings.guard() == GuardSettings(
        spare, freeze_s=0.0, hold_s=44.0, is_machine=False, killed_hold_s=17.0
    )
    assert (settings.cgroup_root, settings.most_pods) == (Path("/host/sys/fs/cgroup"), 110)
    assert (settings.poll, settings.sample) == (0.05, 3.0)


def test_what_is_not_to_be_looked_at_is_never_reached() -> None:
    assert read("cpu: {throttledShare: null}").thresholds().throttled_share > 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("cgroupRoot: ''", "cgroupRoot"),
        ("poll: 0.01", "poll"),
        ("mostPods: 0", "mostPods"),
        ("mostPods: 5001", "mostPods"),
        ("cpu: {throttledShare: 0}", "cpu.throttledShare"),
        ("cpu: {throttledOver: 0.05}", "cpu.throttledOver"),
        ("cpu: {throttledOver: 11}", "cpu.throttledOver"),
        ("memory: {killedHold: -1}", "memory.killedHold"),
        ("cgroup: workload", "cgroup"),
        ("protect: true", "protect"),
        ("memory: {freeze: 0.01}", "memory.freeze"),
    ],
)
def test_a_wrong_setting_is_told_by_its_path(text: str, path: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(text)
    (fault,) = caught.value.faults
    assert fault.startswith(f"{path}: "), fault


def test_a_file_may_say_nothing() -> None:
    nothing: dict[str, Any] = {}
    assert read("{}") == NodeSettings(**nothing)

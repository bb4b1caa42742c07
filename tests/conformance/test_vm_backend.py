"""One suite for every `VmBackend`: what a runner relies on, whatever resizes the VM. And proof that the suite can fail.

The clauses are in `vm_backend_clauses.py`; another back end needs a plant only.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.backends.pod.backend import PodBackend
from agent.backends.qemu.backend import QemuBackend
from tests.conformance import vm_backend_neonvm as neonvm
from tests.conformance import vm_backend_pods, vm_backend_qemu
from tests.conformance.vm_backend_clauses import CLAUSES
from tests.conformance.vm_backend_mutants import MUTANTS, BackendMutant
from tests.conformance.vm_backend_pod_mutants import MUTANTS as POD_MUTANTS
from tests.conformance.vm_backend_qemu_mutants import MUTANTS as QEMU_MUTANTS
from tests.conformance.vm_backend_simulated import PROFILES, has_chance, planted
from tests.conformance.vm_backend_two_sides import kept_by_two_sides, two_sides
from tests.support.virtual_time import virtually


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("profile", PROFILES)
async def test_simulated_vms_keep(profile: str, clause: str, tmp_path: Path) -> None:
    for seed in range(3 if has_chance(PROFILES[profile]) else 1):
        with planted(tmp_path / str(seed), PROFILES[profile], seed) as plant:
            await CLAUSES[clause](plant)


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("profile", neonvm.PROFILES)
async def test_vms_of_neonvm_keep(profile: str, clause: str, tmp_path: Path) -> None:
    for seed in range(3 if neonvm.has_chance(neonvm.PROFILES[profile]) else 1):
        with neonvm.planted(tmp_path / str(seed), neonvm.PROFILES[profile], seed) as plant:
            await CLAUSES[clause](plant)


async def test_the_suite_catches_commands_to_neonvm_that_do_not_test_the_mark(tmp_path: Path) -> None:
    profile = replace(neonvm.PROFILES["late"], forgets="/metadata/annotations")
    for seed in range(8):
        with neonvm.planted(tmp_path / str(seed), profile, seed) as plant:
            try:
                await CLAUSES["when_fence_returns_no_command_of_an_earlier_life_can_take_effect_any_more"](
                    plant
                )
            except AssertionError:
                return
    raise AssertionError("nobody noticed")


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("profile", vm_backend_pods.PROFILES)
async def test_pods_keep(profile: str, clause: str, tmp_path: Path) -> None:
    for seed in range(3):
        with vm_backend_pods.planted(tmp_path / str(seed), vm_backend_pods.PROFILES[profile], seed) as plant:
            await CLAUSES[clause](plant)


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("profile", vm_backend_qemu.PROFILES)
@virtually
async def test_guests_of_qemu_keep(profile: str, clause: str, tmp_path: Path) -> None:
    chosen = vm_backend_qemu.PROFILES[profile]
    for seed in range(3 if chosen.has_chance else 1):
        async with vm_backend_qemu.planted(tmp_path / str(seed), chosen, seed) as plant:
            await CLAUSES[clause](plant)


@pytest.mark.parametrize(("kind", "profile", "clause"), QEMU_MUTANTS)
@virtually
async def test_the_suite_catches_back_ends_of_qemu(
    kind: type[QemuBackend], profile: str, clause: str, tmp_path: Path
) -> None:
    chosen = vm_backend_qemu.PROFILES[profile]
    try:
        async with vm_backend_qemu.planted(tmp_path, chosen, 1, kind) as plant:
            await CLAUSES[clause](plant)
    except (AssertionError, RuntimeError):
        return
    raise AssertionError(f"nobody noticed: {kind.__doc__}")


@pytest.mark.parametrize(("plugin", "profile", "clause"), kept_by_two_sides())
async def test_vms_with_a_resizer_and_a_built_in_back_end_keep(
    plugin: str, profile: str, clause: str, tmp_path: Path
) -> None:
    with planted(tmp_path, PROFILES[profile], 1, two_sides(plugin)) as plant:
        await CLAUSES[clause](plant)


@pytest.mark.parametrize(("kind", "profile", "clause"), POD_MUTANTS)
async def test_the_suite_catches_back_ends_of_pods(
    kind: type[PodBackend], profile: str, clause: str, tmp_path: Path
) -> None:
    for seed in range(8):
        with vm_backend_pods.planted(
            tmp_path / str(seed), vm_backend_pods.PROFILES[profile], seed, kind
        ) as plant:
            try:
                await CLAUSES[clause](plant)
            except AssertionError:
                return
    raise AssertionError(f"nobody noticed: {kind.__doc__}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.kind.__name__)
async def test_the_suite_catches(mutant: BackendMutant, tmp_path: Path) -> None:
    for seed in range(4):
        with planted(tmp_path / str(seed), mutant.profiled(), seed, mutant.kind) as plant:
            try:
                await CLAUSES[mutant.clause](plant)
            except (TypeError, AttributeError, NameError):  # the mutant does not fit the back end any more
                raise
            except Exception:  # noqa: BLE001 - a broken back end may raise anything, and that is a way to be caught
                return
    raise AssertionError(f"nobody noticed: {mutant.kind.__doc__}")


def test_every_clause_catches_somebody() -> None:
    assert set(CLAUSES) - {mutant.clause for mutant in MUTANTS} == set()

"""Towards a scheduler without the extension: whole, equal multiples of its unit, and it only sees integers."""

from msgspec.structs import replace

from agent.core import events
from agent.core.model import Vm
from agent.core.state import PermitRequest
from agent.peers.scheduler import SentRequest
from protocol import codec, wire
from protocol.values import Bounds, ComputeUnit, Resources
from protocol.wire import PluginResponse
from tests.support.amounts import UNIT, cu
from tests.unit.agent.driver import VM, Driver, grant, refusal


def granted(
    vm: Vm, request: PermitRequest, permit: Resources, unit: Resources, sent_s: float
) -> events.Event:
    """The event that the link makes of such a reply, by way of its bytes."""
    reply = PluginResponse(wire.permit_slots(permit, vm.slot_bytes), wire.permit_slots(unit, vm.slot_bytes))
    return SentRequest(vm, request, b"", 0.0).answered(200, codec.encode(reply), sent_s)


class Published:
    """Grants whole, equal multiples of its unit and refuses anything else, as the published plugin does."""

    def __init__(self, driver: Driver, unit: Resources, vm: Vm = VM, *, is_strict: bool = True) -> None:
        self.driver, self.unit, self.vm = driver, unit, vm
        self.is_strict = is_strict
        self.seen: list[Resources] = []

    def __call__(self, request: PermitRequest) -> events.Event:
        asked = wire.from_slots(wire.request_slots(request.resources, self.vm.slot_bytes), self.vm.slot_bytes)
        if self.is_strict and asked != self.unit * asked.units(self.unit):
            return refusal(request, 400)
        self.is_strict = True
        self.seen.append(asked)
        return granted(self.vm, request, asked, self.unit, self.driver.now_s)


def _driver(size: Resources, vm: Vm, unit: Resources, *, is_strict: bool = False) -> tuple[Driver, Published]:
    driver = Driver(size, vm=vm)
    plugin = Published(driver, unit, vm, is_strict=is_strict)
    driver.scheduler = plugin
    return driver, plugin


def test_it_grows_in_whole_units_of_the_peer() -> None:
    driver, plugin = _driver(cu(2), VM, UNIT * 2)
    driver.wait(6)
    driver.busy_cpus = 2.1
    driver.wait(12)
    assert driver.size == cu(4)
    assert all(asked == UNIT * 2 * asked.units(UNIT * 2) for asked in plugin.seen)


def test_after_a_400_at_the_lowest_version_the_use_is_rounded_to_units() -> None:
    vm = replace(VM, unit=ComputeUnit(cu(1, 4)), bounds=Bounds(cu(1, 4), cu(4, 16)))
    driver, plugin = _driver(cu(2, 6), vm, cu(1, 4), is_strict=True)
    driver.wait(20)
    assert plugin.seen[0] == cu(2, 8)
    assert driver.held() == cu(2, 8)


def test_a_use_in_fractions_is_not_refused_for_its_rounding() -> None:
    vm = replace(VM, bounds=Bounds(Resources(500, VM.slot_bytes), cu(8)))
    driver, plugin = _driver(Resources(1500, 2 * VM.slot_bytes), vm, UNIT)
    driver.wait(20)
    assert driver.state.scheduler.fault == ""
    assert plugin.seen[0] == cu(2)
    assert driver.held() != cu(0)


def test_a_unit_that_does_not_divide_the_maximum_never_leads_above_it() -> None:
    vm = replace(VM, bounds=Bounds(UNIT, cu(3)))
    driver, _ = _driver(cu(2), vm, UNIT * 2)
    driver.busy_cpus = 9.0
    driver.wait(30)
    assert driver.size == cu(2)
    assert all(target.fits_in(vm.bounds.max) for target in driver.resizes())


def test_a_use_that_is_out_of_ratio_is_asked_for_in_whole_units() -> None:
    vm = replace(VM, unit=ComputeUnit(cu(1, 2)), bounds=Bounds(cu(1, 2), cu(3, 8)))
    driver, plugin = _driver(cu(2, 8), vm, cu(1, 2))
    driver.guest = lambda amount: events.DownscaleDenied(amount, "in use")
    driver.busy_cpus = 9
    driver.wait(30)
    assert plugin.seen[-1] == cu(4, 8)
    assert driver.size == cu(3, 8)


def test_a_published_peer_that_replaces_ours_is_served_as_one_and_the_other_way_round() -> None:
    driver = Driver().wait(6)
    driver.scheduler = Published(driver, UNIT * 2, is_strict=False)
    driver.busy_cpus = 2.1
    assert driver.wait(40).size == cu(4)
    driver.scheduler = driver.grants
    driver.wait(40)
    assert (driver.size, driver.state.scheduler.unit) == (cu(3), None)
    driver.scheduler = lambda request: grant(request, cu(0), sent_s=driver.now_s, instance=None)
    assert "is zero" in driver.wait(16).state.scheduler.fault


def test_a_maximum_below_the_unit_of_a_published_peer_is_a_reason_and_moves_nothing() -> None:
    small = replace(VM, bounds=Bounds(UNIT, cu(1.5)))
    driver = Driver(UNIT, vm=small)
    driver.scheduler = lambda request: grant(request, sent_s=driver.now_s, instance=None, unit=UNIT * 2)
    driver.busy_cpus = 0.9
    driver.wait(40)
    assert "does not fit the VM's maximum" in str(driver.plan().reason)
    assert (driver.size, driver.resizes()) == (UNIT, [])

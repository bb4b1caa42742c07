"""Applies the informant's answers and calls: registration, suspension, approvals, `/try-upscale`."""

from msgspec.structs import replace

from agent.core import events
from agent.core.model import Denial, PerResource, amounts
from agent.core.policies.utilisation import wished
from agent.core.policies.values import Load, micro
from agent.core.state import (
    NO_DENIALS,
    NO_WISHES,
    InformantState,
    RegistrationPhase,
    RunnerState,
    UrgentGrowth,
    WishPhase,
)
from agent.core.timing import Timing
from protocol.values import Resources
from protocol.wire import MoreResources


def started(state: RunnerState, event: events.Started) -> RunnerState:
    link = replace(state.informant, is_calling=True)
    if isinstance(event.action, events.AnnounceUpscale):
        link = replace(link, known_size=None)  # from here on the guest may count on more than it had approved
    if isinstance(event.action, events.Register):
        assert event.registration is not None
        link = InformantState(
            phase=RegistrationPhase.REGISTERING,
            registration=event.registration,
            is_calling=True,
            failures=link.failures,
            fault=link.fault,
            wishes=link.wishes,
        )
    return replace(state, informant=link)


def registered(state: RunnerState, event: events.Registered, now_s: float) -> RunnerState:
    """The informant accepted the registration. A `/resume` may have come before this answer."""
    link = state.informant
    if link.phase is not RegistrationPhase.REGISTERING or link.registration != event.registration:
        return state
    return replace(
        state,
        informant=replace(
            link,
            phase=RegistrationPhase.ACTIVE if link.resumed_early else RegistrationPhase.SUSPENDED,
            version=event.version,
            metrics_port=event.metrics_port,
            is_calling=False,
            failures=0,
            heard_s=now_s,
            fault="",
        ),
    )


def called(
    state: RunnerState, event: events.InformantHeard | events.Resumed | events.Suspended, now_s: float
) -> RunnerState:
    """The informant called under the ID of a registration. A call under an older ID means nothing any more."""
    link = state.informant
    if link.registration != event.registration:
        return state
    link = replace(link, heard_s=now_s)
    match event:
        case events.Resumed() if link.phase is RegistrationPhase.REGISTERING:
            link = replace(link, resumed_early=True)
        case events.Resumed():
            link = replace(link, phase=RegistrationPhase.ACTIVE)
        case events.Suspended() if link.phase is RegistrationPhase.REGISTERING:
            link = replace(link, resumed_early=False)
        case events.Suspended():
            # The other agent may grow and shrink the guest: earlier answers and approvals mean nothing after it.
            link = replace(link, phase=RegistrationPhase.SUSPENDED, known_size=None)
        case events.InformantHeard():
            pass
    return replace(state, informant=link)


def try_upscale_received(
    state: RunnerState, event: events.TryUpscaleReceived, now_s: float, timing: Timing, share: int
) -> RunnerState:
    """The guest cannot wait: for a while it should have more of each resource that it names. A resource that it does not name
    is called off; tied, only a call that names none calls anything off. `share` is that of the policy's wishes.

    Growth that a call has brought stays for the down window: the load behind it shows in metrics only later. A guest that calls again
    soon after it was shrunk keeps it longer (docs/decisions/0047).
    """
    link, more, use = state.informant, event.more_resources, state.in_use()
    if link.registration != event.registration:
        return state
    until_s = now_s + timing.try_upscale_s
    if state.unit.is_apart:
        named = (more.cpu, more.memory)
        earlier = Resources(*map(_asked, link.wishes))
        wanted = wished(use, state.unit.step, share, cpu=more.cpu, memory=more.memory, earlier=earlier)
    else:
        named = (more.cpu or more.memory,) * 2
        wanted = _whole_units_more(state, more)
    wishes = (
        _wished_again(wish, amount, in_use, level, until_s)
        if is_named
        else wish  # a dead container needs nothing any more, and after its start as much as before
        if state.backend.containers.waits
        else _over(wish, in_use, now_s, timing)
        for wish, is_named, amount, in_use, level in zip(
            link.wishes, named, amounts(wanted), amounts(use), levels(state.metrics.load), strict=True
        )
    )
    return replace(state, informant=replace(link, wishes=PerResource(*wishes), heard_s=now_s))


def _whole_units_more(state: RunnerState, more: MoreResources) -> Resources:
    """The fewest units of a tied VM with a step more than is in use of each resource that is named: both resources grow, so that the
    VM keeps its ratio."""
    use, unit = state.in_use(), state.unit
    named = Resources(
        use.vcpu_milli + (unit.step.vcpu_milli if more.cpu else 0),
        use.memory_bytes + (unit.step.memory_bytes if more.memory else 0),
    )
    return unit.amount(unit.covering(named))


def _asked(wish: UrgentGrowth | None) -> int:
    """The amount of a wish as long as its gain is kept; 0 for none."""
    return 0 if wish is None or wish.phase is WishPhase.GIVEN_BACK else wish.amount


def _wished_again(
    wish: UrgentGrowth | None, amount: int, in_use: int, level: int | None, until_s: float
) -> UrgentGrowth:
    """A wish at a load of `level`, the first one or after `wish`."""
    if wish is None or wish.phase is WishPhase.GIVEN_BACK:
        relapses = 0 if wish is None else wish.relapses + (in_use < wish.amount)
        return UrgentGrowth(amount, until_s, in_use, peak=level, relapses=relapses)
    return replace(wish, amount=amount, until_s=until_s, phase=WishPhase.STANDS)


def _over(wish: UrgentGrowth | None, in_use: int, since_s: float, timing: Timing) -> UrgentGrowth | None:
    """A wish that was called off, or has expired, at `since_s`: its gain stays for a while."""
    if wish is None or wish.is_over:
        return wish
    until_s = since_s + timing.kept_s(wish.relapses)
    return replace(wish, until_s=until_s, phase=WishPhase.KEPT) if in_use > wish.before else None


def load_read(link: InformantState, load: Load) -> InformantState:
    """A reading of the load, which wishes remember the highest of."""
    if link.wishes == NO_WISHES:
        return link
    pairs = zip(link.wishes, levels(load), strict=True)
    return replace(link, wishes=PerResource(*(_with_peak(*each) for each in pairs)))


def _with_peak(wish: UrgentGrowth | None, level: int | None) -> UrgentGrowth | None:
    if wish is None or level is None or wish.phase not in (WishPhase.STANDS, WishPhase.KEPT):
        return wish
    return replace(wish, peak=max(level, wish.peak or 0))


def levels(load: Load | None) -> tuple[int | None, int | None]:
    """The load of each resource, in millionths of a CPU and in bytes; None if it is unknown."""
    if load is None:
        return None, None
    busy = load.busy()
    return micro(load.load1) if busy is None else busy, load.memory_used()


def wishes_kept(state: RunnerState, until_s: float) -> RunnerState:
    """The urgent growth of the guest counts until `until_s` at least, because it cannot be had before."""
    kept = (
        None if each is None else replace(each, until_s=max(each.until_s, until_s))
        for each in state.informant.wishes
    )
    return replace(state, informant=replace(state.informant, wishes=PerResource(*kept)))


def size_known(state: RunnerState, amount: Resources) -> RunnerState:
    """The informant knows the size `amount`: it approved a downscale, or was sent an upscale.

    That ends a refusal; of a VM that is apart, only that of a resource that was lowered.
    """
    link, denied = state.informant, NO_DENIALS
    if state.unit.is_apart:
        lowered = _lowered(link, amount)
        denied = PerResource(
            None if lowered.cpu else link.denied.cpu, None if lowered.memory else link.denied.memory
        )
    return replace(
        state,
        informant=replace(link, known_size=amount, is_calling=False, failures=0, denied=denied, fault=""),
    )


def _lowered(link: InformantState, amount: Resources) -> PerResource[bool]:
    """Which resources are less in `amount` than the informant knows; none if that is not known."""
    known = link.known_size
    if known is None:
        return PerResource(False, False)
    return PerResource(amount.vcpu_milli < known.vcpu_milli, amount.memory_bytes < known.memory_bytes)


def denied(state: RunnerState, event: events.DownscaleDenied, now_s: float, timing: Timing) -> RunnerState:
    """The guest needs more than it was asked to live with.

    If the resources are apart and both were to shrink, memory is taken to be the reason, and CPU is asked for alone.
    """
    link, until_s = state.informant, now_s + timing.downscale_cooldown_s
    cpu, memory = (Denial(amount, until_s) for amount in amounts(event.amount))
    lowered = _lowered(link, event.amount)
    if not state.unit.is_apart:
        refused: PerResource[Denial | None] = PerResource(cpu, memory)
    elif lowered.cpu and not lowered.memory:
        refused = replace(link.denied, cpu=cpu)
    else:
        refused = replace(link.denied, memory=memory)
    link = replace(
        link,
        is_calling=False,
        failures=0,
        denied=refused,
        fault=f"downscale refused: {event.status}",
    )
    return replace(state, informant=link)


def failed(
    state: RunnerState, error: str, *, is_lost: bool, now_s: float, timing: Timing, chance: float
) -> RunnerState:
    """A call failed. An informant that is gone has forgotten the registration, so the agent registers anew."""
    link = state.informant
    failures = link.failures + 1
    retry_at_s = now_s + timing.retry_after_s(failures, chance)
    if is_lost or link.phase is RegistrationPhase.REGISTERING:
        return replace(state, informant=forgotten(link, failures, retry_at_s, error))
    # The guest may have heard us all the same: its knowledge is unknown, so it is told of its size anew.
    link = replace(
        link, is_calling=False, failures=failures, retry_at_s=retry_at_s, known_size=None, fault=error
    )
    return replace(state, informant=link)


def forgotten(link: InformantState, failures: int, retry_at_s: float, fault: str) -> InformantState:
    """The state towards an informant that does not know this agent; a try-upscale stays until it expires."""
    return InformantState(
        failures=failures,
        retry_at_s=retry_at_s,
        wishes=link.wishes,
        fault=fault,
    )


def _left(
    wish: UrgentGrowth | None, in_use: int, now_s: float, timing: Timing, *, is_needed: bool
) -> UrgentGrowth | None:
    """The rest of a wish. A guest that still has it is about to repeat it. `is_needed`: the load that caused it goes on."""
    if wish is None or now_s < wish.until_s:
        return wish
    match wish.phase:
        case WishPhase.STANDS:
            kept = _over(wish, in_use, wish.until_s, timing)
            return _left(kept, in_use, now_s, timing, is_needed=is_needed)
        case WishPhase.KEPT | WishPhase.NEEDED if wish.relapses and is_needed and in_use > wish.before:
            return replace(wish, until_s=now_s + timing.down_window_s, phase=WishPhase.NEEDED)
        case WishPhase.KEPT | WishPhase.NEEDED:
            soon_s = timing.relapse_s + timing.kept_s(wish.relapses)
            return replace(wish, amount=in_use, until_s=now_s + soon_s, phase=WishPhase.GIVEN_BACK)
        case WishPhase.GIVEN_BACK:
            return None


def _needed(state: RunnerState) -> tuple[bool, bool]:
    """Whether each resource has the load that caused its wish; tied, whether one of them has: they grow and shrink as one."""
    pairs = zip(state.informant.wishes, levels(state.metrics.load), strict=True)
    cpu, memory = (wish is not None and wish.has_same_load(level) for wish, level in pairs)
    return (cpu, memory) if state.unit.is_apart else (cpu or memory,) * 2


def lapse(state: RunnerState, now_s: float, timing: Timing) -> RunnerState:
    """A try-upscale expires; an informant that was silent for too long has forgotten the registration."""
    link = state.informant
    if link.wishes != NO_WISHES and any(wish is not None and now_s >= wish.until_s for wish in link.wishes):
        left = (
            _left(wish, in_use, now_s, timing, is_needed=is_needed)
            for wish, in_use, is_needed in zip(
                link.wishes, amounts(state.in_use()), _needed(state), strict=True
            )
        )
        link = replace(link, wishes=PerResource(*left))
        state = replace(state, informant=link)
    silent_s = now_s - link.heard_s
    if (
        link.is_registered
        and not link.is_calling
        and now_s >= link.heard_s + timing.informant_silence_s  # as the plan computes it: floats round
    ):
        fault = f"the informant did not ask for our ID for {silent_s:.0f} s"
        return replace(state, informant=forgotten(link, 0, now_s, fault))
    return state

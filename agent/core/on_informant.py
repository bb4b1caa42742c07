"""What the informant's answers and calls mean: registration, suspension, approvals, `/try-upscale`."""

from dataclasses import replace

from agent.core import events
from agent.core.state import InformantState, RegistrationPhase, RunnerState, UrgentGrowth
from agent.core.timing import Timing
from protocol.values import Resources


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
            try_upscale=link.try_upscale,
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
            # The other agent may grow and shrink the guest: what we were told, and allowed, means nothing after it.
            link = replace(link, phase=RegistrationPhase.SUSPENDED, known_size=None)
        case events.InformantHeard():
            pass
    return replace(state, informant=link)


def try_upscale_received(
    state: RunnerState, event: events.TryUpscaleReceived, now_s: float, timing: Timing
) -> RunnerState:
    """The guest cannot wait: for a while it should have one unit more than in use of each resource that it names. A call that
    names none cancels the earlier one.

    Growth that a call has brought stays for the down window: the load behind it shows in metrics only later, and a guest
    that is shrunk at once would call again.
    """
    link = state.informant
    if link.registration != event.registration:
        return state
    more, wish = event.more_resources, link.try_upscale
    if more.cpu or more.memory:
        use, unit = state.in_use(), state.vm.unit.step
        amount = Resources(
            use.vcpu_milli + (unit.vcpu_milli if more.cpu else 0),
            use.memory_bytes + (unit.memory_bytes if more.memory else 0),
        )
        wish = UrgentGrowth(amount, now_s + timing.try_upscale_s)
    elif wish is not None and not wish.is_met:
        is_met = wish.amount.fits_in(state.in_use())
        wish = UrgentGrowth(wish.amount, now_s + timing.down_window_s, is_met=True) if is_met else None
    return replace(state, informant=replace(link, try_upscale=wish, heard_s=now_s))


def size_known(state: RunnerState, amount: Resources) -> RunnerState:
    """The informant knows the size `amount`: it approved a downscale, or was sent an upscale."""
    link = state.informant
    return replace(
        state, informant=replace(link, known_size=amount, is_calling=False, failures=0, denied=None, fault="")
    )


def denied(state: RunnerState, event: events.DownscaleDenied, now_s: float, timing: Timing) -> RunnerState:
    """The guest needs more than it was asked to live with."""
    link = replace(
        state.informant,
        is_calling=False,
        failures=0,
        denied=event.amount,
        denied_until_s=now_s + timing.downscale_cooldown_s,
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
    # The guest may have heard us all the same: what it knows is unknown, so it is told of its size anew.
    link = replace(
        link, is_calling=False, failures=failures, retry_at_s=retry_at_s, known_size=None, fault=error
    )
    return replace(state, informant=link)


def forgotten(link: InformantState, failures: int, retry_at_s: float, fault: str) -> InformantState:
    """The state towards an informant that does not know this agent; a try-upscale stays until it expires."""
    return InformantState(
        failures=failures,
        retry_at_s=retry_at_s,
        try_upscale=link.try_upscale,
        fault=fault,
    )


def lapse(state: RunnerState, now_s: float, timing: Timing) -> RunnerState:
    """A try-upscale expires; an informant that was silent for too long has forgotten the registration."""
    link = state.informant
    if link.try_upscale is not None and now_s >= link.try_upscale.until_s:
        link = replace(link, try_upscale=None)
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

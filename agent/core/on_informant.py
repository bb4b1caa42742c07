"""What the informant's answers and calls mean: registration, who is in use, approvals, urgent wishes."""

from dataclasses import replace

from agent.core import events
from agent.core.state import InformantLink, Phase, State
from agent.core.timing import Timing
from protocol.values import Resources


def started(state: State, event: events.Started) -> State:
    """A call to the informant is being made."""
    link = replace(state.informant, is_calling=True)
    if isinstance(event.action, events.AnnounceUpscale):
        link = replace(link, told=None)  # from here on the guest may count on more than it had approved
    if isinstance(event.action, events.Register):
        assert event.registration is not None
        link = InformantLink(
            phase=Phase.REGISTERING,
            registration=event.registration,
            is_calling=True,
            failures=link.failures,
            fault=link.fault,
            wish=link.wish,
            wish_until_s=link.wish_until_s,
            is_wish_met=link.is_wish_met,
        )
    return replace(state, informant=link)


def registered(state: State, event: events.Registered, now_s: float) -> State:
    """The informant took us. A `/resume` may have come before this answer."""
    link = state.informant
    if link.phase is not Phase.REGISTERING or link.registration != event.registration:
        return state
    return replace(
        state,
        informant=replace(
            link,
            phase=Phase.ACTIVE if link.resumed_early else Phase.SUSPENDED,
            version=event.version,
            metrics_port=event.metrics_port,
            is_calling=False,
            failures=0,
            heard_s=now_s,
            fault="",
        ),
    )


def called(
    state: State, event: events.InformantHeard | events.Resumed | events.Suspended, now_s: float
) -> State:
    """The informant called us under the ID of a registration; under an older one it means nothing any more."""
    link = state.informant
    if link.registration != event.registration:
        return state
    link = replace(link, heard_s=now_s)
    match event:
        case events.Resumed() if link.phase is Phase.REGISTERING:
            link = replace(link, resumed_early=True)
        case events.Resumed():
            link = replace(link, phase=Phase.ACTIVE)
        case events.Suspended() if link.phase is Phase.REGISTERING:
            link = replace(link, resumed_early=False)
        case events.Suspended():
            # The other agent may grow and shrink the guest: what we were told, and allowed, means nothing after it.
            link = replace(link, phase=Phase.SUSPENDED, told=None)
        case events.InformantHeard():
            pass
    return replace(state, informant=link)


def wished(state: State, event: events.UpscaleWished, now_s: float, timing: Timing) -> State:
    """The guest cannot wait: one unit more than in use of what it names, for a while; nothing named cancels.

    What it brought stays for the down window all the same: the load that asked for it shows in metrics only later, and
    to take it back at once would have the guest ask anew.
    """
    link = state.informant
    if link.registration != event.registration:
        return state
    wish, until_s, is_met = None, 0.0, False
    if event.wanted.cpu or event.wanted.memory:
        use, unit = state.in_use(), state.vm.unit
        wish = Resources(
            use.vcpu_milli + (unit.vcpu_milli if event.wanted.cpu else 0),
            use.memory_bytes + (unit.memory_bytes if event.wanted.memory else 0),
        )
        until_s = now_s + timing.wish_s
    elif link.is_wish_met:
        wish, until_s, is_met = link.wish, link.wish_until_s, True
    elif link.wish is not None and link.wish.fits_in(state.in_use()):
        wish, until_s, is_met = link.wish, now_s + timing.down_window_s, True
    link = replace(link, wish=wish, wish_until_s=until_s, is_wish_met=is_met, heard_s=now_s)
    return replace(state, informant=link)


def told(state: State, amount: Resources) -> State:
    """The informant knows of `amount`, by approving it or by being told."""
    link = state.informant
    return replace(
        state, informant=replace(link, told=amount, is_calling=False, failures=0, denied=None, fault="")
    )


def denied(state: State, event: events.DownscaleDenied, now_s: float, timing: Timing) -> State:
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


def failed(state: State, error: str, *, is_lost: bool, now_s: float, timing: Timing, chance: float) -> State:
    """A call failed. An informant that is not there any more has forgotten us: register anew."""
    link = state.informant
    failures = link.failures + 1
    retry_at_s = now_s + timing.retry_after_s(failures, chance)
    if is_lost or link.phase is Phase.REGISTERING:
        return replace(state, informant=forgotten(link, failures, retry_at_s, error))
    # The guest may have heard us all the same: what it knows is unknown, so it is told of its size anew.
    link = replace(link, is_calling=False, failures=failures, retry_at_s=retry_at_s, told=None, fault=error)
    return replace(state, informant=link)


def forgotten(link: InformantLink, failures: int, retry_at_s: float, fault: str) -> InformantLink:
    """A link whose informant does not know us; a standing wish stays until it expires."""
    return InformantLink(
        failures=failures,
        retry_at_s=retry_at_s,
        wish=link.wish,
        wish_until_s=link.wish_until_s,
        is_wish_met=link.is_wish_met,
        fault=fault,
    )


def lapse(state: State, now_s: float, timing: Timing) -> State:
    """Wishes expire; an informant that was silent for too long has forgotten us."""
    link = state.informant
    if link.wish is not None and now_s >= link.wish_until_s:
        state = replace(state, informant=replace(link, wish=None, wish_until_s=0.0, is_wish_met=False))
        link = state.informant
    silent_s = now_s - link.heard_s
    if (
        link.phase in (Phase.ACTIVE, Phase.SUSPENDED)
        and not link.is_calling
        and now_s >= link.heard_s + timing.informant_silence_s  # as the plan computes it: floats round
    ):
        fault = f"the informant did not ask for our ID for {silent_s:.0f} s"
        return replace(state, informant=forgotten(link, 0, now_s, fault))
    return state

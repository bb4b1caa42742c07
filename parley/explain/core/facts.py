"""What one agent tells of a VM (`/v1/vms/NAMESPACE/NAME`), read without trust: whatever is missing or odd is not known."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parley.top.texts import (
    MAX_LINE,
    ShownAmount,
    amount,
    clean,
    goal_reasons,
    items,
    mapping,
    number,
)
from protocol.explaining import ReasonShown

_MAX_LISTED = 16


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault of a counterpart that stands: `peer` is scheduler, VM, informant, metrics or policies; `code` and `status` are those of a scheduler's answer."""

    peer: str
    message: str
    code: str = ""
    status: int | None = None
    supported: str = ""
    """The versions that the scheduler speaks, where it said so."""


@dataclass(frozen=True, slots=True)
class RefusedSize:
    """A size that the VM's node did not take. `kind` is growth or shrink."""

    kind: str
    target: str
    why: str
    retry_s: float | None


@dataclass(frozen=True, slots=True)
class ResizeFacts:
    """The way from the VM's size to its target; `phase` is one of the agent's words, empty where it does not say."""

    phase: str = ""
    to: ShownAmount | None = None
    since_s: float | None = None
    failures: int = 0
    fault: str = ""
    retry_s: float | None = None


@dataclass(frozen=True, slots=True)
class AskingFacts:
    """How the agent stands with the scheduler. `next_s` (seconds) is when it asks next, or `waits_for` what it waits for."""

    next_s: float | None = None
    waits_for: str = ""
    lease_left_s: float | None = None
    answered_s: float | None = None
    version: str = ""
    speaks: str = ""
    failures: int = 0
    is_unsettled: bool = False
    is_migrating: bool = False
    is_exhausted: bool = False
    """No version of the protocol is shared."""


@dataclass(frozen=True, slots=True)
class LookFacts:
    """The agent's looks at the VM: `failures` in a row with the last `fault`, and the age of the last one that worked."""

    age_s: float | None = None
    failures: int = 0
    fault: str = ""


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """What the informant says. `refused` is the size that it refused to shrink to, as text; `refuses_cpu_alone` where only CPUs were to
    go; `urgent` what the guest cannot wait for."""

    phase: str = ""
    refused: str = ""
    refuses_cpu_alone: bool = False
    refused_retry_s: float | None = None
    urgent: str = ""


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """A pod's containers: which of them are `down`, how their control groups differ from the pod's size (`mismatch`), how often they were
    restarted, how many the kernel has killed for lack of memory since the agent's start, and how the last one ended."""

    down: str = ""
    mismatch: str = ""
    restarts: int = 0
    oom_kills: int = 0
    last_end: str = ""

    def told(self) -> str:
        """The restarts in a few words; empty where there were none."""
        if not self.restarts:
            return ""
        kills = f", of which {self.oom_kills} OOM kills since the agent's start" if self.oom_kills else ""
        last = f"; last {self.last_end}" if self.last_end else ""
        return f"{self.restarts} restart{'s' if self.restarts > 1 else ''}{kills}{last}"


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """One VM as its agent sees it. Amounts are None and texts are empty where the agent does not say."""

    vm: str
    state: str
    state_reasons: tuple[str, ...]
    goal_reasons: tuple[str, ...]
    binding_policies: tuple[str, ...]
    """The policy whose part of the goal binds, for each resource."""
    size: ShownAmount | None
    target: ShownAmount | None
    goal: ShownAmount | None
    wished: ShownAmount | None
    """The goal before the VM's bounds cut it."""
    permit: ShownAmount | None
    held: ShownAmount | None
    minimum: ShownAmount | None
    maximum: ShownAmount | None
    load: str
    load_age_s: float | None
    is_stale: bool
    metrics_wait: str
    reasons: tuple[ReasonShown, ...]
    troubles: tuple[Trouble, ...]
    refused_sizes: tuple[RefusedSize, ...]
    asking: AskingFacts
    resize: ResizeFacts
    look: LookFacts
    guest: GuestFacts
    containers: ContainerFacts
    takeover_s: float | None
    next_look_s: float | None
    pending: str
    warnings: tuple[str, ...]

    def trouble(self, *peers: str) -> Trouble | None:
        """The first fault that stands with one of these counterparts."""
        return next((each for each in self.troubles if each.peer in peers), None)

    @property
    def wants_more(self) -> bool:
        """Whether it should have more of a resource than it has."""
        return exceeds(self.goal, self.size)

    @property
    def wants_less(self) -> bool:
        """Whether it should have less of a resource than it has, and more of none."""
        return exceeds(self.size, self.goal) and not self.wants_more


def exceeds(one: ShownAmount | None, other: ShownAmount | None) -> bool:
    """Whether any resource of `one` is more than in `other`; False where either is not known."""
    if one is None or other is None or one.worth is None or other.worth is None:
        return False
    return any(more > less for more, less in zip(one.worth, other.worth, strict=True))


def agent_facts(document: Mapping[str, Any]) -> AgentFacts:
    """Read the document of one VM."""
    bounds, plan, metrics = (mapping(document.get(name)) for name in ("bounds", "plan", "metrics"))
    age_s = number(document.get("metricsAgeSeconds"))
    reasons = goal_reasons(document)
    takeover = mapping(document.get("takeover"))
    return AgentFacts(
        vm=clean(document.get("vm")),
        state=clean(document.get("state")),
        state_reasons=_texts(document.get("stateReasons")),
        goal_reasons=reasons,
        binding_policies=_binding(mapping(document.get("goalParts"))),
        size=amount(document.get("size")),
        target=amount(document.get("target")),
        goal=amount(document.get("goal")),
        wished=amount(document.get("goalBeforeBounds")),
        permit=amount(document.get("permit")),
        held=amount(document.get("held")),
        minimum=amount(bounds.get("min")),
        maximum=amount(bounds.get("max")),
        load=_load(mapping(document.get("load"))),
        load_age_s=age_s,
        is_stale=_is(metrics.get("isStale")) or any("metrics are stale" in text for text in reasons),
        metrics_wait=clean(metrics.get("waitsFor")),
        reasons=_reasons(document.get("reasons")),
        troubles=_troubles(document),
        refused_sizes=tuple(_refused(mapping(each)) for each in items(document.get("refusedSizes"), 4)),
        asking=_asking(mapping(document.get("scheduler"))),
        resize=_resize(mapping(document.get("resize"))),
        look=_look(mapping(document.get("look"))),
        guest=_guest(mapping(document.get("guest"))),
        containers=_containers(mapping(document.get("containers")), mapping(document.get("counts"))),
        takeover_s=number(takeover.get("nextLifeSeconds")),
        next_look_s=number(plan.get("nextLookSeconds")),
        pending=clean(mapping(document.get("machine")).get("pending"), MAX_LINE),
        warnings=_texts(document.get("warnings")),
    )


def _is(value: object) -> bool:
    return value is True


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for each in items(value, _MAX_LISTED) if (text := clean(each, MAX_LINE)))


def _binding(parts: Mapping[str, Any]) -> tuple[str, ...]:
    firsts = (mapping(next(iter(items(parts.get(name), 1)), None)) for name in ("cpu", "memory"))
    return tuple(name for each in firsts if (name := clean(each.get("policy"))))


def _load(load: Mapping[str, Any]) -> str:
    busy, average = number(load.get("busyCPUs")), number(load.get("load1"))
    used = number(load.get("memoryUsed"))
    parts = []
    if busy is not None:
        parts.append(f"{busy:.2f} CPUs busy")
    elif average is not None:
        parts.append(f"load average {average:.2f}")
    if used is not None:
        shown = f"{used / 2**30:.1f}Gi" if used >= 2**30 else f"{used / 2**20:.0f}Mi"
        parts.append(f"{shown} of memory in use")
    for name, word in (("cpuPressure", "CPU"), ("memoryPressure", "memory")):
        stalled = number(load.get(name))
        if stalled:
            parts.append(f"{stalled:.0f} % of the time waiting for {word}")
    return ", ".join(parts)


def _reasons(value: object) -> tuple[ReasonShown, ...]:
    found = []
    for each in map(mapping, items(value, _MAX_LISTED)):
        code = clean(each.get("code"))
        if code:
            message, resource = clean(each.get("message"), MAX_LINE), clean(each.get("resource")) or None
            retry_s = number(each.get("retryAfterSeconds"))
            found.append(
                ReasonShown(code=code, message=message, resource=resource, retry_after_seconds=retry_s)
            )
    return tuple(found)


def _troubles(document: Mapping[str, Any]) -> tuple[Trouble, ...]:
    """The faults that stand; an agent of an earlier version tells them as texts that begin with the counterpart."""
    listed = document.get("standingFaults")
    supported = clean(
        mapping(mapping(document.get("scheduler")).get("fault")).get("supported"),
    )
    if isinstance(listed, list):
        found = []
        for each in map(mapping, listed[:_MAX_LISTED]):
            status = each.get("status")
            found.append(
                Trouble(
                    clean(each.get("peer")),
                    clean(each.get("message"), MAX_LINE),
                    clean(each.get("code")),
                    status if isinstance(status, int) and not isinstance(status, bool) else None,
                    supported if each.get("peer") == "scheduler" else "",
                )
            )
        return tuple(found)
    pairs = (text.partition(": ") for text in _texts(document.get("faults")))
    return tuple(Trouble(peer, message) for peer, _, message in pairs)


def _refused(each: Mapping[str, Any]) -> RefusedSize:
    return RefusedSize(
        clean(each.get("kind")),
        text_of(amount(each.get("target"))),
        clean(each.get("why"), MAX_LINE),
        number(each.get("retryInSeconds")),
    )


def _asking(link: Mapping[str, Any]) -> AskingFacts:
    failures = number(link.get("failures"))
    return AskingFacts(
        number(link.get("nextSeconds")),
        clean(link.get("waitsFor")),
        number(link.get("leaseLeftSeconds")),
        number(link.get("answeredSecondsAgo")),
        clean(link.get("version")),
        clean(link.get("supportedVersions")),
        int(failures or 0),
        _is(link.get("isUnsettled")),
        _is(link.get("isMigrating")),
        is_exhausted=_is(link.get("isExhausted")) or ("version" in link and link["version"] is None),
    )


def _resize(resize: Mapping[str, Any]) -> ResizeFacts:
    failures = number(resize.get("failures"))
    return ResizeFacts(
        clean(resize.get("phase")),
        amount(resize.get("to")),
        number(resize.get("sinceSeconds")),
        int(failures or 0),
        clean(resize.get("fault"), MAX_LINE) or clean(resize.get("refusal"), MAX_LINE),
        number(resize.get("retryInSeconds")),
    )


def _look(look: Mapping[str, Any]) -> LookFacts:
    failures = number(look.get("failures"))
    return LookFacts(number(look.get("ageSeconds")), int(failures or 0), clean(look.get("fault"), MAX_LINE))


def _guest(guest: Mapping[str, Any]) -> GuestFacts:
    refused, urgent = mapping(guest.get("refusedDownscale")), mapping(guest.get("urgent"))
    return GuestFacts(
        clean(guest.get("phase")),
        _named(refused),
        bool(refused.get("cpu")) and not refused.get("memory"),
        number(refused.get("retryInSeconds")),
        _named(urgent),
    )


def _containers(found: Mapping[str, Any], counts: Mapping[str, Any]) -> ContainerFacts:
    kills = number(mapping(counts.get("ends")).get("OOMKilled"))
    return ContainerFacts(
        clean(found.get("notRunning"), MAX_LINE),
        clean(found.get("mismatch"), MAX_LINE),
        int(number(found.get("restarts")) or 0),
        int(kills or 0),
        clean(found.get("lastEnd"), MAX_LINE),
    )


def _named(amounts: Mapping[str, Any]) -> str:
    """The resources that are there, with their amounts."""
    cpu, memory = clean(amounts.get("cpu")), clean(amounts.get("memory"))
    return " / ".join(text for text in (f"{cpu} CPU" if cpu else "", memory) if text)


def text_of(found: ShownAmount | None) -> str:
    """An amount as log lines write it, `2 CPU / 4Gi`; a question mark where it is not known."""
    if found is None:
        return "?"
    cpu, _, memory = found.text.partition("/")
    return f"{cpu} CPU / {memory}"

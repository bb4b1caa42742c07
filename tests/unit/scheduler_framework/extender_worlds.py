"""Around a framework extender under test: plugins that answer as told and note each call, and the extender of a profile of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from scheduler.permits.core.model import Holder
from scheduler.placing.core.objects import NodeInfo, QueuedPod, Reservation
from scheduler.placing.core.plugin import Plugin
from scheduler.placing.core.profile import EnabledPlugin, PluginSet, Profile
from scheduler.placing.core.values import Code, ExtensionPoint, Status, new_status
from scheduler.placing.cycle.assembly import of_profile
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.hooks import ExtenderPorts, SharedHooks, no_reservations
from scheduler.placing.plugins.registry import Registry
from scheduler.ports import Placements
from tests.unit.hosting.raw_peers import Lines, recorded
from tests.unit.scheduler_framework.plugin_worlds import BinderAsTold, LedgerAsTold, PoolsAsTold

FILTERED = new_status(Code.UNSCHEDULABLE, "no")
ERROR = new_status(Code.ERROR, "broken")
SKIP = new_status(Code.SKIP)

DEFAULTS: Mapping[str, Any] = {
    "before_pre_filter": (None, None),
    "pre_filter": (None, None),
    "after_pre_filter": None,
    "find_one_node": ("", SKIP),
    "prefer_nodes": ((), SKIP),
    "before_filter": (None, None, None),
    "filter": None,
    "add_pod": None,
    "remove_pod": None,
    "post_filter": (None, FILTERED),
    "after_post_filter": None,
    "pre_score": None,
    "before_score": (None, None, None),
    "score": (1, None),
    "normalize_score": None,
    "pre_restore_reservation": None,
    "restore_reservation": ("kept", None),
    "filter_reservation": None,
    "filter_nominate_reservation": None,
    "score_reservation": (1, None),
    "normalize_reservation_score": None,
    "nominate_reservation": (None, None),
    "nominated_reservation": None,
    "delete_nominated_reservation": None,
    "reserve": None,
    "unreserve": None,
    "permit": (None, 0.0),
    "pre_bind": None,
    "apply_patch": SKIP,
    "bind": None,
    "post_bind": None,
    "next_pod": None,
    "endpoints": (),
}
"""The answer of each method, unless a test says otherwise."""
NATIVE: Mapping[str, ExtensionPoint] = {
    "pre_enqueue": ExtensionPoint.PRE_ENQUEUE,
    "pre_filter": ExtensionPoint.PRE_FILTER,
    "filter": ExtensionPoint.FILTER,
    "post_filter": ExtensionPoint.POST_FILTER,
    "pre_score": ExtensionPoint.PRE_SCORE,
    "score": ExtensionPoint.SCORE,
    "reserve": ExtensionPoint.RESERVE,
    "permit": ExtensionPoint.PERMIT,
    "pre_bind": ExtensionPoint.PRE_BIND,
    "bind": ExtensionPoint.BIND,
    "post_bind": ExtensionPoint.POST_BIND,
}


@dataclass
class Told:
    """A plugin with just these methods. An answer may be a value, an exception that is raised, or a function of the arguments."""

    name: str
    answers: Mapping[str, Any]

    def made(self, calls: list[str]) -> Plugin:
        """The plugin; it notes its calls as `name.method`, those for a node with the node's name behind."""

        def method(of: str) -> Callable[..., Any]:
            def call(_: object, *args: Any, **__: Any) -> Any:
                calls.append(f"{self.name}.{of}{_place(args)}")
                answer = self.answers[of]
                if isinstance(answer, Exception):
                    raise answer
                return answer(*args) if callable(answer) else answer

            return call

        methods: dict[str, Any] = {of: method(of) for of in self.answers}
        made: Plugin = type("Scripted", (), {**methods, "name": lambda _: self.name})()
        return made


def _place(args: Sequence[Any]) -> str:
    nodes = [arg.name for arg in args if isinstance(arg, NodeInfo)]
    return f":{nodes[-1]}" if nodes else ""


def told(name: str, *methods: str, **answers: Any) -> Told:
    """A plugin with these methods, which answer Success, and with `answers`."""
    return Told(name, {of: DEFAULTS[of] for of in methods} | answers)


class Sort:
    """The order of the queue, which a profile must have."""

    def name(self) -> str:
        return "Sort"

    def less(self, first: QueuedPod, second: QueuedPod) -> bool:
        return first.since_s < second.since_s


@dataclass(eq=False)
class BreakableLedger(LedgerAsTold):
    """A ledger that may fail to forget."""

    breaks_on_forget: bool = False

    def forget(self, holder: Holder) -> None:
        if self.breaks_on_forget:
            raise RuntimeError("the ledger is broken")
        super().forget(holder)


@dataclass
class ExtenderWorld:
    """An extender over `plugins`, and the calls so far. Each plugin is enabled where it has the native method, unless `points` say
    for a point which plugins are enabled, and in which order."""

    plugins: Sequence[Told]
    points: Mapping[ExtensionPoint, Sequence[str]] = field(default_factory=dict)
    reservations: Callable[[str], Sequence[Reservation]] = no_reservations
    time_s: float = 1000.0
    calls: list[str] = field(default_factory=list)
    placements: BreakableLedger = field(default_factory=BreakableLedger)
    made: dict[str, Plugin] = field(default_factory=dict)
    lines: Lines = field(init=False)

    def __post_init__(self) -> None:
        ports = ExtenderPorts(
            cast("Placements", self.placements),
            PoolsAsTold(),
            lambda: self.time_s,
            self.reservations,
            BinderAsTold(),
            "the client",
        )
        log, self.lines = recorded()
        self.shared = SharedHooks(ports, log)
        self.registry = Registry()
        self.registry.register("Sort", lambda _, __: Sort())
        for each in self.plugins:
            self.registry.register(each.name, self._factory(each))
        self.extender = SchedulingFramework(of_profile(self._profile(), self.registry), self.shared)

    def _factory(self, each: Told) -> Callable[[Any, Any], Plugin]:
        def make(_: Any, handle: Any) -> Plugin:
            self.handle = handle
            self.made[each.name] = each.made(self.calls)
            return self.made[each.name]

        return make

    def _profile(self) -> Profile:
        enabled: dict[ExtensionPoint, list[str]] = {ExtensionPoint.QUEUE_SORT: ["Sort"]}
        for each in self.plugins:
            for method, point in NATIVE.items():
                if method in each.answers and point not in self.points:
                    enabled.setdefault(point, []).append(each.name)
        if ExtensionPoint.BIND not in enabled:
            self.registry.register("Binder", self._factory(told("Binder", "bind")))
            enabled[ExtensionPoint.BIND] = ["Binder"]
        named = {**enabled, **self.points}
        return Profile(
            "test",
            {
                point: PluginSet(tuple(EnabledPlugin(name) for name in names))
                for point, names in named.items()
            },
        )

    def called(self) -> list[str]:
        """The calls since the last look."""
        calls = list(self.calls)
        self.calls.clear()
        return calls


def texts(status: Status | None) -> tuple[str, str, str]:
    if status is None:
        return ("Success", "", "")
    return (str(status.code), status.message, status.plugin)

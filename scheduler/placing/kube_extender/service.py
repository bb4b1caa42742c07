"""The verbs of the extender, over HTTP: filter, prioritize, preempt and bind. Source: reference/kubernetes.md 2.

Filter, prioritize and preempt have no side effects; they judge the cluster as it is in that moment. A failure here is an answer with
status 200 and an `Error`, where the verb has one: kube-scheduler shows that text in an Event of the pod. A process that does not
lead answers 503.
"""

import asyncio
import importlib.metadata
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final

from hosting import openapi, server
from hosting.access import AccessScope
from hosting.kubernetes.resources import Manifest
from hosting.logs import Logger
from hosting.metrics import AnyFamily
from protocol.reasons import ErrorCode
from protocol.texts import clean
from protocol.values import Value
from scheduler.placing.core import runs
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.values import (
    MAX_NODE_SCORE,
    RegisteredEvents,
    Status,
    is_rejected,
    is_success,
    message_of,
)
from scheduler.placing.cycle.calls import fault_text
from scheduler.placing.cycle.context import CycleState
from scheduler.placing.cycle.framework import SchedulingFramework
from scheduler.placing.cycle.passes import find_nodes, score_nodes
from scheduler.placing.kube_extender import messages, operations
from scheduler.placing.kube_extender.binds import Binds, Scheduling, scheduler_name
from scheduler.placing.kube_extender.messages import (
    ExtenderArgs,
    ExtenderBindingResult,
    ExtenderFilterResult,
    ExtenderPreemptionArgs,
    ExtenderPreemptionResult,
    MessageError,
    MetaPod,
    MetaVictims,
)
from scheduler.placing.kube_extender.operations import ExtenderStats
from scheduler.placing.kube_extender.refused import VICTIMS, RefusedPods
from scheduler.ports import LeadershipGuard, NotLeadingError

PREFIX: Final = "/extender/v1"
HTTP_TIMEOUT_S: Final = 5.0
"""kube-scheduler's `httpTimeout`, where the configuration does not set it."""
IN_TIME: Final = 0.8
"""The share of that time within which every call is answered."""
CYCLE_S: Final = 1.0
"""kube-scheduler asks for scores at once when the filter was answered; later than this the nodes are looked at anew."""
MAX_BODY_BYTES: Final = 32 << 20
"""Enough for the Node objects of some 2,000 nodes (`nodeCacheCapable: false`), and for the names of any number."""
MAX_BINDING_BYTES: Final = 16 << 10


class CannotSayError(Exception):
    """A call came to nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The basis of one call: a pod, its profile, and the nodes as they are now."""

    pod: PodInfo
    framework: SchedulingFramework
    context: CycleState
    nodes: NodeSnapshot
    begun_s: float

    def known(self, names: "tuple[str, ...]") -> list[NodeInfo]:
        return self.nodes.named(names)


class ExtenderService:
    """Answers kube-scheduler for as long as this process leads. `clock` is monotonic; `timeout_s` is kube-scheduler's `httpTimeout`."""

    def __init__(
        self,
        scheduling: Scheduling,
        guard: LeadershipGuard,
        clock: Callable[[], float],
        log: Logger,
        *,
        timeout_s: float = HTTP_TIMEOUT_S,
    ) -> None:
        self._scheduling = scheduling
        self._guard = guard
        self._clock = clock
        self._log = log
        self._answer_s = timeout_s * IN_TIME
        self._binds = Binds(scheduling, guard, clock, log, self._answer_s / 2)
        self._trials = itertools.count(-1, -1)
        self._filtered: _Attempt | None = None
        """The last filter that left nodes: kube-scheduler asks for their scores next."""
        self._asked: ExtenderArgs | None = None
        """The last body of filter."""
        self.stats = ExtenderStats()
        self.refused: Final = RefusedPods(self._events_of)

    def routes(self) -> tuple[server.Route, ...]:
        """One route for each verb, and their document. `urlPrefix` of kube-scheduler's configuration ends in `PREFIX`."""
        served = self._served
        verbs = (
            server.Route(
                "POST",
                "/extender/v1/filter",
                served("filter", self._filter, self._filter_fails),
                MAX_BODY_BYTES,
                about=operations.FILTER,
                scope=AccessScope.EXTENDER,
            ),
            server.Route(
                "POST",
                "/extender/v1/prioritize",
                served("prioritize", self._prioritize, self._prioritize_fails),
                MAX_BODY_BYTES,
                about=operations.PRIORITIZE,
                scope=AccessScope.EXTENDER,
            ),
            server.Route(
                "POST",
                "/extender/v1/preempt",
                served("preempt", self._preempt, self._preempt_fails),
                MAX_BODY_BYTES,
                about=operations.PREEMPT,
                scope=AccessScope.EXTENDER,
            ),
            server.Route(
                "POST",
                "/extender/v1/bind",
                served("bind", self._bind, self._bind_fails),
                MAX_BINDING_BYTES,
                about=operations.BIND,
                scope=AccessScope.EXTENDER,
            ),
        )
        version = importlib.metadata.version("parley-autoscaler")
        return (*verbs, openapi.route("Parley extender", version, verbs, "/extender/v1/openapi.json"))

    def families(self) -> tuple[AnyFamily, ...]:
        return tuple(
            self.stats.families(
                under_way=len(self._binds),
                in_doubt=self._binds.in_doubt,
                refused=len(self.refused),
                told=self.refused.told_total,
            )
        )

    async def close(self) -> None:
        """Begin no bind any more, and let those under way end: the next leader must find them bound, or not."""
        await self._binds.close()

    # ------------------------------------------------------------ any call

    def _served(
        self,
        verb: str,
        serve: Callable[[bytes], Awaitable[tuple[str, bytes]]],
        fails: Callable[[str], server.Reply],
    ) -> server.Handler:
        async def handle(request: server.Request) -> server.Reply:
            began_s = perf_counter()
            outcome, reply = await self._answer(verb, serve, fails, request.body)
            self.stats.calls[verb, outcome] += 1
            self.stats.durations[verb].observe(perf_counter() - began_s)
            return reply

        return handle

    async def _answer(
        self,
        verb: str,
        serve: Callable[[bytes], Awaitable[tuple[str, bytes]]],
        fails: Callable[[str], server.Reply],
        body: bytes,
    ) -> tuple[str, server.Reply]:
        try:
            self._guard.check(0)
            async with asyncio.timeout(self._answer_s):
                outcome, answer = await serve(body)
        except MessageError as error:
            self._log.warning("call malformed", verb=verb, faults=error.faults[:10])
            return "malformed", server.problem(400, ErrorCode.MALFORMED, f"{verb}: {error}", error.faults)
        except NotLeadingError as error:
            where = f" at {error.leader}" if error.leader is not None else ""
            detail = f"{error}{where}"
            return "not-leader", server.problem(503, ErrorCode.NOT_LEADER, detail, leader=error.leader)
        except TimeoutError:
            self._log.warning("call late", verb=verb, after_s=self._answer_s)
            return "late", fails(f"no answer within {self._answer_s:g} s")
        except CannotSayError as error:
            self._log.warning("call failed", verb=verb, error=str(error))
            return "failed", fails(str(error))
        except Exception as error:  # noqa: BLE001 - a fault in one call, or of a plugin, must not end the daemon
            self._log.error("call failed by our fault", verb=verb, error=repr(error), exc_info=error)
            return "failed", fails(f"internal error: {fault_text(error)}")
        return outcome, server.Reply(200, answer)

    def _begin(self, manifest: Manifest) -> _Attempt:
        try:
            pod = self._scheduling.pod_info(manifest)
        except ValueError as error:
            raise CannotSayError(str(error)) from None
        framework, nodes = (
            self._scheduling.framework_of(scheduler_name(manifest)),
            self._scheduling.snapshot(),
        )
        framework.set_snapshot(nodes)
        return _Attempt(pod, framework, CycleState(), nodes, self._clock())

    def _events_of(self, pod: PodInfo) -> RegisteredEvents:
        return self._scheduling.framework_of(scheduler_name(dict(pod.manifest))).events

    # ------------------------------------------------------------ filter

    async def _filter(self, body: bytes) -> tuple[str, bytes]:
        args = self._asked = messages.read_args(body)
        self._binds.show(args.pod)
        looks = self.refused.looks
        pod, failed = await self._failed_nodes(args)
        if len(failed) == len(args.node_names):
            # kube-scheduler may be ahead of us: a victim's end, such as one of its own. Another attempt would be a second later.
            await self._scheduling.catch_up()
            pod, failed = await self._failed_nodes(args)
        if len(failed) == len(args.node_names):
            self.refused.refused(pod, {each.plugin for each in failed.values()}, looks, self._clock())
        self.stats.drop(failed)
        left = [name for name in args.node_names if name not in failed]
        result = ExtenderFilterResult(
            nodes=None if args.nodes is None else messages.node_list(args.nodes[name] for name in left),
            node_names=left if args.nodes is None else None,
            failed_nodes=messages.texts(failed, are_resolvable=True),
            failed_and_unresolvable_nodes=messages.texts(failed, are_resolvable=False),
        )
        return "ok" if left else "refused", messages.encode(result)

    async def _failed_nodes(self, args: ExtenderArgs) -> tuple[PodInfo, dict[str, Status]]:
        """The pod, and the nodes where the pod cannot be now."""
        attempt = self._begin(args.pod)
        known = attempt.known(args.node_names)
        found = await find_nodes(attempt.framework, attempt.context, attempt.pod, known)
        if not is_rejected(found.status):
            _check(found.status)
        failed = messages.failed_nodes(args.node_names, known, found.statuses)
        if len(failed) == len(args.node_names):
            rejected = attempt.framework.record_rejection(attempt.context, attempt.pod, failed)
            attempt.framework.shared.rejections[rejected.rejection] += 1
        else:
            self._filtered = attempt
        return attempt.pod, failed

    def _filter_fails(self, why: str) -> server.Reply:
        return _json(ExtenderFilterResult(error=clean(why, messages.MAX_TEXT)))

    # ------------------------------------------------------------ prioritize

    async def _prioritize(self, body: bytes) -> tuple[str, bytes]:
        args = messages.read_args(body, self._asked)
        attempt = self._resumed(args.pod) or await self._pre_filtered(args)
        known = attempt.known(args.node_names)
        scored = await score_nodes(attempt.framework, attempt.context, attempt.pod, known)
        _check(scored.status)
        skipped = attempt.context.skip_score_plugins or ()
        weights = attempt.framework.profile.weights.items()
        best = MAX_NODE_SCORE * sum(weight for plugin, weight in weights if plugin not in skipped)
        return "ok", messages.encode(messages.priorities(args.node_names, scored.scores, best))

    def _resumed(self, manifest: Manifest) -> _Attempt | None:
        """The attempt of the filter before, once, with its nodes and what its pre-filter has noted: one cycle has one snapshot. None for
        another pod, under another profile, and later than a cycle takes."""
        attempt, self._filtered = self._filtered, None
        if attempt is None or attempt.pod.manifest != manifest or self._clock() - attempt.begun_s > CYCLE_S:
            return None
        if self._scheduling.framework_of(scheduler_name(manifest)) is not attempt.framework:
            return None
        attempt.framework.set_snapshot(attempt.nodes)
        return attempt

    async def _pre_filtered(self, args: ExtenderArgs) -> _Attempt:
        attempt = self._begin(args.pod)
        known = attempt.known(args.node_names)
        _, status = await attempt.framework.run_pre_filter_plugins(attempt.context, attempt.pod, known)
        _check(status)
        return attempt

    def _prioritize_fails(self, why: str) -> server.Reply:
        """No opinion on any node."""
        del why
        return server.Reply(200, b"[]")

    # ------------------------------------------------------------ preempt

    async def _preempt(self, body: bytes) -> tuple[str, bytes]:
        args = messages.read_preemption(body)
        looks = self.refused.looks
        pod, kept = await self._candidates(args)
        if not kept:
            await self._scheduling.catch_up()
            pod, kept = await self._candidates(args)
        if not kept:
            self.refused.refused(pod, {VICTIMS}, looks, self._clock())
        return "ok" if kept else "refused", messages.encode(ExtenderPreemptionResult(kept))

    async def _candidates(self, args: ExtenderPreemptionArgs) -> tuple[PodInfo, dict[str, MetaVictims]]:
        """The pod, and the nodes where the pod could be once the victims are gone."""
        attempt = self._begin(args.pod)
        known = attempt.known(tuple(args.victims))
        result, status = await attempt.framework.run_pre_filter_plugins(attempt.context, attempt.pod, known)
        if is_rejected(status):
            return attempt.pod, {}
        _check(status)
        wanted = result.node_names if result is not None else None
        kept = {}
        for node in known:
            if (wanted is None or node.name in wanted) and await self._fits_without(attempt, args, node):
                victims = args.victims[node.name]
                pods = [MetaPod(uid) for uid in victims.uids]
                kept[node.name] = MetaVictims(pods, victims.num_pdb_violations)
        return attempt.pod, kept

    async def _fits_without(self, attempt: _Attempt, args: ExtenderPreemptionArgs, node: NodeInfo) -> bool:
        """Whether the pod could be on the node once the victims have left it."""
        uids = frozenset(args.victims[node.name].uids)
        trial = messages.without_pods(node, uids, next(self._trials))
        context, framework, pod = attempt.context.clone(), attempt.framework, attempt.pod
        left = {each.uid for each in trial.pods}
        for victim in node.pods:
            if victim.uid not in left:
                _check(await framework.run(runs.REMOVE_POD, context, pod, victim, trial))
        status = await framework.run_filter_plugins(context, pod, trial)
        if not is_rejected(status):
            _check(status)
        return bool(uids) and is_success(status)

    def _preempt_fails(self, why: str) -> server.Reply:
        """The answer has no place for an error, and an empty one would say that no preemption helps."""
        return server.problem(500, ErrorCode.INTERNAL, why)

    # ------------------------------------------------------------ bind

    async def _bind(self, body: bytes) -> tuple[str, bytes]:
        asked = messages.read_binding(body)
        said = await self._binds.bind(asked)
        if not said:
            self.refused.gone(asked.uid)
        shown = clean(said, messages.MAX_TEXT)
        return "refused" if said else "ok", messages.encode(ExtenderBindingResult(shown))

    def _bind_fails(self, why: str) -> server.Reply:
        return _json(ExtenderBindingResult(clean(why, messages.MAX_TEXT)))


def _json(result: Value) -> server.Reply:
    return server.Reply(200, messages.encode(result))


def _check(status: Status | None) -> None:
    """Raises `CannotSayError` for anything but Success."""
    if not is_success(status):
        raise CannotSayError(message_of(status))

"""`ElasticQuota`: a pod is placed only where its quota has room, as the published plugin says. Source: reference/koordinator.md 2.4.

What grows counts as used with its permit, and as requested with that and what it was denied. So a quota that was full by requests has
room when its VMs shrink, and one whose VMs have grown is full although they were small when they were placed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from hosting.kubernetes import objects, pods
from hosting.kubernetes.koordinator import ELASTIC_QUOTAS
from hosting.kubernetes.resources import PODS, Manifest
from hosting.settings import check
from protocol.quantities import QuantityError
from protocol.wire import PodName
from scheduler.placing.core.handle import ExtendedHandle, RawArgs
from scheduler.placing.core.objects import NodeInfo, NodeSnapshot, PodInfo
from scheduler.placing.core.plugin import Controller, CycleContext
from scheduler.placing.core.values import (
    ActionType,
    Code,
    ContextKey,
    Endpoint,
    EventResource,
    EventWithHint,
    PostFilterResult,
    PreFilterResult,
    RejectionClass,
    Status,
    error_status,
    new_status,
    rejected,
)
from scheduler.placing.plugins.amounts import NodeAmounts, pod_amounts, readable_amounts
from scheduler.placing.plugins.base import MAY_BE_BOUND, ShippedPlugin, find, shared_state
from scheduler.placing.plugins.elastic_quota.args import ElasticQuotaArgs
from scheduler.placing.plugins.elastic_quota.controllers import NewestNodes, QuotaWriter
from scheduler.placing.plugins.elastic_quota.reading import NAME, PREEMPTIBLE, WRITTEN, quota_of
from scheduler.placing.plugins.ledger_fit import own_row
from scheduler.ports import BINDING_SETTLES_S
from scheduler.quotas.admission import QuotaAccount, QuotaRules, victims
from scheduler.quotas.books import CountedPod, QuotaBooks
from scheduler.quotas.faults import QuotaKey, quota_faults
from scheduler.quotas.tree import QuotaTree
from scheduler.quotas.values import (
    BUILT_IN,
    DEFAULT,
    NONE,
    ROOT,
    SYSTEM,
    Amounts,
    QuotaFault,
    QuotaPod,
    QuotaSpec,
    added,
)

_REFUSED: Final = ContextKey("ElasticQuota/refused")
"""Name of the quota that refused the pod, and the amounts that are missing there."""


class ElasticQuota(ShippedPlugin):
    """The plugin. Points: preFilter, postFilter, reserve. It has controllers, and shows the quotas."""

    ARGS = ElasticQuotaArgs

    def __init__(self, args: RawArgs, handle: ExtendedHandle) -> None:
        super().__init__(args, handle)
        read = self._args = check(args, ElasticQuotaArgs)
        rules = QuotaRules(read.enable_check_parent_quota, read.enable_runtime_quota)
        self._books = QuotaBooks(rules, _counted_on, NodeAmounts().allocatable)
        self._in_doubt: dict[str, float] = {}
        """By UID of pods that may be bound: until when (s) what was reserved for them is kept."""
        self._specs: tuple[QuotaSpec, ...] = ()
        self._unreadable: Mapping[QuotaKey, tuple[QuotaFault, ...]] = {}
        self._is_stale = True
        self._newest = shared_state(handle.placements, NewestNodes)
        self._quotas = handle.shared_informer(ELASTIC_QUOTAS)
        self._quotas.add_event_handler(self._quota_changed)
        handle.shared_informer(PODS).add_event_handler(self._pod_changed)
        handle.register_forget_pod_handler(lambda pod, _: self._books.reserve(pod.uid, None))
        self.writer = QuotaWriter(read, handle, self._quotas, self.account, self._books.pods, self.faults)

    def events_to_register(self) -> Sequence[EventWithHint]:
        """Quotas that change; pods that go, what grows and gives something back, and nodes, which all change what quotas may use."""
        return (
            EventWithHint(ELASTIC_QUOTAS, ActionType.ALL),
            EventWithHint(EventResource.POD, ActionType.DELETE),
            EventWithHint(EventResource.LEDGER, ActionType.ALL),
            EventWithHint(EventResource.NODE, ActionType.ADD | ActionType.UPDATE),
        )

    # ------------------------------------------------------------ placing a pod

    def pre_filter(
        self, context: CycleContext, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> tuple[PreFilterResult | None, Status | None]:
        """The quota must have room for the pod, whatever the node. A pod that counts as used already is not asked again, and a published
        Reservation never is: no pod event would give back what it takes."""
        if pod.is_reservation:
            return None, None
        if not self._quotas.has_synced:
            return None, error_status("the elastic quotas have not been read yet")
        try:
            counts = _counted(pod, pod_amounts(pod))
        except QuantityError as error:
            return None, new_status(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, f"the pod's resources: {error}")
        return None, self._judged(context, counts)

    async def post_filter(
        self, context: CycleContext, pod: PodInfo, statuses: Mapping[str, Status]
    ) -> tuple[PostFilterResult | None, Status | None]:
        """The pods of the quota that would have to go for this one: evicted where settings say so, else named. No node is nominated,
        because a quota is not of a node; the pod is tried again when they are gone."""
        name, missing = find(context, _REFUSED) or (DEFAULT, NONE)
        is_barred = name == DEFAULT and self._args.disable_default_quota_preemption
        chosen = () if is_barred else victims(self._books.pods(name), missing, pod.priority)
        if not chosen:
            return None, new_status(Code.UNSCHEDULABLE)
        named = ", ".join(each.name for each in chosen)
        if not self._args.evict_victims:
            text = f"quota {name} would have room without {named} (evictVictims is false)"
            return None, new_status(Code.UNSCHEDULABLE, text)
        await self.writer.evict(chosen, f"room in quota {name} for pod {pod.name}")
        return None, new_status(Code.UNSCHEDULABLE, f"evicted from quota {name}: {named}")

    def reserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> Status | None:
        """The pod counts as used from now on; refused where the room has gone to another pod since."""
        if pod.is_reservation:
            return None
        counts = _counted(pod, readable_amounts(pod))
        status = self._judged(context, counts)
        if status is None:
            self._in_doubt.pop(pod.uid, None)
            self._books.reserve(pod.uid, replace(counts, used=counts.request))
        return status

    def unreserve(self, context: CycleContext, pod: PodInfo, node_name: str) -> None:
        """Give it back; later, where the pod may be bound: the nodes show it by then if it is."""
        if find(context, MAY_BE_BOUND):
            self._in_doubt[pod.uid] = self._handle.now_s() + BINDING_SETTLES_S
        else:
            self._in_doubt.pop(pod.uid, None)
            self._books.reserve(pod.uid, None)

    # ------------------------------------------------------------ what is known

    def account(self) -> QuotaAccount:
        """Shares and use now: between cycles what grows may have grown or shrunk."""
        self._bring_up_to_date(self._handle.nodes_now())
        return self._books.account()

    def faults(self, account: QuotaAccount) -> dict[QuotaKey, tuple[QuotaFault, ...]]:
        """The faults of each object that has any."""
        broken = quota_faults(self._specs, account.used, self._books.with_pods())
        keys = {*broken, *self._unreadable}
        return {key: self._unreadable.get(key, ()) + broken.get(key, ()) for key in keys}

    def _judged(self, context: CycleContext, counts: CountedPod) -> Status | None:
        """Whether the pod's quota has room for it. One that counts as used already has it; one that is not known to wait yet counts as
        a request for this question."""
        self._bring_up_to_date(self._handle.node_info_snapshot())
        books, uid = self._books, counts.pod.uid
        if books.is_placed(uid):
            return None
        is_shown = books.is_counted(uid)
        books.wait(uid, counts)
        account = books.account()
        if not is_shown:
            books.wait(uid, None)
        name = books.tree.quota_of(counts.label, counts.namespace)
        text = account.refusal(name, counts.request, is_preemptible=counts.pod.is_preemptible)
        if text is None:
            return None
        context.write(_REFUSED, (name, account.missing(name, counts.request)))
        return rejected(RejectionClass.POLICY, Code.UNSCHEDULABLE, text)

    def _bring_up_to_date(self, snapshot: NodeSnapshot) -> None:
        if self._is_stale:
            self._read_quotas()
            self._is_stale = False
        now_s = self._handle.now_s()
        for uid in [uid for uid, until_s in self._in_doubt.items() if until_s <= now_s]:
            del self._in_doubt[uid]
            self._books.reserve(uid, None)
        newest = self._newest
        if snapshot.generation > newest.snapshot.generation:  # else later ones were looked at already
            newest.snapshot = snapshot
        self._books.see(newest.snapshot)

    def _read_quotas(self) -> None:
        """Of several with one name the first counts: one of `quotaGroupNamespace`, else the oldest. So nobody takes a quota over by
        making another one of its name."""
        scales_min, home = self._args.enable_min_quota_scale, self._args.quota_group_namespace

        def precedence(each: tuple[QuotaKey, Manifest]) -> tuple[object, ...]:
            key, manifest = each
            return key[0] != home, _created(manifest), key

        objects_ = sorted(self._quotas.objects().items(), key=precedence)
        read = {key: quota_of(manifest, scales_min=scales_min) for key, manifest in objects_}
        self._specs = tuple(spec for spec, _ in read.values())
        self._unreadable = {key: faults for key, (_, faults) in read.items() if faults}
        described = [spec for spec in self._specs if spec.name not in BUILT_IN or spec.namespace == home]
        system = QuotaSpec(SYSTEM, max=self._args.system_quota_group_max)
        default = QuotaSpec(DEFAULT, max=self._args.default_quota_group_max)
        self._books.use(QuotaTree([*described, system, default]))

    def _quota_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        """Status and annotations that this plugin itself writes change nothing."""
        self._is_stale = (
            self._is_stale or before is None or after is None or _described(before) != _described(after)
        )

    def _pod_changed(self, before: Manifest | None, after: Manifest | None) -> None:
        """A pod may have gone or ended before any cycle has shown it on its node, so what was reserved for it goes here."""
        if before is not None and (after is None or objects.uid(before) != objects.uid(after)):
            self._forget(objects.uid(before))
        if after is None:
            return
        if pods.is_terminal(after):
            self._forget(objects.uid(after))
        else:
            waits = not after["spec"].get("nodeName")
            self._books.wait(objects.uid(after), _waiting(after) if waits else None)

    def _forget(self, uid: str) -> None:
        self._books.wait(uid, None)
        self._books.reserve(uid, None)

    # ------------------------------------------------------------ pages and controllers

    def endpoints(self) -> Sequence[Endpoint]:
        """`quotas`: all of them; `quotas/{name}`: one."""
        return Endpoint("/quotas", lambda _: self._shown()), Endpoint(
            "/quotas/{name}",
            lambda named: next((each for each in self._shown() if each["name"] == named["name"]), None),
        )

    def _shown(self) -> list[dict[str, Any]]:
        account, found = self.account(), []
        faults = self.faults(account)
        for name in account.tree.from_above:
            namespace = account.tree.specs[name].namespace
            told = [fault.text for fault in faults.get((namespace, name), ())]
            if name != ROOT:
                found.append({**account.shown(name), "namespace": namespace, "faults": told})
        return found

    def new_controllers(self) -> Sequence[Controller]:
        """`status` keeps the objects' status and annotations; `ask-back` has pods asked to shrink whose quota uses too much; `revoke` evicts
        where `monitorAllQuotas` says so."""
        controllers = [Controller("status", self.writer.keep_status)]
        if self._args.enable_runtime_quota:  # else nobody has lent anything
            controllers.append(Controller("ask-back", self.writer.keep_asking_back))
        if self._args.monitor_all_quotas:
            controllers.append(Controller("revoke", self.writer.keep_revoking))
        return controllers


def _described(manifest: Manifest) -> tuple[object, ...]:
    """All of a quota's object that its meaning depends on."""
    annotations = objects.annotations(manifest)
    others = {name: text for name, text in annotations.items() if name not in WRITTEN}
    return _created(manifest), manifest.get("spec"), objects.labels(manifest), others


def _created(manifest: Mapping[str, Any]) -> str:
    """When the object was made, as a text that sorts."""
    return str((manifest.get("metadata") or {}).get("creationTimestamp") or "")


def _counted(pod: PodInfo, request: Amounts) -> CountedPod:
    metadata = pod.manifest.get("metadata") or {}
    counted = QuotaPod(
        pod.name,
        pod.uid,
        request,
        pod.priority,
        _created(pod.manifest),
        pod.labels.get(PREEMPTIBLE) != "false",
        metadata.get("deletionTimestamp") is not None,
    )
    return CountedPod(counted, pod.labels.get(NAME) or None, pod.pod.namespace, request)


def _waiting(manifest: Manifest) -> CountedPod | None:
    """A pod without a node; None if it cannot be read, since it cannot be placed then either."""
    name = PodName(objects.name(manifest), objects.namespace(manifest))
    priority = int((manifest.get("spec") or {}).get("priority") or 0)
    try:
        needs = pods.holds(manifest)
        pod = PodInfo(
            name,
            objects.uid(manifest),
            needs,
            priority=priority,
            labels=objects.labels(manifest),
            manifest=manifest,
        )
        return _counted(pod, pod_amounts(pod))
    except QuantityError:
        return None


def _counted_on(node: NodeInfo) -> Iterator[CountedPod]:
    """The pods of a node: what is kept for them is used, and what they were denied is requested besides."""
    for pod in node.pods:
        row = own_row(pod, node)
        used = readable_amounts(pod if row is None else replace(pod, amount=row.reserved))
        request = used if row is None else added(used, dict(row.pressure.named()))
        yield replace(_counted(pod, used), request=request, used=used)

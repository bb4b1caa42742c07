"""Situations around the agent: its metrics, its guest, its back end, and the way to the scheduler."""

import json
from collections.abc import AsyncIterator
from uuid import UUID

from agent.core.model import ContainersSeen
from agent.core.policies.combined import Combined, PluginPolicy
from agent.core.policies.windows import Bar, ResourceLimits, WindowLimits
from agent.core.ports import BackendError, ResizeRefusedError
from agent.daemon import vm_pages
from hosting import server
from hosting.server import HangUp, Reply, Request
from parley.explain.core.evidence import CPU_REFUSED
from parley.reach.ports import NoAnswer
from protocol import codec
from protocol.codec import ErrorBody
from protocol.extension import AGENT_HEADER
from protocol.reasons import ErrorCode
from protocol.versions import PluginProtoVersion, VersionRange
from scheduler.permits.core import events
from scheduler.permits.service.answers import not_leader
from scheduler.ports import ClusterUnreachableError
from tests.explain.agent_side import PolicyProcess, Serve
from tests.explain.scheduler_side import SchedulerSide
from tests.explain.situations import situation
from tests.explain.stage import AGENT, SCHEDULER, Stage, staged, told
from tests.support.amounts import cu
from tests.support.virtual_time import now_s
from tests.unit.scheduler_permits.service_worlds import ask

REFUSED = "connection refused"
AWAY = f"the agent at {AGENT} does not answer: {REFUSED}"
OTHER_CONTROLLER = (
    "VerticalPodAutoscaler web (updateMode Auto) sizes Deployment web too: "
    'set its updateMode to "Off", or the label parley.dev/enabled to "false"'
)
NO_SCHEDULER = f"the scheduler at {SCHEDULER} does not answer: {REFUSED}"


# ---------------------------------------------------------------- metrics and goals


@situation("metrics-stale", "metrics", "stale", "no answer within 2 s")
async def stale_metrics() -> AsyncIterator[Stage]:
    """The exporter has been silent for a minute: the goal is not lowered any more."""
    async with staged(SchedulerSide(), shown=4) as stage:
        await stage.settled()
        stage.agent.exporter.fault = "no answer within 2 s"
        await stage.wait(60.0)
        yield stage


@situation("metrics-missing", "no metrics", "no answer within 2 s")
async def metrics_were_never_read() -> AsyncIterator[Stage]:
    """The exporter has not answered since the agent's start."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        stage.agent.exporter.fault = "no answer within 2 s"
        await stage.wait(60.0)
        yield stage


@situation("satisfied", "window work", r"\b4\b")
async def the_minimum_of_a_scaling_window() -> AsyncIterator[Stage]:
    """Web needs 2 CPUs; the time window `work` gives it at least 4."""
    floor = ResourceLimits(floor=Bar(4, "work"))
    async with staged(SchedulerSide(), windows=WindowLimits(floor, floor)) as stage:
        await stage.until(lambda: stage.agent.machine.size == cu(4))
        await stage.wait(20.0)
        yield stage


@situation("satisfied", "window night", r"\b3\b")
async def the_maximum_of_a_scaling_window() -> AsyncIterator[Stage]:
    """Web needs 6 CPUs; the time window `night` gives it at most 3."""
    ceiling = ResourceLimits(ceiling=Bar(3, "night"))
    async with staged(SchedulerSide(), windows=WindowLimits(ceiling, ceiling)) as stage:
        await stage.settled()
        stage.agent.load(6)
        await stage.until(lambda: stage.agent.machine.size.vcpu_milli == 3000)
        await stage.wait(20.0)
        yield stage


@situation("satisfied", "plugin forecast", "built-in")
async def a_policy_plugin_has_failed() -> AsyncIterator[Stage]:
    """The policy plugin `forecast` does not answer, and the built-in policy decides."""
    policy = Combined((("plugin:forecast", PluginPolicy("forecast")),))
    process = PolicyProcess("forecast", "policy plugin forecast: no answer within 2.5 s")
    async with staged(SchedulerSide(), policy=policy, plugin=process) as stage:
        await stage.settled()
        await stage.wait(30.0)
        yield stage


@situation("satisfied", "metrics: implausible", r"343\d{3} busy CPUs, of 8 CPUs at most")
async def a_counter_jumps() -> AsyncIterator[Stage]:
    """The exporter of web, a VM of at most 8 CPUs, counted as many CPU seconds at once as nobody could use."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        before = stage.agent.runner.state.metrics.read_s
        stage.agent.exporter.jump(343_666 * 5.0)
        await stage.until(lambda: stage.agent.runner.state.metrics.read_s != before)
        assert stage.agent.machine.size == cu(2)
        yield stage


# ---------------------------------------------------------------- the guest


@situation("downscale-refused", "guest", "refuse", "6 GiB are in use")
async def the_guest_refuses_to_shrink() -> AsyncIterator[Stage]:
    """Web should shrink from 6 to 2, and the informant says that the guest cannot spare it."""
    async with staged(SchedulerSide(), shown=6) as stage:
        stage.agent.guest.refuses = "6 GiB are in use"
        await stage.settled()
        stage.agent.load(2, 2)
        await stage.wait(60.0)
        assert stage.agent.machine.size.memory_bytes == cu(6).memory_bytes
        yield stage


@situation("downscale-refused", r"shrink to \d CPU: ", "CPU was short lately: what came stays for 1 s more")
async def the_guest_refuses_to_give_cpus_back() -> AsyncIterator[Stage]:
    """Web should shrink from 6 to 2 CPUs, and the informant keeps for a while what it was short of."""
    async with staged(SchedulerSide(), shown=6) as stage:
        stage.agent.guest.refuses = "CPU was short lately: what came stays for 1 s more"
        await stage.settled()
        stage.agent.load(2)
        await stage.wait(60.0)
        lines = await stage.lines()
        assert [line for line in lines if line.startswith("do ")] == [f"{'do':<8} {CPU_REFUSED.remedy}"]
        yield stage


@situation("informant-silent", "informant", "connection refused")
async def the_informant_is_away() -> AsyncIterator[Stage]:
    """The program in the guest does not answer, so nothing tells the load and nothing shrinks."""
    async with staged(SchedulerSide(), shown=4) as stage:
        await stage.settled()
        stage.agent.guest.away = REFUSED
        stage.agent.exporter.fault = REFUSED
        await stage.wait(90.0)
        yield stage


@situation("informant-suspended", "informant", "another agent")
async def the_informant_uses_another_agent() -> AsyncIterator[Stage]:
    """The informant has not resumed this agent: another one is in use there."""
    async with staged(SchedulerSide()) as stage:
        stage.agent.guest.has_another_agent = True
        await stage.wait(5.0)
        stage.agent.load(5)
        await stage.wait(30.0)
        yield stage


# ---------------------------------------------------------------- the back end


@situation("resize-fails", "resize", "fail", "status 500", r"\b5\b")
async def the_back_end_fails() -> AsyncIterator[Stage]:
    """Web may have 5 CPUs, and each resize fails."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.fault = BackendError("the API server failed: status 500")
        stage.agent.load(5)
        await stage.wait(60.0)
        assert stage.agent.document()["resize"]["phase"] == "failing"
        yield stage


@situation("vm-unseen", "cannot be read")
async def the_vm_cannot_be_looked_at() -> AsyncIterator[Stage]:
    """The back end does not tell what size web has."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.blind = BackendError("the pod cannot be read: connection refused")
        stage.agent.load(5)
        await stage.wait(90.0)
        yield stage


@situation("resize-refused", "node", "Deferred", r"\b5\b")
async def the_node_defers_the_resize() -> AsyncIterator[Stage]:
    """The kubelet has no room for web at the moment, although the scheduler permits it."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.refusal = "Deferred: Node didn't have enough resource: cpu"
        stage.agent.load(5)
        await stage.wait(30.0)
        yield stage


@situation("resize-refused", "node", "Infeasible", r"\b5\b")
async def the_node_never_takes_the_size() -> AsyncIterator[Stage]:
    """The kubelet says that web can never have that size on its node."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.refusal = "Infeasible: Node didn't have enough capacity: cpu, requested: 5000"
        stage.agent.load(5)
        await stage.wait(30.0)
        yield stage


@situation("resize-refused", "refuses", "takes no such size")
async def the_api_server_refuses_the_size() -> AsyncIterator[Stage]:
    """The back end does not take the size at all."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.fault = ResizeRefusedError(
            "the API server refuses the size: it takes no such size"
        )
        stage.agent.load(5)
        await stage.wait(30.0)
        yield stage


@situation("container-down", "does not run", "CrashLoopBackOff", "OOMKilled")
async def a_container_is_dead() -> AsyncIterator[Stage]:
    """Web's container was killed for lack of memory and waits for its next start: until then it is not resized."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.containers = ContainersSeen(
            waits="container main does not run (CrashLoopBackOff; before: OOMKilled, exit code 137)",
            restarts=3,
            ends=(("containerd://1", "OOMKilled"),),
        )
        stage.agent.load(memory_gib=5)
        await stage.wait(30.0)
        assert stage.agent.machine.target == cu(2)
        yield stage


@situation("cgroup-mismatch", "64 MiB of memory where 512 MiB", "control groups")
async def the_kubelet_has_left_the_pods_group_behind() -> AsyncIterator[Stage]:
    """Somebody has resized web while its container was dead; its status tells the new size, and its control group the old one."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.really = cu(2, 1)
        stage.agent.machine.containers = ContainersSeen(
            mismatch="the pod's control group allows 64 MiB of memory where 512 MiB is in force by its status",
            mismatched=("memory",),
            is_judged=True,
        )
        await stage.wait(30.0)
        yield stage


@situation("growing", "under way|on its way", r"\b5\b", r"\d s\b")
async def the_resize_is_under_way() -> AsyncIterator[Stage]:
    """The back end has taken the new size, and the VM is still on its way to it."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.delay_s = 25.0
        stage.agent.load(5)
        await stage.until(lambda: stage.agent.machine.target == cu(5, 2))
        await stage.wait(8.0)
        assert stage.agent.document()["resize"]["phase"] == "moving"
        yield stage


@situation("resize-stalled", "does not come nearer", r"\b5\b", "60 s")
async def the_resize_has_stalled() -> AsyncIterator[Stage]:
    """The back end has taken the new size, and the VM has not moved for a minute."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.machine.delay_s = 10_000.0
        stage.agent.load(5)
        await stage.until(lambda: stage.agent.machine.target == cu(5, 2))
        await stage.wait(60.0)
        assert stage.agent.document()["resize"]["phase"] == "stalled"
        yield stage


# ---------------------------------------------------------------- the way to the scheduler


@situation("scheduler-silent", "scheduler", "connection refused")
async def no_scheduler() -> AsyncIterator[Stage]:
    """No scheduler answers, neither the agent nor us."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.scheduler.fault = REFUSED
        stage.agent.load(5)
        await stage.wait(60.0)
        stage.told_scheduler = NoAnswer(NO_SCHEDULER)
        yield stage


@situation("scheduler-silent", "scheduler", "connection refused", "lease has run out")
async def the_lease_has_run_out() -> AsyncIterator[Stage]:
    """The scheduler answers us, and not the agent: what it was permitted has lapsed."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.scheduler.fault = REFUSED
        stage.agent.load(5)
        await stage.wait(60.0)
        assert stage.agent.document()["held"] == {"cpu": "0", "memory": "0"}
        yield stage


@situation("not-leader", "does not lead")
async def the_scheduler_does_not_lead() -> AsyncIterator[Stage]:
    """The scheduler that answers the agent is no leader, and knows none."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()

        async def follows(_: Request) -> Reply:
            return not_leader(None)

        stage.agent.scheduler.serve = follows
        stage.agent.load(5)
        await stage.wait(60.0)
        stage.told_scheduler = NoAnswer("another scheduler leads", 503, "not-leader")
        yield stage


@situation("unsupported-version", "version", r"v1\.1", r"v5\.0")
async def the_scheduler_is_too_new() -> AsyncIterator[Stage]:
    """The scheduler speaks later versions of the protocol only."""
    async with staged(SchedulerSide()) as stage:
        stage.agent.scheduler.serve = _speaks(6, 7)
        stage.agent.load(5)
        await stage.wait(60.0)
        stage.told_scheduler = NoAnswer("there is no such page", 404)
        yield stage


@situation("unsupported-version", "version", r"\b400\b")
async def the_scheduler_is_too_old() -> AsyncIterator[Stage]:
    """A published scheduler of another time answers 400 to every request, without a word of versions."""
    async with staged(SchedulerSide()) as stage:

        async def refuses(_: Request) -> Reply:
            return server.text(400, "unsupported protocol")

        stage.agent.scheduler.serve = refuses
        stage.agent.load(5)
        await stage.wait(60.0)
        stage.told_scheduler = NoAnswer("there is no such page", 404)
        yield stage


@situation("sequence-stale", "sequence number")
async def a_stale_sequence_number() -> AsyncIterator[Stage]:
    """Somebody else asks under the agent's own ID, and is always ahead of it."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        life = stage.agent.runner.state.life

        async def overtaken(request: Request) -> Reply | HangUp:
            number = json.loads(request.body)["sequenceNumber"] + 100
            body = ask("web", 2, number, claim=2, pod={"name": "web", "namespace": "shop"})
            ahead = json.dumps(
                {**json.loads(body), "agentID": str(life.agent_id), "agentStartedAtMs": life.started_at_ms}
            ).encode()
            await scheduler.serve(Request("POST", "/", ahead, dict(request.headers)))
            return await scheduler.serve(request)

        stage.agent.scheduler.serve = overtaken
        stage.agent.load(5)
        await stage.wait(60.0)
        yield stage


@situation("superseded", "another agent", r"\d s\b")
async def another_agent_owns_the_vm() -> AsyncIterator[Stage]:
    """A second agent runs for web, and has superseded this one."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        started_ms = stage.agent.runner.state.life.started_at_ms + 5000
        pod = {"name": "web", "namespace": "shop"}
        body = ask("web", 2, 1, claim=2, pod=pod, agentID=str(UUID(int=9)), agentStartedAtMs=started_ms)
        await scheduler.serve(Request("POST", "/", body, {AGENT_HEADER.lower(): str(UUID(int=9))}))
        await stage.until(lambda: stage.agent.document()["state"] == "dormant")
        yield stage


@situation("wrong-pod-uid", "earlier VM", "UID")
async def the_pod_has_another_uid() -> AsyncIterator[Stage]:
    """Web's pod was made anew, and the agent still asks for the one before."""
    async with staged(SchedulerSide(), uid="uid-before") as stage:
        await stage.wait(30.0)
        yield stage


@situation("unknown-pod", "cluster shows no")
async def the_scheduler_knows_no_such_pod() -> AsyncIterator[Stage]:
    """The scheduler's cluster file has no web."""
    async with staged(SchedulerSide(), is_known=False) as stage:
        await stage.wait(30.0)
        yield stage


@situation("unknown-pod", "cluster shows no", "shop/web has 5 CPU")
async def a_vm_that_runs_is_taken_out_of_the_cluster() -> AsyncIterator[Stage]:
    """Web was in the scheduler's cluster file, and is no more; it still runs, and its agent goes on asking."""
    scheduler = SchedulerSide()
    async with staged(scheduler) as stage:
        await stage.settled()
        stage.agent.load(5)
        await stage.until(lambda: stage.agent.machine.size.vcpu_milli == 5000)
        await scheduler.reads(events.VmGone(stage.agent.vm.pod, "uid-web", now_s()))
        await stage.wait(60.0)
        yield stage


@situation("cluster-unreachable", "cannot (be )?read", "cluster")
async def the_cluster_cannot_be_read() -> AsyncIterator[Stage]:
    """Web is new, and the scheduler cannot read the cluster to see it."""
    scheduler = SchedulerSide()
    scheduler.cluster.fails(ClusterUnreachableError("the API server does not answer"))
    async with staged(scheduler, is_known=False) as stage:
        await stage.wait(30.0)
        yield stage


@situation("overloaded", "too many requests")
async def the_scheduler_is_overloaded() -> AsyncIterator[Stage]:
    """The scheduler turns web's requests away, because too many wait."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()

        async def busy(_: Request) -> Reply:
            body = ErrorBody("too many requests are waiting; ask again later", ErrorCode.OVERLOADED)
            return Reply(429, codec.encode_error(body))

        stage.agent.scheduler.serve = busy
        stage.agent.load(5)
        await stage.wait(60.0)
        yield stage


# ---------------------------------------------------------------- who answers us


@situation("agent-silent", "no agent", "does not answer", r"\d+ s ago")
async def the_agent_is_away() -> AsyncIterator[Stage]:
    """The agent of web's node does not answer us, and has not asked for a minute; the scheduler answers."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        await stage.agent_ends(AWAY)
        await stage.wait(60.0)
        yield stage


@situation("nobody-answers", "agent", "scheduler", "connection refused")
async def nobody_answers() -> AsyncIterator[Stage]:
    """Neither an agent nor a scheduler answers us."""
    async with staged(SchedulerSide()) as stage:
        await stage.agent_ends(AWAY)
        stage.told_scheduler = NoAnswer(NO_SCHEDULER)
        yield stage


@situation("published-agent-not-allowed", "without the extension", "not served")
async def a_published_agent_is_not_allowed() -> AsyncIterator[Stage]:
    """A published agent asks for web, and such agents are not served on the node."""
    scheduler = SchedulerSide(published_agents=())
    async with staged(scheduler) as stage:
        await stage.agent_ends(AWAY)
        await stage.published_agent_asks(3)
        yield stage


@situation("connection-closed", "no compute unit")
async def no_compute_unit_is_known() -> AsyncIterator[Stage]:
    """A published agent asks for web, and neither web nor its node has a compute unit."""
    scheduler = SchedulerSide(published_agents=("*",), unit_known=False)
    async with staged(scheduler) as stage:
        await stage.agent_ends(AWAY)
        await stage.published_agent_asks(3)
        yield stage


@situation("not-scaled", "does not scale", "parley.dev/bounds")
async def the_vm_is_not_scaled() -> AsyncIterator[Stage]:
    """Web's annotations cannot be used, so its agent leaves it alone."""
    async with staged(SchedulerSide()) as stage:
        await stage.agent_ends()
        fault = "the annotation parley.dev/bounds has no max.memory, and its containers have no limits"
        stage.told_agent = told(vm_pages.not_here("shop/web", [fault]))
        yield stage


@situation("satisfied", "VerticalPodAutoscaler web")
async def another_controller_sizes_it() -> AsyncIterator[Stage]:
    """A VerticalPodAutoscaler sizes web's Deployment as well."""
    async with staged(SchedulerSide()) as stage:
        await stage.settled()
        stage.agent.warnings = (OTHER_CONTROLLER,)
        yield stage


def _speaks(low: int, high: int) -> Serve:
    """A scheduler that speaks other versions."""

    async def answer(_: Request) -> Reply:
        spoken = VersionRange(PluginProtoVersion(low), PluginProtoVersion(high))
        message = f"protocol version v1.1 is not spoken here; use {spoken}"
        content = json.loads(codec.encode_error(ErrorBody(message, ErrorCode.UNSUPPORTED_VERSION)))
        content["supported"] = {"min": low, "max": high}
        return Reply(400, json.dumps(content).encode())

    return answer

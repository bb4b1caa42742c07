"""The way to the programs of an installation on Kubernetes: through the API server's proxy of their pods.

Nothing has to be forwarded by hand, and the rights are those of RBAC: to list the pods of Parley's namespace, to get `pods/proxy` there, and
to get the Secret with the token that agents want. Decision 37 tells why.
"""

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import parse_qsl, urlsplit

from hosting import tokens
from hosting.kubernetes.api import KubernetesApi
from hosting.kubernetes.errors import CredentialsError, KubernetesError, RefusedError, UnreachableError
from hosting.kubernetes.resources import PODS, SECRETS, Manifest
from parley.reach.asking import MAX_ANSWER_BYTES, NOT_LEADER, read
from parley.reach.installation import (
    AGENT,
    LIST_PODS,
    PROGRAM,
    PROXY,
    SCHEDULER,
    Installation,
    ProgramPod,
    Right,
    best_of_each_node,
    leader_of,
    program_pod,
    schedulers_to_ask,
    unreachable_pod,
)
from parley.reach.ports import Answered, NoAnswer

TOKEN_SECRET: Final = "parley-viewers"  # noqa: S105 - its name
TOKEN_KEY: Final = "token"  # noqa: S105 - the name of its entry
DEADLINE_S: Final = 10.0
PAGE: Final = 500
MAX_PAGES: Final = 20
MAX_TRIES: Final = 3
"""How many schedulers are asked before one gives up."""
MAX_CALLS: Final = 32
"""How many calls are under way at a time: an API server is for others, too."""


_AGENT_OF: Final = "agent of "


@dataclass(frozen=True, slots=True)
class _PassedOver:
    """No answer of the program that was meant: another pod may give it. `leader` is the address that a scheduler names."""

    failed: NoAnswer
    leader: str = ""


class KubernetesReach:
    """The programs in the pods of one namespace, within `async with`. See `ports.Reach`; agents go by the names of their nodes."""

    def __init__(self, api: KubernetesApi, installation: Installation) -> None:
        self._api = api
        self._installation = installation
        self._fault: NoAnswer | None = None
        """Why nothing can be asked at all."""
        self._agents: dict[str, ProgramPod] = {}
        self._schedulers: list[ProgramPod] = []
        self._leader = ""
        """The address of the scheduler that answered last: it goes before a leader's label, which a dead node does not take off."""
        self._token: str | None = None
        self._token_fault: str | None = None
        self._is_token_known = False
        self._reading = asyncio.Lock()
        self._calls = asyncio.Semaphore(MAX_CALLS)

    async def __aenter__(self) -> Self:
        try:
            await self._api.__aenter__()
        except CredentialsError as error:
            self._fault = NoAnswer(self._installation.fault(error, LIST_PODS))
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._api.__aexit__(*raised)

    # ------------------------------------------------------------ the scheduler

    async def scheduler(self, path: str) -> Answered:
        """The answer of the scheduler that leads. One that does not is passed over, and so is one that cannot be reached."""
        answer = await self._of_scheduler(path)
        if isinstance(answer, NoAnswer):  # who leads may have changed: the next call looks anew
            self._schedulers, self._leader = [], ""
        return answer

    async def _of_scheduler(self, path: str) -> Answered:
        tried: list[str] = []
        failed: NoAnswer | None = None
        leader = self._leader
        for turn in range(MAX_TRIES):
            found = await self._schedulers_now(again=turn > 0)
            if isinstance(found, NoAnswer):
                return found
            pods = schedulers_to_ask(found, tried, leader)
            if not pods:
                return failed or self._nobody(found)
            tried.append(pods[0].name)
            answer = await self._of_pod(pods[0], f"scheduler {pods[0].name}", path)
            if not isinstance(answer, _PassedOver):
                self._leader = pods[0].address
                return answer
            # That one does not lead says less than that another one, which may lead, is silent.
            if failed is None or failed.code == NOT_LEADER:
                failed = answer.failed
            leader = answer.leader
        assert failed is not None
        return failed

    async def _schedulers_now(self, *, again: bool) -> list[ProgramPod] | NoAnswer:
        if again or not self._schedulers:
            found = await self._listed(SCHEDULER)
            if isinstance(found, NoAnswer):
                return found
            self._schedulers = found
        return self._schedulers

    def _nobody(self, found: list[ProgramPod]) -> NoAnswer:
        where, namespace = self._installation.where, self._installation.namespace
        if not found:
            return NoAnswer(
                f"{where}: there is no scheduler in the namespace {namespace}; --parley-namespace names another"
            )
        phases = ", ".join(f"{pod.name} is {pod.phase or 'new'}" for pod in found[:3])
        return NoAnswer(f"{where}: no scheduler runs in {namespace}: {phases}")

    # ------------------------------------------------------------ agents

    async def agents(self) -> tuple[str, ...] | NoAnswer:
        found = await self._listed(AGENT)
        if isinstance(found, NoAnswer):
            return found
        self._agents = best_of_each_node(found)
        if not self._agents:
            where, namespace = self._installation.where, self._installation.namespace
            return NoAnswer(
                f"{where}: there are no agents in the namespace {namespace}; --parley-namespace names another"
            )
        return tuple(self._agents)

    async def agent_of(self, node: str) -> str | None:
        return node if isinstance(await self._agent_on(node), ProgramPod) else None

    async def agent(self, agent: str, path: str) -> Answered:
        """The answer of the agent of a node. If its pod cannot be reached, it may have been replaced: then the new one is asked."""
        peer, pod, failed, asked = f"{_AGENT_OF}{agent}", self._agents.get(agent), None, ""
        for _ in range(2):
            if pod is None:
                found = await self._agent_on(agent)
                if found is None or isinstance(found, NoAnswer):
                    return failed or found or NoAnswer(f"{peer}: there is no pod of an agent on this node")
                pod = found
            if failed is not None and pod.name == asked:
                return failed
            asked = pod.name
            if not pod.is_running:
                failed = NoAnswer(f"{peer}: its pod {pod.name} is {pod.phase or 'new'}")
                pod = None
                continue
            answer = await self._of_pod(pod, peer, path)
            if not isinstance(answer, _PassedOver):
                return answer
            failed, pod = answer.failed, None
        assert failed is not None
        return failed

    async def _agent_on(self, node: str) -> ProgramPod | NoAnswer | None:
        found = await self._listed(AGENT, f"spec.nodeName={node}")
        if isinstance(found, NoAnswer):
            return found
        pod = best_of_each_node(found).get(node)
        if pod is not None:
            self._agents[node] = pod
        return pod

    def token_hint(self) -> str:
        """The advice to find the token that programs want."""
        return f"in the Secret {TOKEN_SECRET} of the namespace {self._installation.namespace}"

    # ------------------------------------------------------------ calls

    async def _of_pod(self, pod: ProgramPod, peer: str, path: str) -> Answered | _PassedOver:
        """The answer of a program, which is shown the viewers' token. A scheduler is shown none in the clear, where it never wants one."""
        if pod.scheme == "http" and not peer.startswith(_AGENT_OF):
            return await self._asked(pod, peer, path, {})
        token = await self._shared_token()
        answer = await self._asked(pod, peer, path, tokens.proxied_headers(token))
        if not isinstance(answer, NoAnswer) or answer.status not in {401, 403}:
            return answer
        if token is not None and answer.status == 401:  # it may have been renewed while we ran
            renewed = await self._shared_token(instead_of=token)
            if renewed is not None and renewed != token:
                return await self._asked(pod, peer, path, tokens.proxied_headers(renewed))
        if self._token_fault is not None:
            return NoAnswer(
                f"{peer} answers viewers only, who have a token: {self._token_fault}",
                answer.status,
                answer.code,
            )
        why = f"the Secret {TOKEN_SECRET} holds another token than its file, which follows within a minute or two"
        return NoAnswer(f"{answer.fault} ({why})", answer.status, answer.code)

    async def _listed(self, program: str, fields: str = "") -> list[ProgramPod] | NoAnswer:
        """The pods of a program, in pages. A list without end is a fault: a part of it would look like all."""
        if self._fault is not None:
            return self._fault
        query = {"labelSelector": f"{PROGRAM}={program}", "limit": str(PAGE)}
        if fields:
            query["fieldSelector"] = fields
        found: list[ProgramPod] = []
        for _ in range(MAX_PAGES):
            try:
                async with self._calls:
                    page = await self._api.list(
                        PODS, self._installation.namespace, query=query, deadline_s=DEADLINE_S
                    )
            except KubernetesError as error:
                return NoAnswer(self._installation.fault(error, LIST_PODS))
            found += (program_pod(each, program) for each in page.get("items") or ())
            more = page.get("metadata", {}).get("continue")
            if not more:
                return found
            query["continue"] = more
        where, namespace = self._installation.where, self._installation.namespace
        return NoAnswer(
            f"{where}: the list of pods {program} in {namespace} does not end after {MAX_PAGES} pages"
        )

    async def _asked(
        self, pod: ProgramPod, peer: str, path: str, headers: Mapping[str, str]
    ) -> Answered | _PassedOver:
        """The answer of the program in a pod; `_PassedOver` if another pod may do better."""
        page = urlsplit(path)
        try:
            async with self._calls:
                answer = await self._api.proxied(
                    pod.proxy_path(self._installation.namespace, page.path),
                    query=dict(parse_qsl(page.query, keep_blank_values=True)),
                    headers=headers,
                    deadline_s=DEADLINE_S,
                    max_answer_bytes=MAX_ANSWER_BYTES,
                )
        except RefusedError as error:
            why = unreachable_pod(error, pod.port)
            if why is not None:
                return _PassedOver(NoAnswer(f"{peer}: {why}"))
            failed = NoAnswer(self._installation.fault(error, PROXY))
            return _PassedOver(failed) if error.is_not_found else failed
        except UnreachableError as error:  # the pod's node may have died: nobody refuses its connections
            return _PassedOver(
                NoAnswer(f"{self._installation.where}: {peer} did not answer through the API server: {error}")
            )
        except KubernetesError as error:
            return NoAnswer(f"{peer}: {self._installation.fault(error, PROXY)}")
        found = read(peer, answer.status, answer.body, token_hint=self.token_hint())
        if isinstance(found, NoAnswer) and found.code == NOT_LEADER:
            return _PassedOver(found, leader_of(answer.body))
        return found

    # ------------------------------------------------------------ the token

    async def _shared_token(self, instead_of: str | None = None) -> str | None:
        """The token of the Secret, which is read once, and again if the one that was read is `instead_of`."""
        async with self._reading:
            if not self._is_token_known or (instead_of is not None and self._token == instead_of):
                self._is_token_known = True
                self._token, self._token_fault = await self._read_token()
            return self._token

    async def _read_token(self) -> tuple[str | None, str | None]:
        right = Right("get", "secrets", name=TOKEN_SECRET)
        named = f"the Secret {TOKEN_SECRET} in {self._installation.namespace}"
        try:
            async with self._calls:
                found = await self._api.get(
                    SECRETS, self._installation.namespace, TOKEN_SECRET, deadline_s=DEADLINE_S
                )
        except RefusedError as error:
            if error.is_not_found:
                return None, f"{named} is missing (docs/guides/kubernetes.md makes one)"
            return None, self._installation.fault(error, right)
        except KubernetesError as error:
            return None, self._installation.fault(error, right)
        try:
            return tokens.parse(_entry(found)), None
        except ValueError as error:
            return None, f"{named}: its entry {TOKEN_KEY} {error}"


def _entry(secret: Manifest) -> bytes:
    """The token in the Secret. Raises `ValueError`; its text quotes nothing."""
    data = secret.get("data") or {}
    try:
        return base64.b64decode(data.get(TOKEN_KEY) or "", validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError("is no Base64") from None

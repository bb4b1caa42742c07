"""The pool plugin `http-admission`: an HTTP service outside says whether a pool may grow, change, come or go.

`scheduler.pools.shipped.http_messages` tells what is asked and what the answers mean. A breaker keeps a service that fails
from being asked, and a budget keeps retries from adding to its trouble. Nothing but an answer grants anything.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal, Self, assert_never
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, model_validator

from hosting.addresses import is_own
from hosting.backoff import Backoff
from hosting.client import Answered, HttpClient
from hosting.logs import Logger
from hosting.settings import Settings
from hosting.tls import TlsFiles
from protocol.texts import counted
from scheduler.pools.chain.manager import PLUGIN_TIMEOUT_S
from scheduler.pools.chain.plugin import Args, BasePlugin, Handle, MaybeAwaitable, ProviderSet
from scheduler.pools.core.breaker import Breaker, BreakerEvent, BreakerRules, BreakerState, Pass, RetryBudget
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pods, Pool, ProbeEnd, VmRequest
from scheduler.pools.shipped.http_messages import (
    Failed,
    Hook,
    Said,
    fault_lines,
    internal,
    outcome,
    question,
    understood,
)
from scheduler.pools.shipped.http_service import Credentials, Outcomes

NAME: Final = "http-admission"
MAX_QUESTION_BYTES: Final = 1024 * 1024
MAX_MEMBERS: Final = 1000
"""More VMs are not listed in a question."""
MAX_ANSWER_BYTES: Final = 16 * 1024
REFRESH_S: Final = 10.0
"""How often the token and the certificates are looked at."""
REPORT_S: Final = 2.0
"""How long telling one outcome may take."""
LEAST_S: Final = 0.005
"""With less time than this no call is begun."""
RETRY_BACKOFF: Final = Backoff(base_s=0.02, factor=2.0, cap_s=0.1, jitter=0.5)


def _checked_url(value: str) -> str:
    """An address without credentials. The messages never hold the value, which may."""
    rule = "must be an http:// or https:// address of at most 2048 characters, such as https://quota.example/admit"
    if len(value) > 2048 or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(rule)
    try:
        parts = urlsplit(value)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, a bracket without its other half
        raise ValueError(rule) from None
    if "@" in parts.netloc:
        raise ValueError(
            "must hold no credentials; put a bearer token into a file and name that in tokenFile"
        )
    if parts.scheme not in {"http", "https"} or not has_host or parts.fragment:
        raise ValueError(rule)
    return value


def _below_the_chains(value: float) -> float:
    if not 0.01 <= value < PLUGIN_TIMEOUT_S:
        raise ValueError(
            f"must be seconds from 0.01 and below {PLUGIN_TIMEOUT_S:g}, when the chain gives a plugin up"
        )
    return value


def _each_once(value: list[Hook]) -> list[Hook]:
    if not value or len(set(value)) < len(value):
        raise ValueError("must name at least one of update, create and delete, and each once")
    return value


def _growth_and_changes() -> list[Hook]:
    return ["update"]


class RetryArgs(Settings):
    """Another call after no connection or an outage: `perAsk` of them at most, as far as time and budget go. So the
    service may get a question twice.
    """

    per_ask: Annotated[int, Field(ge=0, le=5)] = 1
    """Further calls for one question, at most."""
    burst: Annotated[int, Field(ge=0, le=1000)] = 10
    """Retries of all questions together before the budget is empty; it is full at first."""
    share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The part of a retry that each answered question earns."""


class BreakerArgs(Settings):
    """When the service is left alone: after so many `failures` in a row, for `openSeconds`, until `probes` succeed."""

    failures: Annotated[int, Field(ge=1, le=1000)] = 5
    """Failures in a row after which the service is left alone."""
    open_seconds: Annotated[float, Field(ge=0.01, le=3600)] = 5.0
    """For so long."""
    probes: Annotated[int, Field(ge=1, le=100)] = 1
    """Questions that must then succeed."""


class HttpAdmissionArgs(Settings):
    """The plugin's args. Only `url` is required."""

    url: Annotated[str, AfterValidator(_checked_url)]
    """The service's URL."""
    plain_http: bool = False
    """Whether `url` may be http:// on another machine: anybody on the way can then answer in the service's place."""
    timeout: Annotated[float, AfterValidator(_below_the_chains)] = 0.4
    """Seconds for one question, its retries included."""
    token_file: Annotated[str, Field(min_length=1)] | None = None
    """A file with a bearer token; it is read again when it is renewed. Use it with https://, or the token travels unprotected."""
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    """The authorities (PEM) that are believed in the place of the system's."""
    cert_file: Annotated[str, Field(min_length=1)] | None = None
    """Our certificate (PEM), for a service that asks for one, and in `key_file` its key. Both are read again, too."""
    key_file: Annotated[str, Field(min_length=1)] | None = None
    """The key (PEM) of the certificate."""
    connections: Annotated[int, Field(ge=1, le=1024)] = 64
    """Questions that may be under way at the same time. Others wait for their turn, and that time is not the service's."""
    report_outcomes: bool = False
    """Whether the service is told what became of its questions, in calls of their own (`http_messages.outcome`)."""
    hooks: Annotated[list[Hook], AfterValidator(_each_once)] = Field(default_factory=_growth_and_changes)
    """The hooks that are asked about: `update` is growth (the probes) and changed descriptions."""
    send_members: bool = False
    """Whether questions name the VMs of the pool."""
    retries: RetryArgs = Field(default_factory=RetryArgs)
    breaker: BreakerArgs = Field(default_factory=BreakerArgs)
    on_outage: Literal["refuse", "admit"] = "refuse"
    """The answer while the service is not there. DANGEROUS: with `admit` its outage lifts every limit that it keeps, and
    an attacker who brings it down can have everything. Only for a service whose answer is advice. `admit` covers no connection, no
    answer in time, outages (5xx) and an open breaker; never other statuses or answers that cannot be used.
    """

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = urlsplit(self.url)
        if parts.scheme == "http" and not is_own(parts.hostname or "") and not self.plain_http:
            raise ValueError(
                "url must be https:// on another machine, unless plainHttp says that it may be in the clear"
            )
        if (self.cert_file is None) is not (self.key_file is None):
            raise ValueError("certFile and keyFile must be given together")
        return self


def checked_args(args: Args) -> HttpAdmissionArgs:
    """The args as they are configured. Raises `ValueError` with every fault, its path first."""
    try:
        return HttpAdmissionArgs.model_validate({} if args is None else args)
    except ValidationError as error:
        raise ValueError("; ".join(fault_lines(error))) from None  # the error itself shows what was given


@dataclass(frozen=True, slots=True)
class AdmissionServiceStatus:
    """The plugin's knowledge of the service now. `failures` are those in a row, `wait_s` the rest of an open breaker's
    pause, `retries` what the budget still allows; `last_failure` is empty until the first. `waiting` questions wait for a
    connection, `untold` outcomes for being told; `lost` ones never will be."""

    is_running: bool
    breaker: BreakerState
    failures: int
    wait_s: float
    retries: int
    last_failure: str
    waiting: int = 0
    untold: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class _WaitingCall:
    """A question as it is sent, with its VMs, pool and search.

    The answer must be there at `until_s`; `is_cut_short` where the caller leaves less than the plugin's own time.
    """

    body: bytes
    requests: tuple[VmRequest, ...]
    pool: str
    question: str
    until_s: float
    is_cut_short: bool


class HttpAdmission(BasePlugin):
    """Asks an HTTP service. `clock` is that of `Context.deadline_s`, `wall` Unix time, both in seconds."""

    def __init__(
        self,
        args: HttpAdmissionArgs,
        log: Logger,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        rng: random.Random | None = None,
        backoff: Backoff = RETRY_BACKOFF,
    ) -> None:
        rules = args.breaker
        self._args = args
        self._log = log.bind(plugin=NAME)
        self._clock = clock
        self._wall = wall
        self._rng = rng if rng is not None else random.Random()
        self._backoff = backoff
        self._breaker = Breaker(BreakerRules(rules.failures, rules.open_seconds, rules.probes))
        self._budget = RetryBudget.full(args.retries.burst, args.retries.share)
        self._last_failure = ""
        certificate, key, ca = (
            Path(path) if path is not None else None for path in (args.cert_file, args.key_file, args.ca_file)
        )
        token = Path(args.token_file) if args.token_file is not None else None
        self._credentials = Credentials(token, TlsFiles(certificate, key, ca), self._log)
        self._turns = asyncio.Semaphore(args.connections)
        self._waiting = 0
        self._outcomes = Outcomes(self._report, self._log, self._rng) if args.report_outcomes else None
        self._questions: dict[str, str] = {}
        """The last question about each pool that the service has had and that has not ended."""
        self._client: HttpClient | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._open = AsyncExitStack()

    def name(self) -> str:
        return NAME

    def status(self) -> AdmissionServiceStatus:
        breaker = self._breaker
        return AdmissionServiceStatus(
            self._client is not None,
            breaker.state,
            breaker.failures,
            breaker.wait_s(self._clock()),
            self._budget.retries,
            self._last_failure,
            self._waiting,
            len(self._outcomes) if self._outcomes is not None else 0,
            self._outcomes.lost if self._outcomes is not None else 0,
        )

    async def start(self, handle: Handle) -> None:
        """Read token and certificates and open the session. Raises `ValueError` for files that cannot be used."""
        if self._client is not None:
            raise RuntimeError("it was started already")
        await self._credentials.load()
        # One connection more than questions need: outcomes never wait for them.
        client = HttpClient(
            max_connections=self._args.connections + 1,
            max_answer_bytes=MAX_ANSWER_BYTES,
            tls=self._credentials.tls,
        )
        self._client = await self._open.enter_async_context(client)
        self._refreshing = asyncio.create_task(self._refresh(), name="credentials of http-admission")
        if self._outcomes is not None:
            self._outcomes.start()

    async def stop(self) -> None:
        """Close the session; questions that are under way fail."""
        self._client = None
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.wait([self._refreshing])
        if self._outcomes is not None:
            await self._outcomes.stop()
        await self._open.aclose()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._credentials.refresh()

    def pre_create_pool(self, ctx: Context, pool: Pool) -> MaybeAwaitable[Admission]:
        return self._ask("create", ctx, pool, None) if "create" in self._args.hooks else ADMITTED

    def pre_update_pool(self, ctx: Context, new_pool: Pool, pods: Pods) -> MaybeAwaitable[Admission]:
        return self._ask("update", ctx, new_pool, pods) if "update" in self._args.hooks else ADMITTED

    def pre_delete_pool(self, ctx: Context, pool: Pool) -> MaybeAwaitable[Admission]:
        return self._ask("delete", ctx, pool, None) if "delete" in self._args.hooks else ADMITTED

    def probe_ended(self, end: ProbeEnd) -> None:
        """Tell the service, where that wants to know and was asked."""
        if self._outcomes is not None and self._questions.get(end.pool.name) == end.question:
            del self._questions[end.pool.name]
            self._outcomes.add(outcome(end))

    async def _report(self, body: bytes) -> bool:
        """Tell one outcome; whether the service has taken it. An outcome that is not understood there is not told again."""
        if self._client is None:
            return False
        answer = await self._client.call(
            "POST", self._args.url, deadline_s=REPORT_S, body=body, headers=self._credentials.headers
        )
        if isinstance(answer, Answered) and answer.status < 500 and answer.status not in (401, 403, 429):
            if answer.status >= 300:
                self._log.warning("the admission service does not take outcomes", status=answer.status)
            return True
        return False

    async def _ask(self, hook: Hook, ctx: Context, pool: Pool, pods: Pods | None) -> Admission:
        """Ask, again where that may help, and say what came of it."""
        full_s = self._clock() + self._args.timeout
        until_s = full_s if ctx.deadline_s is None else min(full_s, ctx.deadline_s)
        if self._args.send_members and pods is not None and len(pods) > MAX_MEMBERS:
            # Not even written: that would hold the loop for a tenth of a second at 10,000 VMs, for each question.
            message = f"pool {pool.name} has {len(pods)} VMs; sendMembers is for at most {MAX_MEMBERS}"
            return Admission(error=internal(message))
        body = question(hook, ctx, pool, pods, self._args.send_members)
        if len(body) > MAX_QUESTION_BYTES:
            message = f"the question to the admission service exceeds {MAX_QUESTION_BYTES} bytes"
            return Admission(error=internal(message))
        turn = _WaitingCall(body, ctx.requests, pool.name, ctx.question, until_s, until_s < full_s)
        calls = 0
        while True:
            result = await self._in_turn(turn)
            calls += 1
            if isinstance(result, Said):
                self._budget = self._budget.answered()
                return result.admission
            pause_s = self._retry_in_s(result, calls, turn)
            if pause_s is None:
                may_admit = result.is_outage and self._args.on_outage == "admit"
                return ADMITTED if may_admit else Admission(error=result.error)
            await asyncio.sleep(pause_s)

    def _retry_in_s(self, failed: Failed, calls: int, turn: _WaitingCall) -> float | None:
        """The pause before another call, which the budget then has paid for; None where there is to be none."""
        if not failed.may_retry or calls > self._args.retries.per_ask:
            return None
        pause_s = self._backoff.delay_s(calls, self._rng.random())
        is_in_time = self._clock() + pause_s + LEAST_S <= turn.until_s
        spent = self._budget.spent()
        if self._breaker.state is not BreakerState.CLOSED or not is_in_time or spent is None:
            return None
        self._budget = spent
        return pause_s

    async def _in_turn(self, turn: _WaitingCall) -> Said | Failed:
        """One call, when it is its turn. The time in this queue is ours: a service that is given less than its own time
        for an answer has not failed when that comes too late."""
        if not self._turns.locked():
            async with self._turns:
                return await self._call(turn)
        self._waiting += 1
        try:
            async with asyncio.timeout(max(turn.until_s - self._clock(), 0.0)):
                await self._turns.acquire()
        except TimeoutError:
            count = self._args.connections
            message = f"{count} other questions were under way to the admission service all the time"
            return Failed(internal(message), "no connection was free")
        finally:
            self._waiting -= 1
        try:
            return await self._call(replace(turn, is_cut_short=True))
        finally:
            self._turns.release()

    async def _call(self, turn: _WaitingCall) -> Said | Failed:
        """One call, where the breaker lets it through; however it ends, the breaker is told."""
        client, now_s = self._client, self._clock()
        if client is None:
            return Failed(internal("the plugin is not running"), "not running")
        if turn.until_s - now_s < LEAST_S:
            return Failed(internal("no time is left to ask the admission service"), "no time")
        breaker, entry = self._breaker.ask(now_s)
        self._change(breaker)
        if entry is None:
            refusal = internal(_closed_door(breaker, now_s), wait_s=breaker.wait_s(now_s) or None)
            return Failed(refusal, breaker.state.value, is_outage=True)
        if turn.question and self._outcomes is not None:
            self._questions[turn.pool] = turn.question
        event, why = BreakerEvent.ABANDONED, ""  # so it stays where this is cancelled or closed
        try:
            answer = await client.call(
                "POST",
                self._args.url,
                deadline_s=turn.until_s - now_s,
                body=turn.body,
                headers=self._credentials.headers,
            )
            result = understood(answer, turn.requests, self._wall())
            if isinstance(result, Said):
                event = BreakerEvent.SUCCEEDED
            elif self._client is not client or (result.is_late and turn.is_cut_short):
                return replace(result, is_outage=False, may_retry=False)  # our doing, not the service's
            else:
                event, why = BreakerEvent.FAILED, result.why
            return result
        except Exception as error:
            event, why = BreakerEvent.FAILED, type(error).__name__
            raise
        finally:
            self._tell(entry, event, why)

    def _tell(self, entry: Pass, event: BreakerEvent, why: str) -> None:
        if event is BreakerEvent.FAILED:
            self._last_failure = why
        self._change(self._breaker.tell(entry, event, self._clock()))

    def _change(self, breaker: Breaker) -> None:
        """The only writer of the breaker; a change of its state is a line in the log."""
        was, self._breaker = self._breaker, breaker
        if was.state is breaker.state:
            return
        news = self._log.warning if breaker.state is BreakerState.OPEN else self._log.info
        news(
            "breaker of the admission service has changed",
            state=breaker.state.value,
            failures=breaker.failures,
            error=self._last_failure,
        )


def _closed_door(breaker: Breaker, now_s: float) -> str:
    since = f"the admission service failed {counted(breaker.failures, 'time')} in a row, the last {now_s - breaker.opened_s:.1f} s ago"
    match breaker.state:
        case BreakerState.OPEN:
            return f"{since}; it is asked again in {breaker.wait_s(now_s):.1f} s"
        case BreakerState.HALF_OPEN:
            return f"{since}; one other question is trying it out"
        case BreakerState.CLOSED:
            raise AssertionError("a closed breaker lets every call through")
        case _:
            assert_never(breaker.state)


def factory(handle: Handle, providers: ProviderSet, args: Args) -> HttpAdmission:
    """Makes the plugin. Raises `ValueError` with every fault of its args."""
    return HttpAdmission(checked_args(args), handle.log)

"""`/v1/pools`: every route, every fault, who may write, and what is shown of a pool and its status."""

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pytest

from hosting.routes import Reply, Request, Router
from scheduler.pools.api import MAX_BODY_BYTES, PoolApi
from scheduler.pools.core.errors import (
    AppError,
    Scope,
    new_insufficient_resources,
    new_internal,
    new_invalid_spec,
    too_many_requests,
)
from scheduler.pools.core.values import ADMITTED, Admission, Context, Pool, PoolLimits
from tests.support.amounts import cu
from tests.support.virtual_time import now_s, virtually
from tests.unit.scheduler_pools.pool_worlds import Doorman, MemoryStore, PoolWorld, hangs, raises, until

UNIT = {"cpu": "1", "memory": "1Gi"}
BANK = {"name": "bank", "computeUnit": UNIT}
WALL = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)


class Api:
    """The routes of a pool world, asked without a network."""

    def __init__(self, doorman: Doorman | None = None, store: MemoryStore | None = None, **more: Any) -> None:
        self.doorman = doorman if doorman is not None else Doorman()
        self.world = PoolWorld(self.doorman, store=store)
        world = self.world
        api = PoolApi(world.objects, world.core, now_s, wall=lambda: WALL, **more)
        self._router = Router(api.routes(), None)

    async def ask(
        self, method: str, path: str, body: bytes | dict[str, Any] = b""
    ) -> tuple[int, dict[str, Any]]:
        """The status and the content of an answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        found = self._router.find(method, unquote(path, errors="surrogateescape"))
        assert not isinstance(found, Reply), found
        route, parameters = found
        assert len(content) <= route.max_body_bytes
        got = await route.answer(Request(method, path, content, {}, parameters))
        assert isinstance(got, Reply)
        answer: dict[str, Any] = json.loads(got.body)
        return got.status, answer

    async def create(self, **more: Any) -> dict[str, Any]:
        status, content = await self.ask("POST", "/v1/pools", {**BANK, **more})
        assert status == 201, content
        return content

    async def shown(self, name: str = "bank") -> dict[str, Any]:
        status, content = await self.ask("GET", f"/v1/pools/{name}")
        assert status == 200
        return content

    async def conditions(self) -> dict[str, tuple[str, str]]:
        """Status and reason of each condition."""
        found = (await self.shown())["status"]["conditions"]
        assert all(each["message"] for each in found)
        return {each["type"]: (each["status"], each["reason"]) for each in found}


WRITES = [
    ("POST", "/v1/pools"),
    ("PUT", "/v1/pools/bank"),
    ("DELETE", "/v1/pools/bank"),
    ("POST", "/v1/pools/bank/unpark"),
]


# ------------------------------------------------------------ a life


@virtually
async def test_a_pool_is_made_shown_changed_and_deleted() -> None:
    api = Api()
    created = await api.create(limits={"maxUnits": 9}, labels={"team": "a"})
    assert (created["generation"], created["limits"], created["computeUnit"]) == (1, {"maxUnits": 9}, UNIT)
    assert await api.ask("GET", "/v1/pools") == (200, {"pools": [created]})
    status, changed = await api.ask("PUT", "/v1/pools/bank", {**BANK, "limits": {"maxUnitsPerVm": 3}})
    assert (status, changed["generation"]) == (200, 2)
    assert (changed["limits"], changed["labels"]) == ({"maxUnitsPerVm": 3}, {}), "a PUT writes all of it"
    assert changed["uid"] == created["uid"]
    assert await api.ask("DELETE", "/v1/pools/bank") == (200, {"name": "bank", "deleted": True})
    assert await api.ask("GET", "/v1/pools") == (200, {"pools": []})


@virtually
async def test_what_a_reply_shows_may_be_sent_back() -> None:
    doorman = Doorman(3)
    api = Api(doorman)
    shown = await api.create(
        labels={"a.b/c": "d"}, annotations={"x": "é €"}, finalizers=["keep"], limits={"maxUnits": 8}
    )
    api.world.born("a")
    await api.world.grow("a", 9)
    shown = await api.shown()
    assert await api.ask("PUT", "/v1/pools/bank", shown) == (200, shown)
    await api.ask("DELETE", "/v1/pools/bank")
    marked = await api.shown()
    assert (marked["deleting"], marked["generation"]) == (True, 2)
    assert await api.ask("PUT", "/v1/pools/bank", marked) == (200, marked)


@virtually
async def test_a_deletion_that_is_held_is_told_as_accepted() -> None:
    api = Api()
    await api.create(finalizers=["b", "keep"])
    status, held = await api.ask("DELETE", "/v1/pools/bank")
    assert (status, held["deleting"], held["finalizers"]) == (202, True, ["b", "keep"])
    assert (await api.conditions())["Deleting"] == ("True", "FinalizersLeft")
    status, gone = await api.ask("PUT", "/v1/pools/bank", {**held, "finalizers": []})
    assert (status, gone) == (200, {"name": "bank", "deleted": True})


# ------------------------------------------------------------ bodies

GARBAGE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "name: is required"),
    "no mapping": (b"[]", "must be a mapping"),
    "half of one": (b'{"name": "bank", ', "not valid"),
    "two of them": (b'{"name": "bank"} {"name": "bank"}', "not valid"),
    "no text": (b'{"name": "\xff"}', "not valid"),
    "zeros": (b"\x00" * 100, "not valid"),
    "deep": (b"[" * 100_000, "nest deeper"),
    "a key twice": (
        b'{"name": "bank", "name": "safe", "computeUnit": {"cpu": "1", "memory": "1Gi"}}',
        "was given",
    ),
    "a key twice within": (
        b'{"name": "bank", "computeUnit": {"cpu": "1", "cpu": "2", "memory": "1Gi"}}',
        "was given",
    ),
    "a number that is none": (b'{"name": "bank", "computeUnit": {"cpu": NaN, "memory": "1Gi"}}', "cpu"),
    "an endless number": (b'{"name": "bank", "computeUnit": {"cpu": 1e999, "memory": "1Gi"}}', "cpu"),
    "an endless limit": (
        b'{"name": "bank", "computeUnit": {"cpu": 1, "memory": "1Gi"}, "limits": {"maxUnits": Infinity}}',
        "maxUnits",
    ),
    "half a text": (
        b'{"name": "bank", "computeUnit": {"cpu": 1, "memory": "1Gi"}, "annotations": {"a": "\\ud800"}}',
        "",
    ),
    "much of it": (b'{"name": "bank", "x": [' + b"1," * 100_000 + b"1]}", "there is no such setting"),
}


@pytest.mark.parametrize(("body", "told"), GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize(("method", "path"), WRITES[:2])
@virtually
async def test_garbage_is_refused_with_its_faults(method: str, path: str, body: bytes, told: str) -> None:
    api = Api()
    status, content = await api.ask(method, path, body)
    assert (status, content["code"]) == (400, "malformed")
    assert told in "\n".join(content["faults"])
    assert content["detail"]


@virtually
async def test_all_faults_are_told_at_once() -> None:
    api = Api()
    body = {
        "name": "Bank_1",
        "computeUnit": {"cpu": 0, "memory": "lots"},
        "limits": {"maxUnits": -1, "maxUnitsPerVm": True, "max": 1},
        "labels": {"a b": "x", "ok": "not ok!", "n": 1},
        "annotations": {"long": "x" * 5000},
        "finalizers": ["", 7],
        "generation": -1,
        "replicas": 5,
    }
    status, content = await api.ask("POST", "/v1/pools", body)
    assert status == 400
    found = "\n".join(content["faults"])
    for path in (
        "name:",
        "computeUnit.memory:",
        "limits.maxUnits:",
        "limits.maxUnitsPerVm:",
        "limits.max:",
        "labels.",
        "annotations.long",
        "finalizers[0]:",
        "finalizers[1]:",
        "generation:",
        "replicas: there is no such setting",
    ):
        assert path in found, path
    assert len(content["faults"]) >= 12


@pytest.mark.parametrize(
    "text", ["😀", "a/b", "\x7f", "\x1b[31m", "é", "12:30", "null", "line\nline", "\u2028 "]
)
@virtually
async def test_any_text_of_json_is_a_text(text: str) -> None:
    """Bodies are JSON: what a JSON writer escapes is no fault, and comes back as it was."""
    api = Api()
    created = await api.create(annotations={"note": text})
    assert created["annotations"] == {"note": text}
    raw = json.dumps({**BANK, "annotations": {"note": text}}, ensure_ascii=False).encode()
    status, content = await api.ask("PUT", "/v1/pools/bank", raw)
    assert (status, content["annotations"]) == (200, {"note": text})


@virtually
async def test_the_largest_pool_that_is_allowed_fits() -> None:
    api = Api()
    texts = {f"{'d' * 200}.{number}/{'n' * 60}": "x" * 4096 for number in range(64)}
    body = json.dumps({**BANK, "annotations": texts}).encode()
    assert len(body) <= MAX_BODY_BYTES
    assert (await api.ask("POST", "/v1/pools", body))[0] == 201


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "a b", "a" * 64, "ä", ".", 5, None])
@virtually
async def test_names_that_are_none(name: object) -> None:
    api = Api()
    status, content = await api.ask("POST", "/v1/pools", {**BANK, "name": name})
    assert (status, content["faults"][0].startswith("name: ")) == (400, True)


# ------------------------------------------------------------ what is not there, conflicts


@pytest.mark.parametrize("name", ["bank", "%ff", "%00", "..", "x" * 5000, "😀"])
@virtually
async def test_a_pool_that_is_not_there_is_told_alike_everywhere(name: str) -> None:
    api = Api()
    wanted = (404, "unknown-pool")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/unpark")):
        status, content = await api.ask(method, f"/v1/pools/{name}{path}")
        assert (status, content["code"]) == wanted, method
        assert len(content["detail"]) < 1000
    if name == "bank":
        status, content = await api.ask("PUT", "/v1/pools/bank", BANK)
        assert (status, content["code"]) == wanted


@virtually
async def test_conflicts_are_told_as_such() -> None:
    api = Api()
    created = await api.create()
    status, content = await api.ask("POST", "/v1/pools", BANK)
    assert (status, content["code"]) == (409, "conflict")
    await api.ask("PUT", "/v1/pools/bank", {**BANK, "labels": {"a": "b"}})
    status, content = await api.ask("PUT", "/v1/pools/bank", created)
    assert (status, content["code"]) == (409, "conflict")
    assert "generation 2" in content["detail"]


@virtually
async def test_the_name_of_the_path_is_the_name_of_the_pool() -> None:
    api = Api()
    await api.create()
    for name in ("other", "%ff", "x" * 5000):
        status, content = await api.ask("PUT", f"/v1/pools/{name}", BANK)
        assert (status, content["faults"][0].startswith("name: ")) == (400, True)
        assert len(content["detail"]) < 1000


# ------------------------------------------------------------ refusals of hooks

SECRET = RuntimeError("password=hunter2")
REFUSALS = {
    "quota": (new_insufficient_resources("no quota", SECRET), 503, "insufficient-resources"),
    "wrong": (new_invalid_spec("no team", SECRET), 422, "invalid-spec"),
    "broken": (new_internal("away", SECRET), 500, "internal"),
    "busy": (too_many_requests("slowly", SECRET), 429, "insufficient-resources"),
    "odd code": (AppError(200, "fine?", cause=SECRET), 500, "internal"),
    "business": (AppError(422, "key", biz_code="API_KEY_REQUIRED", cause=SECRET), 422, "invalid-spec"),
}


@pytest.mark.parametrize(("error", "status", "code"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize(("method", "path"), WRITES[:3])
@virtually
async def test_a_refusal_of_a_hook_is_told_without_its_cause(
    method: str, path: str, error: AppError, status: int, code: str
) -> None:
    api = Api()
    if method != "POST":
        await api.create()
    api.doorman.writes = lambda *_: Admission(error=error)
    got, content = await api.ask(method, path, {**BANK, "labels": {"a": "b"}})
    assert (got, content["code"], content["detail"]) == (status, code, error.message)
    assert content.get("bizCode", "") == error.biz_code
    assert "hunter2" not in json.dumps(content)


@virtually
async def test_a_disk_that_is_full_is_told_and_nothing_has_happened() -> None:
    store = MemoryStore(fault=OSError(28, "No space left on device"))
    api = Api(store=store)
    status, content = await api.ask("POST", "/v1/pools", BANK)
    told = (content["code"], content["detail"])
    assert (status, *told) == (500, "internal", "pool bank cannot be stored now")
    assert await api.ask("GET", "/v1/pools") == (200, {"pools": []})


@virtually
async def test_what_a_plugin_adds_can_be_sent_back_or_is_the_plugins_failure() -> None:
    """Else nobody could write the pool any more, and a restart could not read it."""
    api = Api()
    bad = (
        {"labels": {"team": "not a label!"}},
        {"annotations": {"state": "x" * 5000}},
        {"finalizers": ("no finalizer!",)},
        {"limits": PoolLimits(2**40)},
        {"annotations": {"half": "\ud800"}},
    )
    for changes in bad:

        def adds(hook: str, ctx: Context, seen: Pool, changes: dict[str, Any] = changes) -> Admission:
            return Admission(pool=Pool(seen.name, seen.compute_unit, uid=seen.uid, generation=1, **changes))

        api.doorman.writes = adds
        status, content = await api.ask("POST", "/v1/pools", BANK)
        if status == 201:
            api.doorman.writes = lambda *_: ADMITTED
            assert (await api.ask("PUT", "/v1/pools/bank", content))[0] == 200, changes
            await api.ask("DELETE", "/v1/pools/bank")
        else:
            assert (status, content["code"]) == (500, "internal")


# ------------------------------------------------------------ status and conditions


@virtually
async def test_the_status_tells_units_members_and_who_waits() -> None:
    api = Api(Doorman(100, 0.2))
    await api.create(limits={"maxUnits": 20})
    api.world.born("a", "b", units=3)
    assert await api.conditions() == {"Admitted": ("Unknown", "NotAsked")}
    tasks = [await api.world.growing(name, 5) for name in ("a", "b")]
    status = (await api.shown())["status"]
    assert (status["totalUnits"], status["members"], status["waiting"]) == (6, 2, 2)
    for task in tasks:
        await task
    status = (await api.shown())["status"]
    assert (status["totalUnits"], status["waiting"], status["isAboveLimit"]) == (10, 0, False)
    assert status["lastOutcome"]["kind"] == "OK"
    assert await api.conditions() == {"Admitted": ("True", "AdmissionGranted")}
    await api.ask("PUT", "/v1/pools/bank", {**BANK, "limits": {"maxUnits": 4}})
    assert (await api.shown())["status"]["isAboveLimit"]


@virtually
async def test_a_full_pool_says_at_what_until_when_and_why() -> None:
    api = Api(Doorman(4))
    await api.create()
    api.world.born("a")
    await api.world.grow("a", 9)
    await until(20.0)
    status = (await api.shown())["status"]
    assert (status["saturatedAtUnits"], status["saturatedUntil"]) == (4, "2026-05-01T12:00:40Z")
    last = status["lastOutcome"]
    assert (last["kind"], last["plugin"], last["askedUnits"], last["admittedUnits"]) == (
        "InsufficientResources",
        "doorman",
        9,
        4,
    )
    assert (last["at"], last["message"]) == ("2026-05-01T11:59:40Z", "no room for 5")
    assert await api.conditions() == {"Admitted": ("False", "QuotaExhausted")}
    await until(61.0)
    assert "saturatedUntil" not in (await api.shown())["status"]


@virtually
async def test_a_failure_and_a_deadline_are_told() -> None:
    api = Api(Doorman())
    await api.create()
    api.world.born("a")
    api.doorman.says = hangs
    await api.world.grow("a", 9)
    assert await api.conditions() == {"Admitted": ("False", "AdmissionError")}
    chain = [Doorman(100, 0.45, f"d{number}") for number in range(6)]
    api.world.use(*chain)
    await api.world.grow("a", 9)
    assert (await api.shown())["status"]["lastOutcome"]["kind"] == "Deadline"
    assert await api.conditions() == {"Admitted": ("Unknown", "ProbeDeadline")}


@virtually
async def test_a_parked_pool_is_unparked() -> None:
    api = Api()
    await api.create()
    api.world.born("a")
    api.doorman.says = raises(new_invalid_spec("no such team"))
    await api.world.grow("a", 9)
    assert await api.conditions() == {
        "Admitted": ("False", "AdmissionRejected"),
        "Parked": ("True", "AdmissionRejected"),
    }
    status, content = await api.ask("POST", "/v1/pools/bank/unpark")
    assert (status, content["changed"], content["name"]) == (200, True, "bank")
    assert (await api.ask("POST", "/v1/pools/bank/unpark"))[1]["changed"] is False
    assert (await api.conditions())["Admitted"][0] != "True", "nothing has admitted anything yet"
    api.doorman.says = None
    assert await api.world.grow("a", 9) == (9, [])
    assert await api.conditions() == {"Admitted": ("True", "AdmissionGranted")}


@virtually
async def test_a_pool_that_was_full_is_not_told_as_admitted_when_that_is_over() -> None:
    api = Api(Doorman(1))
    await api.create()
    api.world.born("a")
    await api.world.grow("a", 9)
    await until(100.0)
    assert (await api.conditions())["Admitted"][0] != "True", "the last word was a refusal"


@virtually
async def test_parked_vms_are_named_while_they_are_there() -> None:
    api = Api()
    await api.create()
    api.world.born("a")
    api.doorman.says = raises(new_invalid_spec("too wide", scope=Scope.VM))
    await api.world.grow("a", 9)
    (parked,) = (await api.shown())["status"]["parkedVms"]
    assert parked == {"uid": "uid-a", "pod": "d/a", "plugin": "doorman", "message": "too wide"}
    assert "Parked" not in await api.conditions()
    api.world.gone("a")
    assert (await api.shown())["status"].get("parkedVms", []) == []


@virtually
async def test_a_pool_that_the_file_describes_otherwise_says_so_as_soon_as_it_does() -> None:
    api = Api()
    await api.world.objects.follow({"bank": Pool("bank", cu(1), PoolLimits(4))})
    assert "FileIgnored" not in await api.conditions()
    await api.ask("PUT", "/v1/pools/bank", {**BANK, "limits": {"maxUnits": 9}})
    assert (await api.conditions())["FileIgnored"] == ("True", "StoredWins")
    await api.ask("PUT", "/v1/pools/bank", {**BANK, "limits": {"maxUnits": 4}})
    assert "FileIgnored" not in await api.conditions()

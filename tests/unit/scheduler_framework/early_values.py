"""Players of the recorded cases about registries, statuses and contexts (parts A, B and C of `framework-v1alpha1.jsonl`).

A player does what a case says, through the seed's own calls, and returns what was seen in the shape of the case's `expect`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from hosting.registry import RegistryError
from scheduler.placing.core.values import (
    Code,
    Status,
    as_error_of,
    code_of,
    is_success,
    message_of,
    new_status,
)
from scheduler.placing.cycle.context import NOT_FOUND, LockError, NotFoundError, PluginContext
from scheduler.placing.plugins.registry import SHIPPED, Registry, new_registry
from tests.support.virtual_time import turns
from tests.unit.scheduler_framework.scripted import Script

Outcome = dict[str, Any]


def _as_text(error: Exception | None) -> str | None:
    return None if error is None else str(error)


# ------------------------------------------------------------ A: the registry


async def play_registry(given: Script) -> Outcome:
    starts: dict[str, Callable[[], Any]] = {
        "empty": Registry,
        "new_registry": new_registry,
        "two_new_registries": new_registry,
        "null": lambda: None,
    }
    registry = starts[given["start"]]()
    factories: dict[str, Any] = {"null": None}
    results = [_registry_op(registry, op, factories) for op in given["ops"]]
    labels = {id(factory): label for label, factory in factories.items()}
    names = () if registry is None else [name for name in registry.names() if name not in SHIPPED]
    seen: Outcome = {"results": results, "content": {name: labels[id(registry.get(name))] for name in names}}
    if given["start"] == "two_new_registries":
        seen["size_of_the_other"] = len(new_registry().names()) - len(SHIPPED)
    return seen


def _registry_op(registry: Any, op: Script, factories: dict[str, Any]) -> str | Outcome | None:
    try:
        if op["op"] == "register":
            label = op["factory"]
            factory = factories.setdefault(label, lambda *_: None)
            registry.register(op["name"], factory)
        else:
            registry.unregister(op["name"])
    except RegistryError as error:
        return str(error)
    except AttributeError as error:
        return {"panic": str(error)}
    return None


# ------------------------------------------------------------ B: statuses


async def play_status(given: Script) -> Outcome:
    status = new_status(given["new_status"]["code"], given["new_status"]["message"])
    seen = _getters(status)
    if seen["as_error"] is not None:
        seen["as_error_gives_a_new_object_each_time"] = status.as_error() is not status.as_error()
    return seen


def _getters(status: Status) -> Outcome:
    return {
        "code": int(code_of(status)),
        "message": message_of(status),
        "is_success": is_success(status),
        "as_error": _as_text(status.as_error()),
    }


_OF_NULL: Final[dict[str, Callable[[None], object]]] = {
    "code": code_of,
    "is_success": is_success,
    "message": message_of,
    "as_error": as_error_of,
}


async def play_status_null(given: Script) -> Outcome:
    if given["receiver"] == "zero_value":
        return _getters(Status(Code.SUCCESS))
    return {"result": _OF_NULL[given["call"]](None)}


async def play_constants(_: Script) -> Outcome:
    codes = {str(code): int(code) for code in (Code.SUCCESS, Code.ERROR, Code.UNSCHEDULABLE, Code.WAIT)}
    return {**codes, "NotFound": NOT_FOUND, "default_code_text": str(Code.UNSCHEDULABLE)}


async def play_identity(_: Script) -> Outcome:
    first, second = new_status(Code.ERROR, "x"), new_status(Code.ERROR, "x")
    return {"equal_value": first == second, "same_object": first is second}


# ------------------------------------------------------------ C: the context


async def play_context(given: Script) -> Outcome:
    context = None if given["start"] == "null" else PluginContext()
    return {"results": [_context_op(context, op) for op in given["ops"]]}


def _context_op(context: Any, op: Script) -> Outcome | None:
    try:
        if op["op"] == "read":
            return {"error": None, "value": context.read(op["key"])}
        if op["op"] == "write":
            context.write(op["key"], op["value"])
        else:
            context.delete(op["key"])
    except NotFoundError as error:
        return {"error": str(error), "value": None}
    except AttributeError as error:
        return {"panic": str(error)}
    return None


async def play_context_reference(given: Script) -> Outcome:
    """The note of each of the three cases says what it does."""
    context, other = PluginContext(), PluginContext()
    value = {"n": 1}
    context.write("key", value)
    value["n"] = 2
    context.read("key")["n"] += 1
    errors = []
    for _ in range(2):
        try:
            other.read("key")
        except NotFoundError as error:
            errors.append(error)
    return {
        "n": context.read("key")["n"],
        "read_of_the_other": str(errors[0]),
        "text": str(errors[0]),
        "same_object": errors[0] is errors[1],
    }


async def play_context_locks(given: Script) -> Outcome:
    """Each step is a task of its own, as each is a thread of its own in the recording."""
    context = PluginContext()
    tasks: list[tuple[str, asyncio.Task[None]]] = []
    waiting = []
    for number, step in enumerate(given["steps"], 1):
        label = f"step {number} ({step['thread']} {step['op']})"
        tasks.append((label, asyncio.create_task(_lock_step(context, step["op"]))))
        await turns()
        waiting.append([label for label, task in tasks if not task.done()])
    await asyncio.gather(*(task for _, task in tasks))
    return {"still_waiting_after_each_step": waiting}


async def _lock_step(context: PluginContext, op: str) -> None:
    if op in {"lock", "rlock"}:
        await (context.lock() if op == "lock" else context.rlock())
    elif op in {"unlock", "runlock"}:
        (context.unlock if op == "unlock" else context.runlock)()
    else:
        _context_op(context, {"op": op, "key": "key", "value": "value"})


async def play_context_lock_misuse(given: Script) -> Outcome:
    steps = {
        "runlock": ("runlock",),
        "runlock_of_lock": ("lock", "runlock"),
        "double_unlock": ("lock", "unlock", "unlock"),
    }
    context = PluginContext()
    try:
        for step in steps[given["misuse"]]:
            await _lock_step(context, step)
    except LockError as error:
        return {"process_failed": True, "text": str(error)}
    return {"process_failed": False}

"""Calls to the API server side by side and in time, and lists of objects by their names."""

import asyncio
from collections.abc import Collection, Coroutine, Iterable
from itertools import groupby
from typing import Any, Final

from hosting.kubernetes.api import KubernetesError
from hosting.kubernetes.core.known import Key
from hosting.kubernetes.reflector import Reflector
from scheduler.ports import LOOK_DEADLINE_S, ClusterUnreachableError

MAX_BY_NAME: Final = 8
"""More objects of a namespace are listed together rather than each by its name."""


async def in_time(*calls: Coroutine[Any, Any, None]) -> None:
    """Ask the API server. Raises `ClusterUnreachableError`."""
    try:
        async with asyncio.timeout(LOOK_DEADLINE_S):
            await _together(calls)
    except TimeoutError:
        raise ClusterUnreachableError("the API server has not answered in time") from None
    except KubernetesError as error:
        raise ClusterUnreachableError(str(error)) from None


async def _together(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run calls side by side. The first error ends all of them, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def list_by_name(watch: Reflector, keys: Collection[Key]) -> None:
    """Consistent lists of these objects: by name, or of whole namespaces."""
    by_namespace = {
        namespace: {name for _, name in found}
        for namespace, found in groupby(sorted(keys), key=lambda key: key[0])
    }
    calls: list[Coroutine[Any, Any, None]] = []
    for namespace, names in by_namespace.items():
        if len(names) > MAX_BY_NAME:
            calls.append(watch.list_namespace(namespace, names))
        else:
            calls += [watch.list_one(namespace, name) for name in sorted(names)]
    await _together(calls)

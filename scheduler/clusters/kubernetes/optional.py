"""Types of objects that a cluster may not have, such as those of NeonVM: what watches them begins when they come."""

import asyncio
from collections.abc import Callable
from typing import Final

from hosting.kubernetes.api import KubernetesApi, KubernetesError, RefusedError
from hosting.kubernetes.resources import ResourceType
from hosting.supervisor import Child

LOOK_S: Final = 30.0
"""How often a type is looked for."""


async def run_when_known(
    api: KubernetesApi,
    type_: ResourceType,
    child: Child,
    note_missing: Callable[[bool], object] = lambda _: None,
) -> None:
    """Run `child` once the API server knows the type. `note_missing` is told what is so."""
    while await _is_unknown(api, type_):
        note_missing(True)
        await asyncio.sleep(LOOK_S)
    note_missing(False)
    await child()


async def _is_unknown(api: KubernetesApi, type_: ResourceType) -> bool:
    """Whether the API server says so; a server that cannot be asked says nothing."""
    try:
        await api.list(type_, query={"limit": "1"})
    except RefusedError as error:
        return error.is_not_found
    except KubernetesError:
        return False
    return False

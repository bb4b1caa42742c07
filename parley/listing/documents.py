"""Asks for the documents that lists are made of: pages are followed, with a bound, and answers that cannot be read are faults."""

from dataclasses import dataclass, field
from typing import Final, TypeVar
from urllib.parse import quote

from parley.reach.answers import decoded
from parley.reach.ports import Got, NoAnswer, Reach
from protocol.explaining import Document, NodeShown, PodShown, StatePage, VmShown

D = TypeVar("D", bound=Document)
PAGE: Final = 500
MAX_PAGES: Final = 100
"""Of `/v1/state`: 50,000 nodes, VMs and others."""
MAX_CONTINUE: Final = 1024


async def document(reach: Reach, path: str, kind: type[D]) -> D | NoAnswer:
    answer = await reach.scheduler(path)
    return decoded(answer, kind) if isinstance(answer, Got) else answer


@dataclass(slots=True)
class State:
    """Everything that the pages told. `is_cut` says that there is more; `instance` is the process that told it."""

    instance: str = ""
    at: str = ""
    nodes: list[NodeShown] = field(default_factory=list)
    vms: list[VmShown] = field(default_factory=list)
    others: list[PodShown] = field(default_factory=list)
    is_cut: bool = False


async def state(reach: Reach, *, max_pages: int = MAX_PAGES) -> State | NoAnswer:
    """Follow the pages of `/v1/state`, at most `max_pages`, as far as VMs go: the entries after them are not asked for."""
    found, path = State(), f"/v1/state?limit={PAGE}"
    for _ in range(max_pages):
        page = await document(reach, path, StatePage)
        if isinstance(page, NoAnswer):
            return page
        if found.instance and page.instance != found.instance:
            return NoAnswer("the scheduler was restarted while it was asked; ask again")
        found.instance, found.at = page.instance, page.at
        found.nodes += page.nodes
        found.vms += page.vms
        found.others += page.others
        if page.continue_ is None or page.others:
            return found
        if len(page.continue_) > MAX_CONTINUE:
            return NoAnswer("the scheduler's page cannot be continued: its word for that is too long")
        path = f"/v1/state?limit={PAGE}&continue={quote(page.continue_, safe='')}"
    found.is_cut = True
    return found

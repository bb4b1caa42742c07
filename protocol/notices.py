"""The scheduler's notices to the agents, as they travel: `GET /v1/notices` is one long poll per agent daemon.

A notice is a hint and never a right: it only causes an ordinary request, or an ordinary shrink that the guest agrees to. Lost, late and
repeated notices are harmless. Source: design section 4, "The scheduler can speak first".
"""

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from protocol.explaining import AmountShown

NOTICES_PATH: Final = "/v1/notices"
NOTICES_HEADER: Final = "Parley-Notices"
"""Reply header of permits: the version of the notices that the scheduler serves. Only a scheduler that has sent it is polled."""
NOTICES_VERSION: Final = 1
MAX_NUMBER: Final = 2**53
LONGEST_POLL_S: Final = 25.0
"""A poll without news is answered after so long."""


class NoticeKind(enum.StrEnum):
    """The value is the word on the wire. Readers leave out kinds that they do not know."""

    ROOM = "room"
    """The node has room for the VM's wish now: `resources` is the amount that a request would be permitted."""
    YIELD = "yield"
    """Another VM of the node waits, or a quota has to give back: please give back what lies above `resources`."""
    EPOCH = "epoch"
    """Another scheduler process answers than before: ask again."""


class WireNotice(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """One notice. `number` rises from notice to notice of one scheduler process and node; `epoch` has no more fields than that and `kind`.

    Of a `yield`, `waiter` is the VM that waits (`namespace/name`) and `priority` its priority; without one, `quota` is the VM's own quota, which
    has to give back what it borrowed.
    """

    number: int
    kind: str
    namespace: str = ""
    name: str = ""
    pod_uid: str = msgspec.field(default="", name="podUID")
    resources: AmountShown | None = None
    waiter: str = ""
    priority: int = 0
    quota: str = ""


class NoticePage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The answer to a poll. `last` is the number of the latest notice to the agent's node, to be named in the next poll as `after`;
    `instance` and `epoch` tell the scheduler process."""

    instance: Annotated[str, Meta(min_length=1, max_length=64)]
    epoch: int
    last: Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
    notices: tuple[WireNotice, ...] = ()

"""Why a hook refused: the one error that hooks give, its kind, and how codes are read where no kind is named.

Source: seed 000 (`domain.AppError`, `PluginErrorKind`, `KindFromAppError`), with two additions of ours in the detail:
whom an InvalidSpec is about (`scope`), and when asking again may help.
"""

import enum
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

MAX_MESSAGE: Final = 512
"""Characters of a plugin's message that are kept; agents refuse a reply whose reasons have more than 1024."""


class PluginErrorKind(enum.StrEnum):
    """The sort of a refusal. The values are those of seed 000."""

    UNKNOWN = ""
    """The author did not say. Treated as Internal: asked again later, not searched below."""
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    """Quota, scheduler or cluster is full; fewer replicas may fit."""
    INTERNAL = "Internal"
    """A failure that passes: nothing is granted, and nothing counts as full."""
    INVALID_SPEC = "InvalidSpec"
    """Wrong at any number of replicas; the pool (or the VM) is parked until something changes."""


class Scope(enum.StrEnum):
    """Whom an InvalidSpec is about."""

    POOL = "pool"
    VM = "vm"
    """Only the VM that `Detail.vm_uid` names, or the one that asks (`Context.request`)."""


@dataclass(frozen=True, slots=True)
class Detail:
    """The details of a refusal beside the message: the kind and more. `kind` UNKNOWN leaves the code to decide.

    `retry_after_s` tells when asking again may help (seconds), `reason` is CamelCase, for machines.
    """

    kind: PluginErrorKind = PluginErrorKind.UNKNOWN
    scope: Scope = Scope.POOL
    vm_uid: str = ""
    retry_after_s: float | None = None
    reason: str = ""


class AppError(Exception):
    """The one error of hooks: raise it, or give it as `Admission.error` where the pool was changed as well.

    `code` is an HTTP status; `biz_code` a code for clients; `message` is shown to clients and is all of `str(error)`;
    `cause` is for the log alone and never leaves the process; `detail` is free, and a kind or a `Detail` there decides
    the kind. Source: seed 000, `domain.AppError`.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        biz_code: str = "",
        cause: BaseException | None = None,
        detail: Any = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.biz_code = biz_code
        self.cause = cause
        self.detail = detail
        self.__cause__ = cause

    def __repr__(self) -> str:
        return f"AppError({self.code}, {self.message!r}, detail={self.detail!r}, cause={self.cause!r})"


not_found: Final = partial(AppError, 404)
conflict: Final = partial(AppError, 409)
bad_request: Final = partial(AppError, 400)
unauthorized: Final = partial(AppError, 401)
forbidden: Final = partial(AppError, 403)
api_key_required: Final = partial(AppError, 422, biz_code="API_KEY_REQUIRED")
service_unavailable: Final = partial(AppError, 503)
"""Without a kind it reads as InsufficientResources; for an outage use `new_internal`."""


def too_many_requests(message: str, cause: BaseException | None = None, detail: Any = None) -> AppError:
    """429."""
    return AppError(429, message, cause=cause, detail=detail)


def internal(message: str, cause: BaseException | None = None) -> AppError:
    """500 without a kind."""
    return AppError(500, message, cause=cause)


def _of_kind(code: int, message: str, cause: BaseException | None, detail: Detail) -> AppError:
    """An error whose detail is the kind alone where there is no more to say."""
    is_plain = detail == Detail(detail.kind)
    return AppError(code, message, cause=cause, detail=detail.kind if is_plain else detail)


def new_insufficient_resources(
    message: str, cause: BaseException | None = None, *, retry_after_s: float | None = None, reason: str = ""
) -> AppError:
    """503: quota, scheduler or cluster is full; fewer replicas may fit. Source: seed 000, `NewInsufficientResources`."""
    kind = PluginErrorKind.INSUFFICIENT_RESOURCES
    return _of_kind(503, message, cause, Detail(kind, retry_after_s=retry_after_s, reason=reason))


def new_internal(
    message: str, cause: BaseException | None = None, *, retry_after_s: float | None = None, reason: str = ""
) -> AppError:
    """500: a failure that passes. Source: seed 000, `NewInternal`."""
    kind = PluginErrorKind.INTERNAL
    return _of_kind(500, message, cause, Detail(kind, retry_after_s=retry_after_s, reason=reason))


def new_invalid_spec(
    message: str,
    cause: BaseException | None = None,
    *,
    scope: Scope = Scope.POOL,
    vm_uid: str = "",
    reason: str = "",
) -> AppError:
    """422: wrong at any number of replicas. Source: seed 000, `NewInvalidSpec`.

    `scope` VM parks only the VM `vm_uid` (by default the one that asks) instead of the whole pool.
    """
    kind = PluginErrorKind.INVALID_SPEC
    return _of_kind(422, message, cause, Detail(kind, scope, vm_uid, reason=reason))


KIND_OF_CODE: Final = {
    503: PluginErrorKind.INSUFFICIENT_RESOURCES,
    429: PluginErrorKind.INSUFFICIENT_RESOURCES,
    400: PluginErrorKind.INVALID_SPEC,
    422: PluginErrorKind.INVALID_SPEC,
}
"""How a code is read where no kind is named; every other code is Internal."""


def kind_from_app_error(error: AppError | None) -> PluginErrorKind:
    """The kind of a refusal. Source: seed 000, `KindFromAppError`; its order of looking things up:

    no error is UNKNOWN (the only way to get that); a kind as the detail; a detail that names its `kind`; 503 and 429
    are InsufficientResources, 400 and 422 InvalidSpec, every other code Internal.
    """
    if error is None:
        return PluginErrorKind.UNKNOWN
    detail = getattr(error, "detail", None)
    named = detail if isinstance(detail, PluginErrorKind) else _kind_named_by(detail)
    if isinstance(named, PluginErrorKind) and named is not PluginErrorKind.UNKNOWN:
        return named
    code = getattr(error, "code", None)
    return KIND_OF_CODE.get(code if isinstance(code, int) else 0, PluginErrorKind.INTERNAL)


def _kind_named_by(detail: object) -> object:
    """The `kind` of a detail; None if it has none or cannot tell. Anybody may write a detail."""
    try:
        named = getattr(detail, "kind", None)
        return named() if callable(named) else named
    except Exception:  # noqa: BLE001 - then the code decides
        return None


def detail_of(error: AppError) -> Detail:
    """The `Detail` of an error, an empty one where its detail is something else."""
    detail = getattr(error, "detail", None)
    return detail if isinstance(detail, Detail) else Detail()


class Interrupt(BaseException):
    """Thrown into steps whose time is over: they end with what they know by now.

    `Interrupt` is no `Exception`, so that no barrier for the failures of plugins takes one for such a failure.
    """

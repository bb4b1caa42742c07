"""A refusal has its text, and is read as one kind, whatever an author puts into it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.pools.core import errors
from scheduler.pools.core.errors import (
    AppError,
    Detail,
    Interrupt,
    PluginErrorKind,
    Scope,
    kind_from_app_error,
)

UNKNOWN = PluginErrorKind.UNKNOWN
INSUFFICIENT = PluginErrorKind.INSUFFICIENT_RESOURCES
INTERNAL = PluginErrorKind.INTERNAL
INVALID = PluginErrorKind.INVALID_SPEC
KNOWN = [INSUFFICIENT, INTERNAL, INVALID]


def kinded(kind: object) -> object:
    """A detail that names its kind as an attribute."""
    return SimpleNamespace(kind=kind)


def asked(kind: object) -> object:
    """A detail that names its kind when it is asked, as in later versions of seed 000."""
    return SimpleNamespace(kind=lambda: kind)


class Broken:
    """A detail that fails when it is looked at."""

    @property
    def kind(self) -> PluginErrorKind:
        raise RuntimeError("no kind today")


def _broken() -> PluginErrorKind:
    raise RuntimeError("no kind today")


def test_the_kinds_are_those_of_the_seed() -> None:
    assert [str(kind) for kind in PluginErrorKind] == ["", "InsufficientResources", "Internal", "InvalidSpec"]


@pytest.mark.parametrize(
    ("make", "code", "kind"),
    [
        (errors.not_found, 404, INTERNAL),
        (errors.conflict, 409, INTERNAL),
        (errors.bad_request, 400, INVALID),
        (errors.unauthorized, 401, INTERNAL),
        (errors.forbidden, 403, INTERNAL),
        (errors.api_key_required, 422, INVALID),
        (errors.too_many_requests, 429, INSUFFICIENT),
        (errors.service_unavailable, 503, INSUFFICIENT),
        (errors.internal, 500, INTERNAL),
        (errors.new_insufficient_resources, 503, INSUFFICIENT),
        (errors.new_internal, 500, INTERNAL),
        (errors.new_invalid_spec, 422, INVALID),
    ],
)
def test_every_constructor_has_its_code_and_kind(
    make: Callable[[str], AppError], code: int, kind: PluginErrorKind
) -> None:
    error = make("why")
    assert (error.code, error.message, str(error)) == (code, "why", "why")
    assert error.biz_code == ("API_KEY_REQUIRED" if make is errors.api_key_required else "")
    assert kind_from_app_error(error) is kind


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (errors.new_insufficient_resources, INSUFFICIENT),
        (errors.new_internal, INTERNAL),
        (errors.new_invalid_spec, INVALID),
    ],
)
def test_a_constructor_of_a_kind_keeps_the_cause_and_says_the_kind_alone(
    make: Callable[..., AppError], kind: PluginErrorKind
) -> None:
    cause = OSError("password=secret")
    error = make("full", cause)
    assert error.cause is cause
    assert error.__cause__ is cause
    assert ("secret" in repr(error), "secret" in str(error), error.args) == (True, False, ("full",))
    assert error.detail is kind
    assert make("full", None).cause is None


# ------------------------------------------------------------ the order of looking things up


def test_only_no_error_is_unknown() -> None:
    assert kind_from_app_error(None) is UNKNOWN
    assert kind_from_app_error(AppError(0, "", detail=UNKNOWN)) is INTERNAL


@pytest.mark.parametrize("kind", KNOWN)
@pytest.mark.parametrize("code", [0, 400, 422, 429, 500, 503])
@pytest.mark.parametrize("wrap", [lambda kind: kind, Detail, kinded, asked])
def test_a_named_kind_wins_over_the_code(
    kind: PluginErrorKind, code: int, wrap: Callable[[PluginErrorKind], object]
) -> None:
    assert kind_from_app_error(AppError(code, "why", detail=wrap(kind))) is kind


@pytest.mark.parametrize(
    "detail",
    [
        None,
        UNKNOWN,
        Detail(),
        Detail(reason="Why", retry_after_s=3.0),
        kinded(UNKNOWN),
        asked(UNKNOWN),
        kinded("InvalidSpec of some sort"),
        kinded(None),
        {"kind": INVALID},
        17,
        b"InvalidSpec",
        object(),
    ],
)
@pytest.mark.parametrize(
    ("code", "kind"),
    [(503, INSUFFICIENT), (429, INSUFFICIENT), (400, INVALID), (422, INVALID)]
    + [(code, INTERNAL) for code in (-1, 0, 200, 401, 403, 404, 409, 500, 502, 504)],
)
def test_without_a_named_kind_the_code_decides(detail: object, code: int, kind: PluginErrorKind) -> None:
    assert kind_from_app_error(AppError(code, "why", detail=detail)) is kind


@pytest.mark.parametrize(
    "detail",
    [
        *(Broken(), SimpleNamespace(kind=_broken), SimpleNamespace(kind=lambda of: of)),
        *(int, PluginErrorKind, Detail, SimpleNamespace, (lambda: INVALID), len),
    ],
)
def test_a_detail_that_cannot_tell_its_kind_or_can_be_called_leaves_it_to_the_code(detail: object) -> None:
    assert kind_from_app_error(AppError(503, "full", detail=detail)) is INSUFFICIENT


@pytest.mark.parametrize("code", ["503", None, [], {}, float("nan")])
def test_a_code_that_is_none_is_internal(code: Any) -> None:
    assert kind_from_app_error(AppError(code, "why")) is INTERNAL


def test_an_error_of_a_derived_class_that_sets_nothing_is_internal() -> None:
    class LazyError(AppError):
        def __init__(self) -> None:
            Exception.__init__(self, "lazy")

    assert kind_from_app_error(LazyError()) is INTERNAL


# ------------------------------------------------------------ the detail


def test_an_invalid_spec_is_about_the_pool_unless_a_vm_is_named() -> None:
    assert errors.detail_of(errors.new_invalid_spec("bad")).scope is Scope.POOL
    error = errors.new_invalid_spec("bad", scope=Scope.VM, vm_uid="uid-1")
    assert error.detail == Detail(INVALID, Scope.VM, "uid-1")
    assert kind_from_app_error(error) is INVALID


def test_a_wait_and_a_reason_go_into_the_detail() -> None:
    error = errors.new_insufficient_resources("full", retry_after_s=0.0, reason="QuotaFull")
    assert error.detail == Detail(INSUFFICIENT, retry_after_s=0.0, reason="QuotaFull")
    assert kind_from_app_error(error) is INSUFFICIENT


@pytest.mark.parametrize("detail", [None, INVALID, {"scope": Scope.VM}, "vm", 3])
def test_another_detail_is_an_empty_one(detail: object) -> None:
    assert errors.detail_of(AppError(422, "bad", detail=detail)) == Detail()


def test_an_interrupt_is_no_failure_of_a_plugin() -> None:
    assert not issubclass(Interrupt, Exception)

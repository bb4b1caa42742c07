"""A pool's answer to a pod that is about to be placed: by what is remembered of it, and by the answers of its plugins. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from protocol.reasons import Reason, ReasonCode
from protocol.values import ZERO, Resources, amount_of
from protocol.wire import PodName
from scheduler.pools.core.admission_state import PoolAdmissionState, message_of, saturated
from scheduler.pools.core.errors import AppError, PluginErrorKind, detail_of, kind_from_app_error
from scheduler.pools.core.values import Admission, PodAdmission, Pool, VmRequest, frozen_texts

FAILED_RETRY_S: Final = 1.0
_CODES: Final = {
    PluginErrorKind.INSUFFICIENT_RESOURCES: ReasonCode.POOL,
    PluginErrorKind.INVALID_SPEC: ReasonCode.POOL_PARKED,
}
_CHANGED_POD: Final = (
    "changed the pod, which exists already and can only be placed as it is: change pods where they are made"
)


def uid_of(pod: Mapping[str, Any]) -> str:
    """The UID of a pod; empty where its manifest has none."""
    return str((pod.get("metadata") or {}).get("uid", ""))


def request_of(pod: Mapping[str, Any], pool: Pool, amount: Resources) -> VmRequest:
    """A pod without a node as hooks are told of it: it has nothing yet, and wants `amount`."""
    found = pod.get("metadata") or {}
    labels = {str(name): str(value) for name, value in (found.get("labels") or {}).items()}
    return VmRequest(
        PodName(str(found.get("name", "")), str(found.get("namespace", ""))),
        uid_of(pod),
        "",
        frozen_texts(labels),
        ZERO,
        amount,
        0,
        amount.units(pool.compute_unit),
    )


def with_birth(pool: Pool, amount: Resources, counted: Resources) -> Pool:
    """The pool with a pod of `amount` in it. `pool` is as it is now, and has `counted` of that already."""
    units = max(amount.units(pool.compute_unit) - counted.units(pool.compute_unit), 0)
    return pool.with_replicas(pool.replicas + units, pool.amount + (amount - counted).max(ZERO))


def remembered(
    state: PoolAdmissionState,
    request: VmRequest,
    asked: Pool,
    is_awaited: Callable[[str], bool],
    now_s: float,
) -> Reason | None:
    """Why the pool is not asked: it is parked, or was found full below what is `asked` by a plugin that must be waited for."""
    verdict = state.parked_verdict(request.uid, asked.name)
    if verdict is not None:
        return verdict.reason
    for refusal in state.refusals:
        if asked.measures.of(refusal.measure) > refusal.total and is_awaited(refusal.plugin):
            return saturated(refusal, asked.name, now_s)
    return None


def of_total(said: Admission, asked: Pool) -> Reason | None:
    """The meaning of the chain's word on the pool's total for the pod; None if all of that is admitted."""
    if said.error is not None:
        return _refused(asked.name, said.error)
    if said.admits(asked):
        return None
    cap = next((cap for cap in said.amounts if cap.most < amount_of(asked.amount, cap.resource)), None)
    is_of_amount = cap is not None and said.admitted_or(asked.replicas) >= asked.replicas
    message = cap.message if is_of_amount and cap is not None else said.message
    resource = cap.resource if is_of_amount and cap is not None else None
    why = message or "its plugins admit no more"
    return Reason(ReasonCode.POOL, f"pool {asked.name}: {why}", resource, said.retry_after_s)


def of_pod(said: PodAdmission, pod: Mapping[str, Any], pool: str) -> Reason | None:
    """The meaning of `pre_create_pod` for the pod; None if it admits the pod as that is.

    A pod that a hook changed is refused: it exists already, so what was admitted is not what would run.
    """
    if said.error is not None:
        return _refused(pool, said.error)
    if said.pod is not None and said.pod != pod:
        return failed(pool, f"`pre_create_pod` {_CHANGED_POD}", None)
    return None


def failed(pool: str, message: str, retry_after_s: float | None = FAILED_RETRY_S) -> Reason:
    """Why a pod is not placed whose pool could not be asked."""
    return Reason(ReasonCode.POOL_FAILED, f"pool {pool}: {message}", retry_after_s=retry_after_s)


def _refused(pool: str, error: AppError) -> Reason:
    code = _CODES.get(kind_from_app_error(error), ReasonCode.POOL_FAILED)
    wait_s = detail_of(error).retry_after_s
    if code is ReasonCode.POOL_FAILED and wait_s is None:
        wait_s = FAILED_RETRY_S
    return Reason(code, f"pool {pool}: {message_of(error)}", retry_after_s=wait_s)

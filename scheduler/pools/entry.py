"""Pools as people write them: in the cluster file, in the bodies of `/v1/pools`; and as they are shown."""

import re
from dataclasses import replace
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from hosting.amounts import PositiveResources
from hosting.settings import Settings
from scheduler.pools.core import validation
from scheduler.pools.core.values import Pool, PoolLimits

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError("must be 1 to 63 lower-case letters, digits, - and ., such as ci-runners")
    return value


def _matching(pattern: re.Pattern[str]) -> WithJsonSchema:
    """The OpenAPI document's word on a text that matches as a whole."""
    return WithJsonSchema({"type": "string", "pattern": f"^({pattern.pattern})$"})


PoolName = Annotated[str, AfterValidator(_name), _matching(_NAME)]
_Key = Annotated[str, AfterValidator(validation.key), _matching(validation.KEY)]
_Label = Annotated[str, AfterValidator(validation.label), _matching(validation.LABEL)]
_Annotation = Annotated[
    str,
    AfterValidator(validation.annotation),
    WithJsonSchema({"type": "string", "maxLength": validation.MAX_ANNOTATION}),
]
_TEXTS: Final = Field(max_length=validation.MAX_TEXTS, json_schema_extra={"additionalProperties": False})
Labels = Annotated[dict[_Key, _Label], _TEXTS]
"""Labels as Kubernetes allows them."""
_Annotations = Annotated[dict[_Key, _Annotation], _TEXTS]


class LimitsEntry(Settings):
    """The pool's own limits in its compute units; what is left out is no limit. `maxUnits` 0 freezes the pool, `minUnits`
    are kept for it."""

    max_units: Annotated[int, Field(ge=0, le=validation.MAX_UNITS)] | None = None
    """So many units the VMs of the pool may hold together; 0 freezes the pool."""
    max_units_per_vm: Annotated[int, Field(ge=1, le=validation.MAX_UNITS)] | None = None
    """So many units one VM of the pool may hold."""
    min_units: Annotated[int, Field(ge=0, le=validation.MAX_UNITS)] = 0
    """So many units are kept for the pool by plugins that know quotas."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_units is not None and self.min_units > self.max_units:
            raise ValueError(f"minUnits ({self.min_units}) must not exceed maxUnits ({self.max_units})")
        return self


class PoolEntry(Settings):
    """A pool as it is wanted."""

    name: PoolName
    """The pool's name, which VMs name by the label `parley.dev/pool`."""
    compute_unit: PositiveResources
    """The unit in which the pool counts."""
    limits: LimitsEntry = LimitsEntry()
    labels: Labels = Field(default_factory=dict)
    """Labels that plugins read, such as the tenant's."""
    annotations: _Annotations = Field(default_factory=dict)
    """Annotations that plugins read."""
    finalizers: Annotated[list[_Key], Field(max_length=validation.MAX_TEXTS)] = Field(default_factory=list)
    """Who must be done with the pool before it is gone."""

    def pool(self) -> Pool:
        """The pool as hooks see it."""
        limits = PoolLimits(self.limits.max_units, self.limits.max_units_per_vm, self.limits.min_units)
        finalizers = tuple(dict.fromkeys(self.finalizers))
        return Pool(self.name, self.compute_unit, limits, self.labels, self.annotations, finalizers)


class WrittenPool(PoolEntry):
    """A pool in the body of a request. With a `generation` it is only written where that is still the latest one.

    A reply may be sent back: `uid`, `deleting` and `status` are read over.
    """

    generation: Annotated[int, Field(ge=0)] = 0
    uid: str = ""
    deleting: bool = False
    status: dict[str, Any] = Field(default_factory=dict)

    def pool_as_expected(self) -> Pool:
        """The pool with the generation that it is to replace; 0 for any."""
        return replace(self.pool(), generation=self.generation)


def shown(pool: Pool) -> dict[str, Any]:
    """A pool as `WrittenPool` reads it, without its status."""
    return {
        "name": pool.name,
        "uid": pool.uid,
        "generation": pool.generation,
        "computeUnit": pool.compute_unit.written(),
        "limits": _limits(pool.limits),
        "labels": dict(pool.labels),
        "annotations": dict(pool.annotations),
        "finalizers": list(pool.finalizers),
        "deleting": pool.is_deleting,
    }


def _limits(limits: PoolLimits) -> dict[str, int]:
    units = {"maxUnits": limits.max_units, "maxUnitsPerVm": limits.max_units_per_vm}
    found = {name: limit for name, limit in units.items() if limit is not None}
    return {**found, "minUnits": limits.min_units} if limits.min_units else found

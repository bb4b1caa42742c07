"""What plugins may ask of the operator's world, as ports with no-op defaults: quotas and the catalogue of instance types.

Source: seed 000, `providerset.Set` and its two providers. A plugin never tests for a missing provider: what is not
configured is the no-op one, which says that it is not enabled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from protocol.values import Resources
from scheduler.pools.core.errors import not_found


@dataclass(frozen=True, slots=True)
class Quota:
    """A quota of a user or team in compute units; None is no limit."""

    name: str
    limit_units: int | None
    used_units: int = 0


class QuotaProvider(Protocol):
    """Knows the quotas of users and teams."""

    @property
    def enabled(self) -> bool:
        """Whether the provider knows anything."""

    async def list_for_user(self, user: str, team: str) -> Sequence[Quota]:
        """The quotas that hold for a user in a team."""

    def derive_short_name(self, url: str) -> str:
        """A short name for a quota's address; empty where there is none."""


@dataclass(frozen=True, slots=True)
class InstanceType:
    """One entry of the catalogue: what one multiple of it is, and how many multiples there may be."""

    name: str
    unit: Resources
    max_multiplier: int


class InstanceTypeProvider(Protocol):
    """The catalogue of instance types: one type is one compute unit, the multiplier how many of them."""

    @property
    def enabled(self) -> bool:
        """Whether there is a catalogue."""

    def get(self, name: str) -> InstanceType | None:
        """One type."""

    def list(self) -> Sequence[InstanceType]:
        """All types."""

    def resolve(self, name: str, multiplier: int) -> Resources:
        """What so many multiples of a type are.

        Raises `AppError`: 404 for an unknown name, 400 for a multiplier below 1 or above the type's own maximum.
        """

    def resolve_by_resources(self, request: Resources) -> tuple[InstanceType, int] | None:
        """The type of which `request` is a whole multiple, the largest such type first; None where there is none."""

    def derive_scaling_group_name(self, request: Resources) -> str:
        """A name such as `2c8Gi` for machines of that size."""


class NoQuota:
    """Knows no quota."""

    enabled = False

    async def list_for_user(self, user: str, team: str) -> Sequence[Quota]:
        del user, team
        return ()

    def derive_short_name(self, url: str) -> str:
        del url
        return ""


class NoInstanceTypes:
    """No catalogue."""

    enabled = False

    def get(self, name: str) -> InstanceType | None:
        del name
        return None

    def list(self) -> Sequence[InstanceType]:
        return ()

    def resolve(self, name: str, multiplier: int) -> Resources:
        """Raises `AppError` (404)."""
        del multiplier
        raise not_found(f"there is no catalogue of instance types, so there is no type {name!r}")

    def resolve_by_resources(self, request: Resources) -> tuple[InstanceType, int] | None:
        del request
        return None

    def derive_scaling_group_name(self, request: Resources) -> str:
        """Always `default`."""
        del request
        return "default"


@dataclass(frozen=True, slots=True)
class Providers:
    """What every factory gets: a provider in every place."""

    quota: QuotaProvider = field(default_factory=NoQuota)
    instance_type: InstanceTypeProvider = field(default_factory=NoInstanceTypes)


@dataclass(frozen=True, slots=True)
class ProviderSet:
    """The providers as they are configured; None stands for one that is not. Source: seed 000, `providerset.Set`."""

    quota: QuotaProvider | None = None
    instance_type: InstanceTypeProvider | None = None

    def normalized(self) -> Providers:
        return Providers(
            self.quota if self.quota is not None else NoQuota(),
            self.instance_type if self.instance_type is not None else NoInstanceTypes(),
        )


ProviderFactory: TypeAlias = Callable[[Any], Any]
"""Makes a provider from its args. Raises `ValueError` for args that it cannot use."""

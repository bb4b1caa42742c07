"""Every protocol version, what it changed, and which capability it brings.

This is the only module that compares version numbers; everything else asks for a capability. VERSIONING.md shows
these tables and a test holds the two together. Sources: seed 004 for v1.0 and v1.1; the integers of later published
versions keep their published meaning.
"""

import enum
from dataclasses import dataclass, replace
from typing import Final, Generic, Self, TypeVar

UINT32_MAX: Final = 2**32 - 1


class _ProtoVersion(enum.IntEnum):
    """A version number as it travels. Any uint32 may arrive: an unknown one becomes a member without a table row."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= UINT32_MAX:
            return None
        member = int.__new__(cls, value)
        member._name_ = f"UNKNOWN_{value}"
        member._value_ = value
        return member

    def is_valid(self) -> bool:
        """Whether the number may name a version at all; zero may not. Source: seed 004, IsValid."""
        return self.value != 0

    def __str__(self) -> str:
        """`v1.1` for a known version, `<unknown = v5.0 + 2>` for a later one, `<invalid: zero>` for 0."""
        if self.value == 0:
            return "<invalid: zero>"
        known = type(self).__members__
        if self.name in known:
            return "v" + self.name.removeprefix("V").replace("_", ".")
        last = max(known.values())
        return f"<unknown = {last} + {self.value - last.value}>"


class PluginProtoVersion(_ProtoVersion):
    """One version of the agent ↔ scheduler protocol. Source: seed 004."""

    V1_0 = 1
    """Initial version: the version field is checked."""
    V1_1 = 2
    """`metrics` may be null."""
    V2_0 = 3
    """Fractional CPU in `vCPUs`."""
    V2_1 = 4
    """Adds `lastPermit`."""
    V3_0 = 5
    """The scheduler no longer sends `resourceUnit`."""
    V4_0 = 6
    """Memory in bytes; the agent sends `computeUnit`."""
    V5_0 = 7
    """Metrics lose `loadAvg5M` and `memoryUsageBytes`."""

    def allows_nil_metrics(self) -> bool:
        """Whether `metrics` may be null: v1.1 and later. Source: seed 004, AllowsNilMetrics."""
        return self >= PluginProtoVersion.V1_1


class InformantProtoVersion(_ProtoVersion):
    """One version of the agent ↔ informant protocol. Source: seed 004."""

    V1_0 = 1
    """Initial version."""
    V1_1 = 2
    """The agent serves `/try-upscale`."""
    V1_2 = 3
    """The informant serves `/health-check`."""
    V2_0 = 4
    """`/downscale` and `/upscale` carry the agent's ID and a sequence number."""

    def has_try_upscale(self) -> bool:
        """Whether the agent serves `/try-upscale`: v1.1 and later. Source: seed 004, HasTryUpscale."""
        return self >= InformantProtoVersion.V1_1


V = TypeVar("V", PluginProtoVersion, InformantProtoVersion)


@dataclass(frozen=True, slots=True)
class VersionRange(Generic[V]):
    """All versions v with `min` <= v <= `max`, bounds included. Source: seed 004."""

    min: V
    max: V

    def latest_shared(self, other: "VersionRange[V]") -> V | None:
        """The latest version in both ranges, or None when they share none or one of them is inverted.

        Source: seed 004, LatestSharedVersion.
        """
        if self.min > self.max or other.min > other.max:
            return None
        low, high = max(self.min, other.min), min(self.max, other.max)
        return high if low <= high else None

    def __contains__(self, version: V) -> bool:
        return self.min <= version <= self.max

    def __str__(self) -> str:
        """`v1.1`, or `v1.0 to v1.1` if the bounds differ."""
        return str(self.min) if self.min == self.max else f"{self.min} to {self.max}"


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One line of the version tables: what the version changed and which of our programs speak it."""

    version: PluginProtoVersion | InformantProtoVersion
    change: str
    capability: str
    spoken: bool


PLUGIN_SPOKEN: Final = VersionRange(PluginProtoVersion.V1_0, PluginProtoVersion.V1_1)
INFORMANT_SPOKEN: Final = VersionRange(InformantProtoVersion.V1_0, InformantProtoVersion.V1_1)

PLUGIN_TABLE: Final = (
    VersionRow(PluginProtoVersion.V1_0, "initial version", "-", spoken=True),
    VersionRow(PluginProtoVersion.V1_1, "`metrics` may be null", "`allows_nil_metrics`", spoken=True),
    VersionRow(PluginProtoVersion.V2_0, "fractional CPU in `vCPUs`", "-", spoken=False),
    VersionRow(PluginProtoVersion.V2_1, "adds `lastPermit`", "-", spoken=False),
    VersionRow(PluginProtoVersion.V3_0, "no `resourceUnit` in the reply", "-", spoken=False),
    VersionRow(PluginProtoVersion.V4_0, "memory in bytes, `computeUnit` in the request", "-", spoken=False),
    VersionRow(PluginProtoVersion.V5_0, "metrics lose `loadAvg5M`", "-", spoken=False),
)
INFORMANT_TABLE: Final = (
    VersionRow(InformantProtoVersion.V1_0, "initial version", "-", spoken=True),
    VersionRow(
        InformantProtoVersion.V1_1, "the agent serves `/try-upscale`", "`has_try_upscale`", spoken=True
    ),
    VersionRow(InformantProtoVersion.V1_2, "the informant serves `/health-check`", "-", spoken=False),
    VersionRow(
        InformantProtoVersion.V2_0, "`/downscale`, `/upscale` with ID and sequence number", "-", spoken=False
    ),
)


PluginRange = VersionRange[PluginProtoVersion]


@dataclass(frozen=True, slots=True)
class Negotiation:
    """Our knowledge of one scheduler instance.

    `version` is the one to speak, None when none is shared; `succeeded` says that a request of that version was
    answered; `exhausted` says that a plain 400 came at the lowest version.
    """

    version: PluginProtoVersion | None = PLUGIN_SPOKEN.max
    succeeded: bool = False
    exhausted: bool = False

    def on_success(self) -> "Negotiation":
        """A request was answered with 200."""
        return replace(self, succeeded=True, exhausted=False)

    def on_supported(self, theirs: PluginRange, ours: PluginRange = PLUGIN_SPOKEN) -> "Negotiation":
        """A 400 named the versions that the scheduler speaks."""
        return Negotiation(ours.latest_shared(theirs), succeeded=False)

    def on_plain_refusal(self, ours: PluginRange = PLUGIN_SPOKEN) -> "Negotiation":
        """A 400 without a word on versions: one step down before the first success, otherwise just a refusal."""
        if self.succeeded or self.version is None:
            return self
        if self.version > ours.min:
            return replace(self, version=PluginProtoVersion(self.version - 1))
        return Negotiation(ours.max, exhausted=True)

"""Which version an agent speaks to a scheduler: a pure table, one state per scheduler instance.

The agent starts at the highest version that both sides may share. A JSON 400 names the versions that the scheduler
speaks and the agent moves to the latest shared one; a plain-text 400 lowers the version by one step, and only before
the first success. No shared version is a reported, retried condition.
"""

from dataclasses import dataclass, replace

from protocol.versions import PLUGIN_SPOKEN, PluginProtoVersion, VersionRange

PluginRange = VersionRange[PluginProtoVersion]


@dataclass(frozen=True, slots=True)
class Negotiation:
    """What is known of one scheduler instance.

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

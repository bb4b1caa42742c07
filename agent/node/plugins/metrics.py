"""The published metric of the plugin manager."""

from agent.node.plugins.core.worlds import Worlds, total_plugins
from hosting.metrics import Family
from protocol.texts import clean


def plugins_families(worlds: Worlds) -> tuple[Family, ...]:
    """The gauge `plugin_manager_total_plugins`, with a sample for each socket in each world; nothing where there is none."""
    found = {(clean(path), state): float(count) for (path, state), count in total_plugins(worlds).items()}
    samples = tuple(found.items())
    if not samples:
        return ()
    labels = ("socket_path", "state")
    text = "[ALPHA] Number of plugins in Plugin Manager"
    return (Family("gauge", "plugin_manager_total_plugins", text, labels, samples),)

"""The names that authors of node plugins import, and nothing else (docs/guides/plugins.md). They are those in `node_plugins.pyi`."""

from parley.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__, globals())

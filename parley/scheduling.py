"""The names that authors of scheduling plugins import, and nothing else (docs/guides/scheduling-plugins.md). See `scheduling.pyi`."""

from parley.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__, globals())

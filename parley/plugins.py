"""The names that authors of pool plugins import, and nothing else (docs/guides/pools.md). They are those in `plugins.pyi`."""

from parley.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__, __file__, globals())

"""What plugin authors import, and nothing else. Each name is loaded when it is first used (docs/plugins.md)."""

import importlib
from typing import Any

_HOMES = {
    "scheduler.pool.errors": (
        "AppError Detail PluginErrorKind Scope api_key_required bad_request conflict forbidden internal "
        "kind_from_app_error new_insufficient_resources new_internal new_invalid_spec not_found service_unavailable "
        "too_many_requests unauthorized"
    ),
    "scheduler.pool.manager": "PluginManager PluginStartError new_plugin_manager",
    "scheduler.pool.plugin": "Args BasePlugin Cache Client Factory Handle Plugin",
    "scheduler.pool.probe": "ProbeResult ProbeResultKind",
    "scheduler.pool.probing": "probe_accepted_replicas",
    "scheduler.pool.providers": (
        "InstanceType InstanceTypeProvider NoInstanceTypes NoQuota ProviderSet Providers Quota QuotaProvider"
    ),
    "scheduler.pool.registry": "PluginRegistry Registry RegistryError build get register",
    "scheduler.pool.values": (
        "Admission Context Member PodAdmission PodManifest Pods Pool PoolLimits Purpose VmRequest"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [  # noqa: PLE0604 - the names of the table above
    *_HOME_OF
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted(_HOME_OF)

"""What plugin authors import, and nothing else. Each name is loaded when it is first used (docs/plugins.md)."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.values import Resources
    from protocol.wire import PodName
    from scheduler.pools.chain.manager import PluginManager, PluginStartError, new_plugin_manager
    from scheduler.pools.chain.plugin import (
        Args,
        BasePlugin,
        Cache,
        Client,
        Factory,
        FrameworkHandle,
        Handle,
        Plugin,
    )
    from scheduler.pools.chain.probing import probe_accepted_replicas
    from scheduler.pools.chain.registry import PluginRegistry, Registry, RegistryError, build, get, register
    from scheduler.pools.core.errors import (
        AppError,
        Detail,
        PluginErrorKind,
        Scope,
        api_key_required,
        bad_request,
        conflict,
        forbidden,
        internal,
        kind_from_app_error,
        new_insufficient_resources,
        new_internal,
        new_invalid_spec,
        not_found,
        service_unavailable,
        too_many_requests,
        unauthorized,
    )
    from scheduler.pools.core.probe import ProbeResult, ProbeResultKind
    from scheduler.pools.core.providers import (
        InstanceType,
        InstanceTypeProvider,
        NoInstanceTypes,
        NoQuota,
        Providers,
        ProviderSet,
        Quota,
        QuotaProvider,
    )
    from scheduler.pools.core.values import (
        Admission,
        Context,
        Member,
        PodAdmission,
        PodManifest,
        Pods,
        Pool,
        PoolLimits,
        ProbeEnd,
        Purpose,
        VmRequest,
    )

_HOMES = {
    "protocol.values": "Resources",
    "protocol.wire": "PodName",
    "scheduler.pools.core.errors": (
        "AppError Detail PluginErrorKind Scope api_key_required bad_request conflict forbidden internal "
        "kind_from_app_error new_insufficient_resources new_internal new_invalid_spec not_found service_unavailable "
        "too_many_requests unauthorized"
    ),
    "scheduler.pools.chain.manager": "PluginManager PluginStartError new_plugin_manager",
    "scheduler.pools.chain.plugin": "Args BasePlugin Cache Client Factory FrameworkHandle Handle Plugin",
    "scheduler.pools.core.probe": "ProbeResult ProbeResultKind",
    "scheduler.pools.chain.probing": "probe_accepted_replicas",
    "scheduler.pools.core.providers": (
        "InstanceType InstanceTypeProvider NoInstanceTypes NoQuota ProviderSet Providers Quota QuotaProvider"
    ),
    "scheduler.pools.chain.registry": "PluginRegistry Registry RegistryError build get register",
    "scheduler.pools.core.values": (
        "Admission Context Member PodAdmission PodManifest Pods Pool PoolLimits ProbeEnd Purpose VmRequest"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

# Written out, because type checkers read no other.
__all__ = [
    "Admission",
    "AppError",
    "Args",
    "BasePlugin",
    "Cache",
    "Client",
    "Context",
    "Detail",
    "Factory",
    "FrameworkHandle",
    "Handle",
    "InstanceType",
    "InstanceTypeProvider",
    "Member",
    "NoInstanceTypes",
    "NoQuota",
    "Plugin",
    "PluginErrorKind",
    "PluginManager",
    "PluginRegistry",
    "PluginStartError",
    "PodAdmission",
    "PodManifest",
    "PodName",
    "Pods",
    "Pool",
    "PoolLimits",
    "ProbeEnd",
    "ProbeResult",
    "ProbeResultKind",
    "ProviderSet",
    "Providers",
    "Purpose",
    "Quota",
    "QuotaProvider",
    "Registry",
    "RegistryError",
    "Resources",
    "Scope",
    "VmRequest",
    "api_key_required",
    "bad_request",
    "build",
    "conflict",
    "forbidden",
    "get",
    "internal",
    "kind_from_app_error",
    "new_insufficient_resources",
    "new_internal",
    "new_invalid_spec",
    "new_plugin_manager",
    "not_found",
    "probe_accepted_replicas",
    "register",
    "service_unavailable",
    "too_many_requests",
    "unauthorized",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted(_HOME_OF)

"""Decoders of Kubernetes' objects, as the API server hands them on, and of the annotations that their owners write.

The API server vouches for metadata (a name, a UID and a version that are texts; labels and annotations from text to text), and, for types of its own,
for the kinds of all fields. Spec and status are objects. It vouches for nothing in the specs of others' custom resources, and for no annotation's content.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from agent.daemon import annotations as of_agent
from agent.daemon.kubernetes import ready_urls
from agent.daemon.policies import standard
from agent.node.plugins.device_plugin import asked_for
from agent.node.qos.core.cpu_burst import BurstRule, rule_of
from agent.node.qos.pods import marks_of, node_state, pod_state
from agent.sources import described
from hosting.kubernetes import annotations, devices, koordinator, names
from hosting.kubernetes.core.known import KnownObjects, ManifestError, version_of
from hosting.kubernetes.errors import KubernetesError
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.scaling import ScalingPolicy
from hosting.kubernetes.virtual_machines import UnreadableVmError, VirtualMachine
from hosting.settings import FaultsError
from protocol.quantities import QuantityError
from protocol.values import Bounds, Resources
from protocol.wire import PodName
from scheduler.clusters.kubernetes import placeholders, pools, published_reservations, reading, reservations
from scheduler.placing.core.objects import PodInfo
from scheduler.placing.plugins import (
    node_resources,
    scheduling_hint,
)
from scheduler.placing.plugins import (
    published_reservations as published,
)
from scheduler.placing.plugins.coscheduling import core as gangs
from scheduler.placing.plugins.device_share import allocation
from scheduler.placing.plugins.device_share import core as shared_devices
from scheduler.placing.plugins.elastic_quota.reading import quota_of
from scheduler.placing.plugins.load_aware import reading as loads
from scheduler.placing.plugins.load_aware.args import LoadAwareSchedulingArgs
from scheduler.placing.plugins.node_numa_resource import pod_notes, topology
from tests.security.decoders import Decoder, as_json
from tests.unit.scheduler_clusters import kube_manifests as kube

CU: Final = Resources(1000, 2**30)
ROOM: Final = CU * 16
NOW: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)

# ------------------------------------------------------------ what the API server vouches for


def _texts(found: object) -> dict[str, str]:
    if not isinstance(found, dict):
        return {}
    return {key: text for key, text in found.items() if isinstance(text, str)}


def as_manifest(body: bytes) -> dict[str, Any]:
    """An object with sound metadata, and everything else as it is in `body`; without anything else for a body that is no object."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = {}
    found = found if isinstance(found, dict) else {}
    metadata = found.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    sound = {
        "name": "a",
        "namespace": "default",
        "uid": "u",
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-31T00:00:00Z",
        "labels": _texts(metadata.get("labels")),
        "annotations": _texts(metadata.get("annotations")),
    }
    objects: dict[str, Any] = {key: {} for key in ("spec", "status") if not isinstance(found.get(key), dict)}
    return {**found, **objects, "metadata": sound}


def of_object(read: Callable[[dict[str, Any]], object]) -> Callable[[bytes], object]:
    return lambda body: read(as_manifest(body))


def of_annotations(
    read: Callable[[dict[str, Any]], object], good: dict[str, Any] | None = None
) -> Callable[[bytes], object]:
    """A decoder of a good pod whose annotations and labels are the members of `body`."""

    def decode(body: bytes) -> object:
        try:
            found = _texts(json.loads(body))
        except (ValueError, RecursionError):
            found = {"": "x"}
        base = good or kube.pod(scaled=True)
        metadata = base["metadata"]
        return read(
            {
                **base,
                "metadata": {
                    **metadata,
                    "annotations": {**metadata["annotations"], **found},
                    "labels": {**metadata["labels"], **found},
                },
            }
        )

    return decode


# ------------------------------------------------------------ good examples

SIZES: Final = json.dumps({"min": {"cpu": "500m", "memory": "1Gi"}, "max": {"cpu": 4, "memory": "8Gi"}})
OURS: Final = {
    names.ENABLED: "true",
    names.BOUNDS: SIZES,
    names.UNIT: json.dumps({"cpu": "250m", "memory": "256Mi"}),
    names.SHARES: json.dumps({"main": {"cpu": 1, "memory": 1}}),
    names.CONFIG: json.dumps(
        {
            "policies": ["utilisation", {"load-average": {"target": 0.9}}],
            "windows": [{"cron": "0 8 * * 1-5", "for": "2h", "timeZone": "Europe/Berlin", "min": {"cpu": 2}}],
            "tied": True,
        }
    ),
    names.INFORMANT: "10301",
    names.METRICS_PLUGIN: "a",
    names.YIELD: "slack",
    names.EVICT: "true",
    names.RESTART: "allowed",
    names.EVICTION_PRIORITY: "-4",
    names.SUB_PRIORITY: "7",
    names.EVICTION_ENABLED: "true",
    names.EVICTION_POLICY: json.dumps(["MemoryEvict"]),
    names.NEON_BOUNDS: json.dumps({"min": {"cpu": 1, "mem": "1Gi"}, "max": {"cpu": "2", "mem": "2Gi"}}),
    names.NEON_CONFIG: json.dumps({"loadAverageFractionTarget": 0.9, "memoryUsageFractionTarget": 0.75}),
}
CPUS_TOLD: Final = {
    koordinator.RESOURCE_STATUS: json.dumps(
        {"cpuset": "0-3", "numaNodeResources": [{"node": 0, "resources": {"cpu": "4", "memory": "1Gi"}}]}
    ),
    pod_notes.RESOURCE_SPEC: json.dumps(
        {"requiredCPUBindPolicy": "FullPCPUs", "preferredCPUExclusivePolicy": "NUMANodeLevel"}
    ),
    pod_notes.NUMA_TOPOLOGY_SPEC: json.dumps({"numaTopologyPolicy": "SingleNUMANode"}),
    koordinator.QOS: "LSR",
    koordinator.PRIORITY_CLASS: "koord-prod",
}
GRANTS: Final = {
    "gpu": [
        {
            "minor": 0,
            "resources": {"koordinator.sh/gpu-core": "100"},
            "id": "g",
            "extension": {"vfs": [{"busID": "1"}]},
        }
    ]
}
GANG: Final = {
    f"{gangs.GANG}name": "g",
    f"{gangs.GANG}min-available": "3",
    f"{gangs.GANG}waiting-time": "30s",
    f"{gangs.GANG}groups": json.dumps(["default/g", "default/h"]),
    f"{gangs.GANG}mode": "Strict",
}
TOPOLOGY: Final = {
    "metadata": {
        "annotations": {
            koordinator.CPU_TOPOLOGY: json.dumps(
                {
                    "detail": [
                        {"id": 0, "core": 0, "socket": 0, "node": 0},
                        {"id": 1, "core": 1, "socket": 0, "node": 0},
                    ]
                }
            ),
            koordinator.POD_CPU_ALLOCS: json.dumps(
                [{"namespace": "d", "name": "a", "cpuset": "1", "managedByKubelet": True}]
            ),
            topology.KUBELET_POLICY: json.dumps(
                {"policy": "static", "reservedCPUs": "0", "options": {"full-pcpus-only": "true"}}
            ),
            topology.SYSTEM_QOS: json.dumps({"cpuset": "0"}),
        }
    },
    "zones": [{"name": "node-0", "type": "Node", "resources": [{"name": "cpu", "allocatable": "2"}]}],
    "topologyPolicies": ["SingleNUMANodePodLevel"],
}
NODE_NOTES: Final = {
    topology.AMPLIFICATION: json.dumps({"cpu": 1.5}),
    topology.NODE_RESERVATION: json.dumps({"reservedCPUs": "0-1"}),
    loads.USAGE_THRESHOLDS: json.dumps({"usageThresholds": {"cpu": 65}, "prodUsageThresholds": {"cpu": 55}}),
    loads.RAW_ALLOCATABLE: json.dumps({"cpu": "4"}),
}
NODE_METRIC: Final = {
    "spec": {"metricCollectPolicy": {"reportIntervalSeconds": 60}},
    "status": {
        "updateTime": "2026-01-31T12:00:00Z",
        "nodeMetric": {
            "nodeUsage": {"resources": {"cpu": "1", "memory": "1Gi"}},
            "aggregatedNodeUsages": [{"duration": "5m", "usage": {"p95": {"resources": {"cpu": "1"}}}}],
        },
        "podsMetric": [
            {
                "name": "a",
                "namespace": "d",
                "podUsage": {"resources": {"cpu": "1"}},
                "extensions": {names.HELD: {"cpu": "1"}},
            }
        ],
    },
}
DEVICE: Final = {
    "metadata": {"annotations": {allocation.PARTITIONS: json.dumps({"2": [{"minors": [0, 1], "gpuLinkType": "NVLink", "allocationScore": 1, "ringBusBandwidth": "400Gi"}]})}},
    "spec": {
        "devices": [
            {
                "type": "gpu", "minor": 0, "id": "g", "health": True, "resources": {"koordinator.sh/gpu-core": "100"},
                "topology": {"nodeID": 0, "pcieID": "p", "socketID": 0, "busID": "b"},
                "vfGroups": [{"labels": {"a": "b"}, "vfs": [{"minor": 0, "busID": "c"}]}],
            }
        ]
    },
}  # fmt: skip
QUOTA: Final = {
    "metadata": {
        "annotations": {
            "quota.scheduling.koordinator.sh/shared-weight": json.dumps({"cpu": "4"}),
            "quota.scheduling.koordinator.sh/namespaces": json.dumps(["d"]),
        }
    },
    "spec": {"min": {"cpu": "1", "memory": "1Gi"}, "max": {"cpu": "4", "memory": "4Gi"}},
}
TEMPLATE: Final = {
    "metadata": {},
    "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]},
}
RESERVATION: Final = {
    "spec": {
        "template": TEMPLATE,
        "ttl": "1h",
        "expires": "2026-02-01T00:00:00Z",
        "owners": [{"labelSelector": {"matchLabels": {"a": "b"}}}],
        "allocatePolicy": "Aligned",
    },
    "status": {"phase": "Available", "nodeName": "n1"},
}
OURS_RESERVED: Final = {
    "spec": {
        "nodeName": "n1",
        "resources": {"cpu": 1, "memory": "1Gi"},
        "owners": [{"labelSelector": {"matchLabels": {"a": "b"}}}],
        "ttlSeconds": 60,
    }
}
POOL: Final = {
    "spec": {"computeUnit": {"cpu": 1, "memory": "1Gi"}, "limits": {"maxUnits": 8, "maxUnitsPerVm": 4}}
}
POLICY: Final = {
    "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "bounds": json.loads(SIZES),
        "unit": {"cpu": 1},
        "policies": ["utilisation"],
        "enabled": True,
    }
}
SLICE: Final = {"endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]}
SIZE_OF_ITS_POD: Final = kube.pod(scaled=True, annotations={names.BOUNDS: SIZES})

# ------------------------------------------------------------ how they are read


def _event(line: bytes) -> object:
    reflector: Any = Reflector.__new__(Reflector)
    reflector.known, reflector._listeners, reflector._clock = KnownObjects(), [], lambda: 0.0
    reflector.health = type("Health", (), {"contact_s": 0.0, "events_total": 0})()
    reflector._tidy = lambda _: None
    return reflector._event(line)


REGISTRY: Final = standard((), has_plugins=True)
DEFAULTS: Final = of_agent.VmDefaults(Bounds(CU, ROOM), 2**30, CU, ())
FACTS: Final = described.NodeFacts(ROOM, "http://h:1/", (), lambda _, __: {}, of_agent.checks(REGISTRY, ()))


def _info(pod: dict[str, Any]) -> PodInfo:
    return PodInfo(PodName("a", "d"), str(id(pod)), CU, labels=pod["metadata"]["labels"], manifest=pod)


def _scaled_by(policy: dict[str, Any]) -> object:
    pod = kube.pod(labels={"a": "b"})
    return reading.describe(pod, reading.PodContext(ROOM, (ScalingPolicy.read(policy),)))


def _neon(pod: dict[str, Any]) -> object:
    return VirtualMachine.read({**kube.machine(), "metadata": pod["metadata"]})


def _devices(pod: dict[str, Any]) -> object:
    return shared_devices.pod_devices(
        {"koordinator.sh/gpu-core": 100, "koordinator.sh/gpu-memory-ratio": 100},
        pod["metadata"]["annotations"],
    )


def _burst(pod: dict[str, Any]) -> object:
    text = pod["metadata"]["annotations"].get(names.CPU_BURST)
    try:
        return rule_of(json.loads(text), BurstRule()) if text else None
    except RecursionError:
        return None


OBJECTS: Final = (
    Decoder("version of an object", of_object(version_of), as_json({"metadata": {}})),
    Decoder(
        "version as text",
        lambda body: version_of({"metadata": {"resourceVersion": body.decode("utf-8", "replace")}}),
        (b"123",),
        (ManifestError,),
    ),
    Decoder(
        "event of a watch",
        _event,
        as_json(
            {"type": "ADDED", "object": {"metadata": {"name": "a", "uid": "u", "resourceVersion": "4"}}},
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "4"}}},
        ),
        (KubernetesError, ManifestError),
        ("hosting/kubernetes/reflector.py:Reflector._event",),
    ),
    Decoder("node", of_object(reading.node_of), as_json(kube.node()), reading.MALFORMED),
    Decoder(
        "node of a pool",
        of_object(partial(placeholders.pool_node, labels=("pool",))),
        as_json(kube.node()),
        reading.MALFORMED,
    ),
    Decoder(
        "pod to the scheduler",
        of_object(lambda pod: reading.describe(pod, reading.PodContext(ROOM))),
        as_json(SIZE_OF_ITS_POD),
        reading.MALFORMED,
    ),
    Decoder(
        "annotations of a pod to the scheduler",
        of_annotations(lambda pod: reading.describe(pod, reading.PodContext(ROOM))),
        as_json(OURS, CPUS_TOLD, {published.ALLOCATED: '{"uid":"u"}'}),
        places=(
            "hosting/kubernetes/annotations.py:mapping",
            "hosting/kubernetes/koordinator.py:cpus_told",
            "scheduler/placing/plugins/published_reservations.py:allocated_uid",
        ),
    ),
    Decoder(
        "annotations of a pod to the agent",
        of_annotations(
            lambda pod: described.describe({**pod, "status": {**pod["status"], "podIP": "10.0.0.1"}}, FACTS)
        ),
        as_json(OURS),
    ),
    Decoder(
        "annotations to a runner",
        of_annotations(lambda pod: of_agent.read(pod["metadata"]["annotations"], DEFAULTS, REGISTRY)),
        as_json(OURS),
    ),
    Decoder("annotations of a VirtualMachine", of_annotations(_neon), as_json(OURS)),
    Decoder(
        "annotations of a VirtualMachine to a runner",
        of_annotations(
            lambda pod: of_agent.read(
                pod["metadata"]["annotations"],
                of_agent.VmDefaults(Bounds(CU, ROOM), 2**30, CU, (), is_neonvm=True),
                REGISTRY,
            )
        ),
        as_json(OURS),
    ),
    Decoder(
        "misspelt annotations",
        of_annotations(annotations.misspelt),
        as_json({"parley.dev/bonds": "x", "parley.dev/enabled": "true"}),
    ),
    Decoder("VirtualMachine", of_object(VirtualMachine.read), as_json(kube.machine()), (UnreadableVmError,)),
    Decoder("ScalingPolicy", of_object(_scaled_by), as_json(POLICY), reading.MALFORMED),
    Decoder(
        "marks of a pod",
        of_annotations(lambda pod: marks_of(pod_state(pod), None)),
        as_json(OURS),
        places=("agent/node/qos/pods.py:_tasks",),
    ),
    Decoder(
        "burst of a pod",
        of_annotations(_burst),
        as_json({names.CPU_BURST: json.dumps({"policy": "auto", "cpuBurstPercent": 100})}),
        (ValueError,),
        ("agent/node/qos/strategies/cpu_burst.py:CPUBurst._pod_rule",),
    ),
    Decoder(
        "state of a node",
        of_annotations(
            node_state,
            kube.node(labels={}, annotations={})
            | {"metadata": {"name": "n1", "uid": "n1", "labels": {}, "annotations": {}}},
        ),
        as_json({}),
        (QuantityError,),
    ),
    Decoder(
        "grants of devices",
        lambda body: devices.read_grants(body.decode("utf-8", "replace")),
        as_json(GRANTS),
        places=("hosting/kubernetes/devices.py:read_grants",),
    ),
    Decoder(
        "Device",
        of_object(allocation.read_devices),
        as_json(DEVICE),
        (shared_devices.DeviceError,),
        ("scheduler/placing/plugins/device_share/allocation.py:read_devices",),
    ),
    Decoder(
        "wish for devices",
        of_annotations(_devices),
        as_json(
            {
                f"{koordinator.SCHEDULING}device-allocate-hint": json.dumps(
                    {"gpu": {"selector": {"matchLabels": {"a": "b"}}}}
                ),
                f"{koordinator.SCHEDULING}gpu-partition-spec": json.dumps(
                    {"allocatePolicy": "Restricted", "ringBusBandwidth": "4Gi"}
                ),
                f"{koordinator.SCHEDULING}device-joint-allocate": json.dumps(
                    {"deviceTypes": ["gpu", "rdma"]}
                ),
            }
        ),
        (shared_devices.DeviceError, ValueError),
        ("scheduler/placing/plugins/base.py:annotation_of",),
    ),
    Decoder(
        "amount of devices that a pod asks for",
        of_annotations(partial(asked_for, "koordinator.sh/gpu-core")),
        as_json({}),
        (ValueError,),
    ),
    Decoder(
        "gang of a pod",
        of_annotations(
            lambda pod: (gangs.gang_of(pod), gangs.described_by_pod("d/g", pod, gangs.GangDefaults()))
        ),
        as_json(GANG),
        places=("scheduler/placing/plugins/coscheduling/core.py:_group",),
    ),
    Decoder(
        "PodGroup",
        of_object(lambda each: gangs.described_by_object(each, gangs.GangDefaults())),
        as_json({"metadata": {"annotations": GANG}, "spec": {"minMember": 3, "scheduleTimeoutSeconds": 30}}),
    ),
    Decoder(
        "NodeResourceTopology",
        of_object(topology.read_topology),
        as_json(TOPOLOGY),
        places=(
            "scheduler/placing/plugins/node_numa_resource/topology.py:read_topology",
            "scheduler/placing/plugins/node_numa_resource/topology.py:document",
        ),
    ),
    Decoder("options of a node", of_annotations(topology.read_options), as_json(NODE_NOTES)),
    Decoder("NUMA wish of a pod", of_annotations(pod_notes.read_wish), as_json(CPUS_TOLD), (ValueError,)),
    Decoder("NUMA allocation of a pod", of_annotations(pod_notes.read_allocation), as_json(CPUS_TOLD)),
    Decoder(
        "classes of a pod",
        of_annotations(lambda pod: (koordinator.qos_of(pod), koordinator.priority_class_of(pod))),
        as_json(CPUS_TOLD),
    ),
    Decoder(
        "NodeMetric",
        of_object(loads.report_of),
        as_json(NODE_METRIC),
        reading.MALFORMED,
        ("scheduler/placing/plugins/load_aware/reading.py:moment",),
    ),
    Decoder(
        "thresholds of a node",
        of_annotations(lambda node: loads.node_limits(node, LoadAwareSchedulingArgs())),
        as_json(NODE_NOTES),
        places=("scheduler/placing/plugins/load_aware/reading.py:_annotation",),
    ),
    Decoder(
        "estimate of a pod",
        of_annotations(lambda pod: loads.pod_load(_info(pod), LoadAwareSchedulingArgs())),
        as_json(dict.fromkeys(loads.OWN_ESTIMATION, '{"cpu": 80}')),
    ),
    Decoder(
        "ElasticQuota",
        of_object(partial(quota_of, scales_min=True)),
        as_json(QUOTA),
        places=("scheduler/placing/plugins/elastic_quota/reading.py:quota_of.annotated",),
    ),
    Decoder(
        "Reservation",
        of_object(lambda each: reservations.reservation_of(each, NOW)),
        as_json(OURS_RESERVED),
        reading.MALFORMED,
        ("scheduler/clusters/kubernetes/reservations.py:_is_over",),
    ),
    Decoder(
        "published Reservation",
        of_object(lambda each: published_reservations.published_reservation_of(each, NOW)),
        as_json(RESERVATION),
        reading.MALFORMED,
        (
            "scheduler/clusters/kubernetes/published_reservations.py:_is_over",
            "scheduler/placing/plugins/published_reservations.py:PublishedReservationEntry.rules",
        ),
    ),
    Decoder(
        "pod of a published Reservation",
        of_object(lambda each: published_reservations.reserve_pod(each, "s", NOW)),
        as_json(RESERVATION),
        reading.MALFORMED,
    ),
    Decoder(
        "terms of a published Reservation",
        of_object(published.PublishedTerms.of),
        as_json(RESERVATION),
        (ValueError,),
    ),
    Decoder(
        "published Reservation that has ended",
        of_object(lambda each: published.is_garbage(each, NOW, 60.0)),
        as_json(
            {
                "status": {
                    "phase": "Failed",
                    "conditions": [{"type": "Ready", "lastTransitionTime": "2026-01-31T12:00:00Z"}],
                }
            }
        ),
        (TypeError, AttributeError),  # of fields that are of no kind that the schema allows
        ("scheduler/placing/plugins/published_reservations.py:is_garbage",),
    ),
    Decoder(
        "reservations that a pod wants",
        of_annotations(lambda pod: published.wanted_by(_info(pod))),
        as_json(
            {
                published.AFFINITY: json.dumps({"name": "r"}),
                published.EXACT: json.dumps({"resourceNames": ["cpu"]}),
            }
        ),
        (ValueError,),
    ),
    Decoder(
        "hint of a pod",
        of_annotations(scheduling_hint.hint_of),
        as_json({scheduling_hint.HINT: json.dumps({"nodeNames": ["n"]})}),
        (ValueError,),
    ),
    Decoder(
        "requests of a pod",
        of_object(lambda pod: node_resources.requests(_info(pod))),
        as_json(kube.pod()),
        reading.MALFORMED,
    ),
    Decoder("Pool", of_object(pools.pool_of), as_json(POOL), (FaultsError,)),
    Decoder(
        "EndpointSlice", of_object(lambda each: ready_urls([each], 1)), as_json(SLICE), reading.MALFORMED
    ),
)

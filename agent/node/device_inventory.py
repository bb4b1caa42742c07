"""The devices of a node as a file describes them: the Device object, and the part of it that is given to containers."""

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from hosting.kubernetes.devices import GPU, SHARED, TYPE_OF, VENDOR_GPUS, WHOLE, DeviceKey, DeviceType, Grants
from hosting.kubernetes.koordinator import DEVICES
from hosting.kubernetes.resources import Manifest
from hosting.settings import Settings
from protocol import quantities

Number = Annotated[int, Field(ge=0)]
AbsolutePath = Annotated[str, Field(pattern="^/")]
_OF_THE_NODE: Final[Any] = {"inject": True, "vf_groups": {"__all__": {"vfs": {"__all__": {"inject"}}}}}
"""The fields of a device that its Device object does not have."""
CDI_KIND: Final = "parley.dev/device"
MAX_TICKETS: Final = 10_000
"""The kubelet is told of amounts by a name for each unit."""


class DescribedTopology(Settings):
    """The place of a device in its node."""

    socket_id: Annotated[int, Field(alias="socketID", ge=-1)] = -1
    """The socket; -1 if it is not known."""
    node_id: Annotated[int, Field(alias="nodeID", ge=-1)] = -1
    """The NUMA node; -1 if it is not known."""
    pcie_id: Annotated[str, Field(alias="pcieID")] = ""
    """The PCIe switch."""
    bus_id: Annotated[str, Field(alias="busID")] = ""
    """The address of the device at its bus."""


class DescribedInjection(Settings):
    """A part of what a container has of its device, when the device plugin of the agent gives it."""

    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables. The values of several devices are joined by commas; `{RESOURCE}` stands for the amount that the pod has of it."""
    device_nodes: list[AbsolutePath] = Field(default_factory=list)
    """Device nodes of the host, under the same path."""
    mounts: list[AbsolutePath] = Field(default_factory=list)
    """Files and directories of the host, read-only, under the same path."""


class DescribedFunction(Settings):
    """A virtual function of a device."""

    minor: Number = 0
    """Its number."""
    bus_id: Annotated[str, Field(alias="busID", min_length=1)]
    """Its address at its bus, of which pods are told."""
    inject: DescribedInjection = Field(default_factory=DescribedInjection)


class DescribedFunctions(Settings):
    """Virtual functions that pods select by the same labels."""

    labels: dict[str, str] = Field(default_factory=dict)
    """The labels."""
    vfs: list[DescribedFunction]


class DescribedDevice(Settings):
    """A device."""

    type: Literal["gpu", "rdma", "fpga"]
    """Its kind."""
    minor: Number
    """Its number among those of its kind."""
    id: str = ""
    """Its name, of which pods are told."""
    health: bool = True
    """Whether it can be given to pods."""
    labels: dict[str, str] = Field(default_factory=dict)
    """By which pods may select it."""
    resources: dict[str, str | int]
    """As the published Device has them: 100 is the whole, memory is in bytes."""
    topology: DescribedTopology | None = None
    vf_groups: list[DescribedFunctions] = Field(default_factory=list)
    inject: DescribedInjection = Field(default_factory=DescribedInjection)

    @property
    def key(self) -> DeviceKey:
        return DeviceKey(DeviceType(self.type), self.minor)

    def amount_of(self, resource: str) -> int:
        if resource in VENDOR_GPUS:
            return 1
        if resource in {GPU, SHARED}:
            return WHOLE
        return quantities.parse(str(self.resources.get(resource, 0))).value()


class DeviceInventory(Settings):
    """The file."""

    labels: dict[str, str] = Field(default_factory=dict)
    """Those of the Device, such as the model of its GPUs."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Those of the Device, such as the partitions of its GPUs."""
    devices: list[DescribedDevice] = Field(default_factory=list)

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        seen = set[tuple[str, int]]()
        for index, each in enumerate(found.get("devices", ())):
            if (each.type, each.minor) in seen:
                yield f"devices.{index}.minor", f"{each.minor} is that of another {each.type} already"
            seen.add((each.type, each.minor))

    def object(self, node_name: str) -> Manifest:
        """The Device of that node."""
        return {
            "apiVersion": DEVICES.api_version,
            "kind": DEVICES.kind,
            "metadata": {"name": node_name, "labels": self.labels, "annotations": self.annotations},
            "spec": {
                "devices": [
                    each.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude=_OF_THE_NODE)
                    | {"health": each.health}
                    for each in self.devices
                ]
            },
        }

    def offered(self, resource: str) -> tuple[int, int]:
        """The amount of a resource of devices, over the healthy ones and over all; whole GPUs by the names of vendors.

        Raises `ValueError` for another resource, and for one that is too much to be told to the kubelet, as memory in bytes is.
        """
        type_ = TYPE_OF.get(resource)
        if type_ is None:
            raise ValueError(f"{resource} is no resource of devices")
        described = [each for each in self.devices if each.type == type_]
        healthy = sum(each.amount_of(resource) for each in described if each.health)
        amount = sum(each.amount_of(resource) for each in described)
        if amount > MAX_TICKETS:
            raise ValueError(
                f"{amount} of {resource} are more than the {MAX_TICKETS} that a device plugin offers"
            )
        return healthy, amount

    def cdi_spec(self, name: str, type_: DeviceType, grants: Grants) -> Manifest:
        """A file of the published Container Device Interface: one device `name` with all that a container has of these devices of one kind.

        `PARLEY_GPU_MINORS` (or `RDMA`, `FPGA`) is there in any case. Raises `ValueError` if a device is not described here.
        """
        known = {each.key: each for each in self.devices}
        env: dict[str, list[str]] = {}
        nodes, mounts = dict[str, None](), dict[str, None]()
        for grant in grants:
            if grant.type is not type_:
                continue
            device = known.get(grant.key)
            if device is None:
                raise ValueError(f"{type_} {grant.minor} is no device of this node")
            env.setdefault(f"PARLEY_{type_.upper()}_MINORS", []).append(str(grant.minor))
            given = (each for group in device.vf_groups for each in group.vfs if each.bus_id in grant.vfs)
            for inject in (device.inject, *(each.inject for each in given)):
                for variable, text in inject.env.items():
                    amounts = ((f"{{{name}}}", str(amount)) for name, amount in grant.resources.items())
                    filled = reduce(lambda found, each: found.replace(*each), amounts, text)
                    env.setdefault(variable, []).append(filled)
                nodes |= dict.fromkeys(inject.device_nodes)
                mounts |= dict.fromkeys(inject.mounts)
        if not env:
            raise ValueError(f"the pod was given no {type_} by a scheduler")
        edits = {
            "env": [f"{variable}={','.join(texts)}" for variable, texts in env.items()],
            "deviceNodes": [{"path": each} for each in nodes],
            "mounts": [
                {"hostPath": each, "containerPath": each, "options": ["ro", "rbind"]} for each in mounts
            ],
        }
        device_edits = {"name": name, "containerEdits": {key: each for key, each in edits.items() if each}}
        return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": [device_edits]}

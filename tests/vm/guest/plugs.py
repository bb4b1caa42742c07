"""Plugs vCPUs and memory of a guest by its control monitor, as a back end would."""

from hosting import qmp
from labs.vms.machine import MEMORY_BLOCK_BYTES
from tests.support.waiting import shown


class Plugs:
    """Devices are numbered in the order in which they are plugged."""

    def __init__(self, control: qmp.QmpConnection) -> None:
        self._control = control
        self._number = 0

    async def add_vcpu(self) -> None:
        """Plug the vCPU with the lowest number that is free."""
        slots = await self._control.execute("query-hotpluggable-cpus")
        free = min(
            (each for each in slots if "qom-path" not in each), key=lambda each: each["props"]["core-id"]
        )
        await self._control.execute(
            "device_add", {"driver": free["type"], "id": self._next("vcpu"), **free["props"]}
        )

    async def add_memory(self) -> str:
        """Plug one slot; its name."""
        name = self._next("memory")
        backend = {"qom-type": "memory-backend-ram", "id": f"{name}-backend", "size": MEMORY_BLOCK_BYTES}
        await self._control.execute("object-add", backend)
        await self._control.execute(
            "device_add", {"driver": "pc-dimm", "id": name, "memdev": f"{name}-backend"}
        )
        return name

    async def remove_memory(self, name: str) -> None:
        """Plug a slot out, and return when it has gone."""
        await self._control.execute("device_del", {"id": name})

        async def is_gone() -> bool:
            devices = await self._control.execute("query-memory-devices")
            return all(each["data"]["id"] != name for each in devices)

        async def is_free() -> bool:
            await self._control.execute("object-del", {"id": f"{name}-backend"})
            return True

        await shown(f"{name} is gone", is_gone)
        await shown(f"what was behind {name} is gone", is_free, (qmp.QmpRefusedError,))

    def _next(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._number}"

"""The option `--vms` of the demo: how many simulated VMs, or how many real guests under QEMU."""

from dataclasses import dataclass
from typing import Any, Final

import click

MOST_SIMULATED: Final = 64
DEFAULT_GUESTS: Final = 2
MOST_GUESTS: Final = 4
QEMU: Final = "qemu"


@dataclass(frozen=True, slots=True)
class QemuGuests:
    """So many guests under QEMU."""

    count: int = DEFAULT_GUESTS


class VmsOption(click.ParamType[int | QemuGuests]):
    """A number of VMs, or `qemu`, or `qemu:N`."""

    name = "N|qemu[:N]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | QemuGuests:
        """The choice. Fails with what would be right."""
        if isinstance(value, int | QemuGuests):
            return value
        word, colon, number = str(value).partition(":")
        if word != QEMU:
            return self._number(str(value), str(value), MOST_SIMULATED, "VMs", param, ctx)
        if not colon:
            return QemuGuests()
        return QemuGuests(self._number(str(value), number, MOST_GUESTS, "guests", param, ctx))

    def _number(
        self,
        value: str,
        number: str,
        most: int,
        what: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> int:
        if not (number.isascii() and number.isdecimal()):
            self.fail(
                f"{value!r} is neither a number of VMs, nor {QEMU}, nor {QEMU}:N with a number of guests",
                param,
                ctx,
            )
        if not 1 <= int(number) <= most:
            why = ": each emulated guest keeps a core busy while it boots" if what == "guests" else ""
            self.fail(f"{value!r}: 1 to {most} {what} are possible{why}", param, ctx)
        return int(number)

"""The needs of a guest's loop besides QMP: the guest itself."""

from typing import Protocol

from protocol.informant_pages import GuestMachine, MachineOrder


class GuestSilentError(Exception):
    """The guest did not answer, or not with its machine. An order may be carried out all the same. The text is for a person."""


class GuestUnableError(GuestSilentError):
    """The guest has answered that it can neither show nor do this: an order has no effect."""


class GuestPort(Protocol):
    """The machine as the guest's informant shows and switches it. Every call has a deadline."""

    async def read(self) -> GuestMachine:
        """The resources that the guest uses. Raises `GuestSilentError`."""

    async def order(self, order: MachineOrder) -> GuestMachine:
        """The resources that the guest uses after it took the order, or refused it because it takes those of a later life: the answer's
        generation tells. Raises `GuestSilentError`."""

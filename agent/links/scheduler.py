"""The link to the scheduler: an `Ask` becomes bytes, the answer becomes one event."""

import json
import random
import time

from agent.core import events
from agent.core.model import Vm
from agent.core.state import Ask
from hosting.client import Answered, Client
from protocol import codec, translate, wire
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.extension import AGENT_HEADER, ExtendedRequest, ExtendedResponse, RawRequest


def request_of(vm: Vm, ask: Ask) -> ExtendedRequest:
    """The message of an `Ask`: always the same for the same one, so that a retry sends the same bytes."""
    return ExtendedRequest(
        ask.version,
        vm.pod,
        translate.request_slots(ask.resources, vm.slot_bytes),
        ask.metrics,
        ask.life.agent_id,
        ask.life.started_at_ms,
        vm.pod_uid,
        ask.number,
        ask.seen_epoch,
        ask.instance,
        RawRequest(ask.resources, ask.claim, vm.unit),
    )


class SchedulerLink:
    """Asks one scheduler for permits."""

    def __init__(self, client: Client, url: str, deadline_s: float, rng: random.Random) -> None:
        self._client = client
        self._url = url
        self._deadline_s = deadline_s
        self._rng = rng

    async def ask(
        self, vm: Vm, ask: Ask
    ) -> events.PermitGranted | events.PermitRefused | events.PermitFailed:
        """Send a request; every outcome is an event."""
        chance = self._rng.random()
        try:
            body = codec.encode_request(request_of(vm, ask))
        except LocalProtocolError as error:
            return events.PermitFailed(ask.number, str(error), chance)
        sent_s = time.monotonic()
        outcome = await self._client.call(
            "POST",
            self._url,
            body=body,
            deadline_s=self._deadline_s,
            headers={AGENT_HEADER: str(ask.life.agent_id)},
        )
        if not isinstance(outcome, Answered):
            return events.PermitFailed(ask.number, outcome.message, chance)
        if outcome.status != 200:
            return events.PermitRefused(
                ask.number,
                outcome.status,
                codec.decode_error(outcome.body),
                _retry_after_s(outcome.headers.get("retry-after")),
                chance,
            )
        return _granted(vm, ask, outcome.body, sent_s, chance)


def _granted(
    vm: Vm, ask: Ask, body: bytes, sent_s: float, chance: float
) -> events.PermitGranted | events.PermitFailed:
    try:
        response = codec.decode(wire.PluginResponse, body)
    except RemoteProtocolError as error:
        return events.PermitFailed(ask.number, str(error)[:300], chance)
    if isinstance(response, ExtendedResponse):
        return events.PermitGranted(
            ask.number,
            response.raw.permit,
            response.raw.compute_unit,
            sent_s,
            response.reasons,
            response.sequence_number,
            response.scheduler_instance,
            response.scheduler_epoch,
            response.migrate is not None,
            chance,
        )
    permit = translate.from_slots(response.permit, vm.slot_bytes)
    asked = translate.from_slots(translate.request_slots(ask.resources, vm.slot_bytes), vm.slot_bytes)
    return events.PermitGranted(
        ask.number,
        # Such a peer saw the request rounded up, and grants it so.
        permit.min(ask.resources) if permit.fits_in(asked) else permit,
        translate.from_slots(response.compute_unit, vm.slot_bytes),
        sent_s,
        migrate=response.migrate is not None,
        chance=chance,
    )


def _retry_after_s(text: str | None) -> float | None:
    """The seconds of a Retry-After header; dates are not understood."""
    try:
        seconds = float(json.loads(text)) if text is not None else None
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return seconds if seconds is not None and 0 <= seconds < 3600 else None

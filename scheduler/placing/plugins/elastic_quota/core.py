"""What is written to the objects of quotas. No I/O."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protocol.texts import clean
from scheduler.quotas.admission import QuotaAccount
from scheduler.quotas.values import NONE, QuotaFault, QuotaShare, masked, written

VALID: Final = "Valid"
"""The condition of an object that says whether it keeps the rules between quotas."""
MAX_MESSAGE: Final = 1024


def annotations_of(share: QuotaShare, names: Sequence[str]) -> dict[str, str]:
    """The annotations of a quota's object: under `names` its runtime, request and child request."""
    told = (share.runtime, share.request, share.child_request)
    return {
        name: json.dumps(written(masked(amounts, share.spec.max)), sort_keys=True, separators=(",", ":"))
        for name, amounts in zip(names, told, strict=True)
    }


def status_of(
    account: QuotaAccount, manifest: Mapping[str, Any], faults: Sequence[QuotaFault], now: str
) -> dict[str, Any]:
    """The parts of an object's status that change: `used`, of the resources that its max names, and the condition `Valid`.

    An object that breaks no rule has the condition only if it had it before: the published definition has no conditions, so that
    none would ever be found written. `now` is a time as objects have it. The conditions of others stay.
    """
    before, name = manifest.get("status") or {}, manifest["metadata"]["name"]
    found: dict[str, Any] = {}
    used = written(masked(account.used.get(name, NONE), account.shares[name].spec.max))
    if before.get("used") != used:
        found["used"] = used
    conditions = before.get("conditions") or []
    own = next((each for each in conditions if each.get("type") == VALID), None)
    if faults or own is not None:
        text = "; ".join(fault.text for fault in faults) or "no rule between quotas is broken"
        now_own = {
            "type": VALID,
            "status": "False" if faults else "True",
            "reason": faults[0].reason if faults else "NoFault",
            "message": clean(text, MAX_MESSAGE),
        }
        if own is None or any(own.get(key) != value for key, value in now_own.items()):
            is_same = own is not None and own.get("status") == now_own["status"]
            now_own["lastTransitionTime"] = own.get("lastTransitionTime", now) if own and is_same else now
            others = [each for each in conditions if each.get("type") != VALID]
            found["conditions"] = [*others, now_own]
    return found

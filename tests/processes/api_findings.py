"""The answers that schemathesis may object to, and why they are right; loaded by schemathesis itself (api_calls.toml).

It reads of the document alone. What JSON Schema and OpenAPI cannot say is here, as narrow as it can be: everything else that it finds is a fault.
"""

import json
import re
from typing import Any, TypeAlias

import schemathesis
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.openapi.checks import RejectedPositiveData, UnsupportedMethodResponse, UseAfterFree

NOTICES_PATH = "/v1/notices"
LENGTH_OF_UUID = 36
AnyCase: TypeAlias = schemathesis.Case[Any]

BEYOND_A_SCHEMA = tuple(
    map(
        re.compile,
        (
            r"name: must be '.*', as in the path \(found '.*'\)",
            r"limits: minUnits \(\d+\) must not exceed maxUnits \(\d+\)",
            r".*: must be a whole number \(found [0-9]+\.0\)",  # a number without a fraction is written without one
            r"(Nodes, NodeNames|NodeNameToVictims, NodeNameToMetaVictims): exactly one of them must be there",
            r"computeUnit\.cpu: must be CPUs in whole milli-CPU, .* \(found [0-9.e-]+\)",  # `multipleOf` is exact for no float
        ),
    )
)
"""Rules between two fields, or of exact decimals."""
RULES_OF_REQUESTS = ("malformed", "unsupported-version", "metrics-required")


@schemathesis.hook
def map_case(context: schemathesis.HookContext, case: AnyCase) -> AnyCase:
    """Of bodies that are right by their schema, make some that are right by the rules beyond it; else no pool would ever be written. Polls for
    notices come from who knows another process, and are answered at once."""
    if case.operation.path == NOTICES_PATH:
        if case.query.get("instance") is None or len(str(case.query["instance"])) == LENGTH_OF_UUID:
            case.query["instance"] = "another"  # the process's own was learned from its answers
        return case
    body = case.body
    is_right = case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if not (is_right and case.operation.path.startswith("/v1/pools") and isinstance(body, dict)):
        return case
    name = case.path_parameters.get("name")
    if case.method == "PUT" and name in ("ci", "bank"):
        body["name"] = name
    unit = body.get("computeUnit")
    cpu = unit.get("cpu") if isinstance(unit, dict) else None
    if isinstance(unit, dict) and isinstance(cpu, float):
        unit["cpu"] = max(round(cpu, 3), 0.001)
    return case


@schemathesis.hook
def filter_failure(
    context: schemathesis.HookContext,
    failure: Failure,
    case: AnyCase,
    response: schemathesis.Response,
) -> bool:
    return not _is_meant(failure, case.operation.path, case.method, response.status_code, _content(response))


def _is_meant(failure: Failure, path: str, method: str, status: int, content: Any) -> bool:
    if path == "/":
        # The wire of published agents: their scheduler reads leniently and answers other methods with 400 (docs/reference/protocol.md). And the
        # amounts of a request have rules between them, and not every version that there is is spoken.
        is_lenient = isinstance(failure, AcceptedNegativeData) and status == 200
        is_method = isinstance(failure, UnsupportedMethodResponse) and status == 400
        is_plain = status == 400 and not content
        is_rule = isinstance(failure, RejectedPositiveData) and (
            is_plain or content.get("code") in RULES_OF_REQUESTS
        )
        return is_lenient or is_method or is_rule
    if path == "/batch":
        # Each request of a batch is answered by itself, and read as one alone.
        return isinstance(failure, AcceptedNegativeData) and isinstance(content, list)
    if isinstance(failure, RejectedPositiveData):
        faults = content.get("faults") or [""]
        return all(any(rule.fullmatch(fault) for rule in BEYOND_A_SCHEMA) for fault in faults)
    if isinstance(failure, UseAfterFree):
        # 202: finalizers hold the pool, which says so of itself.
        return method == "GET" and content.get("deleting") is True
    return False


def _content(response: schemathesis.Response) -> Any:
    try:
        return json.loads(response.content)
    except ValueError:
        return {}

"""Fuzzing of every decoder of bytes that others write: a value, or the decoder's own error; never anything else, and not for long.

`PARLEY_FUZZ_EXAMPLES` says how many inputs each decoder is given; CI gives more. Inputs that were found once are in `found/`, a file for each,
whose name begins with the decoder's, and are always tried.
"""

import ast
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.texts import clean
from tests.security.decoders import Decoder
from tests.security.decoders_of_files import FILES
from tests.security.decoders_of_messages import MESSAGES
from tests.security.decoders_of_objects import OBJECTS
from tests.security.mutations import mutated
from tests.tidy.repository import ROOT, python_files

EXAMPLES: Final = int(os.environ.get("PARLEY_FUZZ_EXAMPLES", "25"))
MOST_S: Final = 2.0
"""CPU seconds for one input of some hundred kilobytes at most: quadratic work would take longer."""
DECODERS: Final = (*MESSAGES, *OBJECTS, *FILES)
BY_NAME: Final = {each.name: each for each in DECODERS}
FOUND: Final = sorted((Path(__file__).parent / "found").glob("*.input"))


def tried(decoder: Decoder, content: bytes) -> bool:
    """Whether it was read. Fails for an error that the decoder does not document."""
    began_s = time.process_time()
    try:
        decoder.decode(content)
    except decoder.errors as error:
        clean(str(error)).encode()
        return False
    finally:
        assert time.process_time() - began_s < MOST_S, f"{decoder.name} took too long for {content[:200]!r}"
    return True


def test_no_two_decoders_have_one_name() -> None:
    assert len(BY_NAME) == len(DECODERS)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_good_example_is_read(name: str) -> None:
    decoder = BY_NAME[name]
    assert all(tried(decoder, each) for each in decoder.examples)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_an_input_that_was_found_once(path: Path) -> None:
    name = path.stem.partition("--")[0]
    for decoder in DECODERS:
        if file_name(decoder) == name:
            tried(decoder, path.read_bytes())
            return
    pytest.fail(f"no decoder is called {name}")


def file_name(decoder: Decoder) -> str:
    return "".join(each if each.isalnum() else "-" for each in decoder.name.lower())


@pytest.mark.parametrize("name", BY_NAME)
@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), noise=st.binary(max_size=60))
def test_hostile_bytes_are_a_value_or_a_refusal(name: str, seed: int, noise: bytes) -> None:
    decoder, rng = BY_NAME[name], random.Random(seed)
    tried(decoder, mutated(rng.choice(decoder.examples), rng))
    tried(decoder, noise)


# ------------------------------------------------------------ the table has every decoder

_CALLS: Final = frozenset(
    {
        *("json.loads", "json.load", "msgspec.json.decode", "msgspec.convert", "yaml.safe_load", "yaml.load"),
        *(
            "model_validate",
            "model_validate_json",
            "fromisoformat",
            "b64decode",
            "unhexlify",
            "FromString",
            "read_text",
        ),
        *("_DECODER.decode", "_decoder.decode", "_ITEMS.decode", "_earlier_decoder.decode", "decoder.decode"),
    }
)
"""The ends of the names of what decodes: a function that calls one of these decodes, and so is in a row or below."""
_OURS: Final = "content that this program has written or checked already"
_SETTINGS: Final = "the settings of whoever starts the program, checked by a model"
_KERNEL: Final = "a file of the kernel's with a word or some numbers; another row reads such"
OURS_ONLY: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            *(
                "hosting/logs.py:_json",
                "hosting/logs.py:_shown",
                "parley/lazy.py:lazy_names",
                "parley/scene.py:vms_of_another",
            ),
            *("scheduler/explain/core/records.py:limits", "scheduler/explain/core/records.py:recall"),
            *("scheduler/placing/cycle/framework.py:SchedulingFramework.run_pre_bind_plugins",),
            *("scheduler/placing/cycle/pages.py:_shown_flags", "scheduler/pools/api.py:PoolApi.shown"),
            *("informant/guest/approvals.py:Approvals._write", "parley/observer.py:Tail.lines"),
            *(
                "parley/cluster_stage.py:_running.look",
                "parley/demo.py:Demo._look",
                "parley/recent.py:Recent.ask",
            ),
            *("agent/daemon/inspecting.py:_document",),
        ),
        _OURS,
    ),
    **dict.fromkeys(
        (
            *("agent/daemon/annotations.py:faults_of_vms", "agent/daemon/settings.py:_amount_faults"),
            *(
                "agent/daemon/node_settings.py:_faults",
                "scheduler/pools/shipped/http_admission.py:checked_args",
            ),
        ),
        _SETTINGS,
    ),
    **dict.fromkeys(
        (
            *(
                "agent/node/qos/collectors.py:Collectors._add_pressure",
                "agent/node/qos/node_topology.py:read_host",
            ),
            *("hosting/cgroups/tree.py:PodGroup.has_tasks", "informant/guest/machine.py:_is_online"),
            *("informant/guest/protection.py:_may_lock", "informant/guest/protection.py:_read"),
            *("informant/guest/protection.py:resident_bytes", "hosting/signed_link.py:hardware_ms"),
        ),
        _KERNEL,
    ),
    "agent/node/plugins/sdk/services.py:PolicyService._goal": "a plugin's own process, called by the agent that it trusts",
    "hosting/kubernetes/api.py:KubernetesApi.call": "any JSON; its errors are those of the row for a watch's events",
    "parley/reach/ways.py:_own_namespace": "the kubelet's file in our own container",
}
"""Functions that decode, and why no row has them."""


def _decodes(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return any(name == each or name.endswith(f".{each}") for each in _CALLS)


def _decoding(tree: ast.AST, within: tuple[str, ...] = ()) -> Iterator[str]:
    """The qualified names of the functions that decode."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _decoding(node, (*within, node.name))
        else:
            if isinstance(node, ast.Call) and _decodes(node):
                yield ".".join(within)
            yield from _decoding(node, within)


def test_the_table_has_every_decoder() -> None:
    """A new function that decodes is given a row, or a reason."""
    there = {
        f"{name}:{function}"
        for name in python_files("protocol", "hosting", "scheduler", "agent", "informant", "parley")
        for function in _decoding(ast.parse((ROOT / name).read_text()))
    }
    covered = {place for each in DECODERS for place in each.places}
    assert there - covered - OURS_ONLY.keys() == set()
    assert OURS_ONLY.keys() - there == set()


def test_every_message_and_place_is_real() -> None:
    named = {place for each in DECODERS for place in each.places}
    for place in named:
        path, _, function = place.partition(":")
        scopes: list[ast.AST] = [ast.parse((ROOT / path).read_text())]
        for part in function.split("."):
            scopes = [
                node
                for scope in scopes
                for node in ast.walk(scope)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.name == part
            ]
        assert scopes, place

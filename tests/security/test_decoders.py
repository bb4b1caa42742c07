"""Fuzzing of every decoder of bytes that others write: a value, or the decoder's own error; never anything else, and not for long.

`PARLEY_FUZZ_EXAMPLES` says how many inputs each decoder is given; CI gives more. Inputs that were found once are in `found/`, a file for each,
whose name begins with the decoder's, and are always tried.
"""

import os
import random
import time
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

"""docs/reference/glossary.md is in order, has the words of the protocol, and no document leaves the name of a page unexplained."""

import re

from tests.tidy.repository import ROOT
from tests.tidy.test_docs_paths import documents

PAGE = (ROOT / "docs/reference/glossary.md").read_text()


def words() -> list[str]:
    """The words, as they stand in the first column."""
    return re.findall(r"^\| ([^|]+) \| [^|]+ \|$", PAGE, re.MULTILINE)[1:]


def test_every_word_comes_once_and_in_order() -> None:
    listed = [word.lower() for word in words()]
    assert listed == sorted(set(listed))


def test_the_words_that_answers_and_states_use_are_explained() -> None:
    told = " ".join(words()).lower()
    for word in (
        "permit",
        "claim",
        "epoch",
        "sequence number",
        "compute unit",
        "dormant",
        "unsettled",
        "saturated",
        "parked",
    ):
        assert word in told


def test_a_document_that_names_a_seed_says_whose_page_that_is() -> None:
    for name in documents():
        text = (ROOT / name).read_text()
        if re.search(r"seed 004", text, re.IGNORECASE) and "/decisions/" not in name:
            assert "Neon's autoscaling at v0.1.13" in text, name

"""The diagrams in the docs are those of the tables."""

from pathlib import Path

import pytest

from tests.tidy.diagrams import PAGES, drawn


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.name))
def test_the_diagram_is_that_of_the_table(page: Path) -> None:
    name, picture = PAGES[page]
    text = page.read_text()
    assert drawn(text, name, picture) == text, "draw it anew: python -m tests.tidy.diagrams"


def test_a_page_without_a_place_for_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="no place"):
        drawn("nothing here", "sessions", "")

"""VERSIONING.md shows the version tables of `protocol.versions`, row by row, and those agree with the code."""

import re
from collections.abc import Iterable

import pytest

from protocol.versions import (
    INFORMANT_SPOKEN,
    INFORMANT_TABLE,
    PLUGIN_SPOKEN,
    PLUGIN_TABLE,
    InformantProtoVersion,
    PluginProtoVersion,
    VersionRange,
    VersionRow,
)
from tests.tidy.repository import ROOT

COLUMNS = ("Number", "Version", "Change", "Capability", "Spoken by this release")
AGENT_TO_SCHEDULER = "Agent ↔ scheduler"
AGENT_TO_INFORMANT = "Agent ↔ informant"

Rows = list[tuple[str, ...]]
AnyVersion = PluginProtoVersion | InformantProtoVersion
AnyRange = VersionRange[PluginProtoVersion] | VersionRange[InformantProtoVersion]


def tables(text: str) -> dict[str, Rows]:
    """The first table below each heading, by heading; the header is the first row, the rule below it is left out."""
    found: dict[str, Rows] = {}
    heading, complete = "", False
    for line in text.splitlines():
        if line.startswith("#"):
            heading, complete = line.lstrip("#").strip(), False
        elif not line.startswith("|"):
            complete = heading in found
        elif not complete and not re.fullmatch(r"[|:\- ]+", line):
            row = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
            found.setdefault(heading, []).append(row)
    return found


def expected(rows: Iterable[VersionRow]) -> Rows:
    """The rows as the document must show them, header included."""
    return [
        COLUMNS,
        *(
            (
                str(int(row.version)),
                str(row.version),
                row.change,
                row.capability,
                "yes" if row.spoken else "no",
            )
            for row in rows
        ),
    ]


@pytest.mark.parametrize(
    ("heading", "table"),
    [(AGENT_TO_SCHEDULER, PLUGIN_TABLE), (AGENT_TO_INFORMANT, INFORMANT_TABLE)],
    ids=["scheduler", "informant"],
)
def test_the_document_shows_exactly_the_rows_of_the_code(heading: str, table: tuple[VersionRow, ...]) -> None:
    assert tables((ROOT / "VERSIONING.md").read_text())[heading] == expected(table)


def test_the_document_has_no_other_version_tables() -> None:
    shown = tables((ROOT / "VERSIONING.md").read_text())
    versions = {heading for heading, rows in shown.items() if rows[0] == COLUMNS}
    assert versions == {AGENT_TO_SCHEDULER, AGENT_TO_INFORMANT}


@pytest.mark.parametrize(
    ("table", "kind"),
    [(PLUGIN_TABLE, PluginProtoVersion), (INFORMANT_TABLE, InformantProtoVersion)],
    ids=["scheduler", "informant"],
)
class TestTablesOfTheCode:
    """The tables beside the enums in `protocol.versions`."""

    def test_every_named_version_has_one_row_in_order(
        self, table: tuple[VersionRow, ...], kind: type[AnyVersion]
    ) -> None:
        assert [row.version for row in table] == sorted(kind)

    def test_a_capability_begins_with_the_row_that_names_it(
        self, table: tuple[VersionRow, ...], kind: type[AnyVersion]
    ) -> None:
        capabilities = {name for name in vars(kind) if name.startswith(("allows_", "has_"))}
        first = {row.capability.strip("`"): row.version for row in table if row.capability != "-"}
        assert set(first) == capabilities
        for name, since in first.items():
            assert [getattr(row.version, name)() for row in table] == [row.version >= since for row in table]


@pytest.mark.parametrize(
    ("table", "spoken"),
    [(PLUGIN_TABLE, PLUGIN_SPOKEN), (INFORMANT_TABLE, INFORMANT_SPOKEN)],
    ids=["scheduler", "informant"],
)
def test_spoken_rows_are_the_spoken_range(table: tuple[VersionRow, ...], spoken: AnyRange) -> None:
    low, high = int(spoken.min), int(spoken.max)
    assert [row.spoken for row in table] == [low <= row.version <= high for row in table]


def test_the_table_reader_reads_the_first_table_of_a_heading_only() -> None:
    text = "## A\n\n| x | y |\n|---|:-:|\n| 1 | `a` |\n\ntext\n\n| z |\n|---|\n\n## B\n| q |\n"
    assert tables(text) == {"A": [("x", "y"), ("1", "`a`")], "B": [("q",)]}

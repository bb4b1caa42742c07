"""Versions by example: texts, capabilities, ranges."""

from typing import Any

import pytest

from protocol.versions import (
    INFORMANT_SPOKEN,
    INFORMANT_TABLE,
    PLUGIN_SPOKEN,
    PLUGIN_TABLE,
    InformantProtoVersion,
    PluginProtoVersion,
    VersionRange,
)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "<invalid: zero>"), (1, "v1.0"), (2, "v1.1"), (3, "v2.0"), (7, "v5.0"), (9, "<unknown = v5.0 + 2>")],
)
def test_a_plugin_version_has_its_published_text(number: int, text: str) -> None:
    assert str(PluginProtoVersion(number)) == text


@pytest.mark.parametrize(("number", "text"), [(3, "v1.2"), (4, "v2.0"), (5, "<unknown = v2.0 + 1>")])
def test_an_informant_version_has_its_published_text(number: int, text: str) -> None:
    assert str(InformantProtoVersion(number)) == text


@pytest.mark.parametrize("number", [-1, 2**32, 1.5, "1", None])
def test_what_cannot_travel_as_a_version_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="is not a valid"):
        PluginProtoVersion(number)


def test_capabilities_come_with_v1_1() -> None:
    assert [PluginProtoVersion(number).allows_nil_metrics() for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]
    assert [InformantProtoVersion(number).has_try_upscale() for number in range(4)] == [
        False,
        False,
        True,
        True,
    ]


def test_zero_is_the_only_invalid_number() -> None:
    assert not PluginProtoVersion(0).is_valid()
    assert PluginProtoVersion(2**32 - 1).is_valid()


def test_tables_list_every_version_once_and_mark_those_we_speak() -> None:
    for table, spoken, versions in (
        (PLUGIN_TABLE, PLUGIN_SPOKEN, PluginProtoVersion),
        (INFORMANT_TABLE, INFORMANT_SPOKEN, InformantProtoVersion),
    ):
        assert [int(row.version) for row in table] == [int(version) for version in versions]
        assert [row.spoken for row in table] == [spoken.min <= row.version <= spoken.max for row in table]
        assert all(row.change and row.capability for row in table)


def test_a_range_shows_one_version_or_both_ends() -> None:
    assert str(PLUGIN_SPOKEN) == "v1.0 to v1.1"
    assert str(VersionRange(PluginProtoVersion.V1_1, PluginProtoVersion.V1_1)) == "v1.1"


def test_a_range_contains_its_ends() -> None:
    assert PluginProtoVersion.V1_0 in PLUGIN_SPOKEN
    assert PluginProtoVersion.V1_1 in PLUGIN_SPOKEN
    assert PluginProtoVersion.V2_0 not in PLUGIN_SPOKEN
    assert PluginProtoVersion(0) not in PLUGIN_SPOKEN


def test_later_peers_share_our_highest_version() -> None:
    later = VersionRange(PluginProtoVersion.V1_1, PluginProtoVersion.V5_0)
    assert PLUGIN_SPOKEN.latest_shared(later) is PluginProtoVersion.V1_1
    only_later = VersionRange(PluginProtoVersion.V2_0, PluginProtoVersion.V5_0)
    assert PLUGIN_SPOKEN.latest_shared(only_later) is None

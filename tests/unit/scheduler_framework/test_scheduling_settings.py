"""`scheduling:` in the configuration file: profiles as they are written, and what a file can say wrongly in itself."""

from pathlib import Path
from typing import Final

import pytest

from hosting import settings
from hosting.settings import SettingsError
from scheduler.permits.service.config_file import model_of, read_configuration
from scheduler.placing.core.profile import EnabledPlugin, PluginArgs, PluginSet, Profile
from scheduler.placing.core.values import ExtensionPoint

PATH: Final = Path("c.yaml")
WHOLE: Final = """
scheduling:
  profiles:
  - schedulerName: dense
    plugins:
      multiPoint:
        enabled: [{name: LedgerFit, weight: 3}, {name: PoolPlacementAdmission}]
        disabled: [{name: Spread}]
      score:
        enabled: [{name: Dense, weight: 5}]
        disabled: [{name: '*'}]
      preBind:
        disabled: [{name: Slow}]
    pluginConfig:
    - name: Dense
      args: {growth: 0.5}
  - {}
"""


def profiles(text: str) -> tuple[Profile, ...]:
    return read_configuration(PATH, text.encode(), model_of(migrator_present=False)).profiles


def test_a_whole_profile_and_an_empty_one() -> None:
    dense, empty = profiles(WHOLE)
    assert (dense.scheduler_name, dense.path) == ("dense", "scheduling.profiles[0]")
    assert {point: plugins for point, plugins in dense.points.items() if plugins != PluginSet()} == {
        ExtensionPoint.SCORE: PluginSet((EnabledPlugin("Dense", 5),), ("*",)),
        ExtensionPoint.PRE_BIND: PluginSet((), ("Slow",)),
    }
    assert dense.multi_point == PluginSet(
        (EnabledPlugin("LedgerFit", 3), EnabledPlugin("PoolPlacementAdmission", 1)), ("Spread",)
    )
    assert dense.args == (PluginArgs("Dense", {"growth": 0.5}),)
    assert empty == Profile("parley-scheduler", dict.fromkeys(ExtensionPoint, PluginSet()))
    assert empty.path == "scheduling.profiles[1]"


@pytest.mark.parametrize("text", ["", "scheduling: {}", "scheduling: {profiles: []}"])
def test_what_is_left_out_is_one_profile_with_the_defaults(text: str) -> None:
    assert [profile.scheduler_name for profile in profiles(text)] == ["parley-scheduler"]


@pytest.mark.parametrize("point", ExtensionPoint)
def test_every_point_is_named_as_in_a_published_configuration(point: ExtensionPoint) -> None:
    text = f"scheduling: {{profiles: [{{plugins: {{{point}: {{enabled: [{{name: X}}]}}}}}}]}}"
    (profile,) = profiles(text)
    assert profile.at(point) == PluginSet((EnabledPlugin("X", 1),))


def test_every_fault_of_the_file_is_told_at_once() -> None:
    text = """
scheduling:
  profiles:
  - schedulerName: ""
    plugins:
      filters: {}
      score: {enabled: [{name: A, weight: 0}, {weight: 2.5}], disabled: ['*']}
    pluginConfig: [{name: 5}]
"""
    with pytest.raises(SettingsError) as caught:
        settings.parse(PATH, text.encode(), model_of(migrator_present=False))
    assert sorted(caught.value.faults) == [
        "scheduling.profiles[0].pluginConfig[0].name: must be a text (found 5); put it in quotes",
        "scheduling.profiles[0].plugins.filters: there is no such setting",
        "scheduling.profiles[0].plugins.score.disabled[0]: must be a mapping (found '*')",
        "scheduling.profiles[0].plugins.score.enabled[0].weight: must be at least 1 (found 0)",
        "scheduling.profiles[0].plugins.score.enabled[1].name: is required",
        "scheduling.profiles[0].plugins.score.enabled[1].weight: must be a whole number (found 2.5)",
        "scheduling.profiles[0].schedulerName: must not be empty (found '')",
    ]

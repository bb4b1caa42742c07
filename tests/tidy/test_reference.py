"""The pages below docs/reference are those that the programs make, and leave nothing out."""

import ast
import importlib
import re
import tomllib

import pytest

from hosting.settings import Settings
from tests.support.reference import commands, metrics, settings
from tests.support.reference.pages import DIRECTORY, made
from tests.tidy.repository import PACKAGES, ROOT, python_files

PAGES, FAULTS = made()
NO_FILES = {
    "hosting.amounts": "an amount within settings",
    "agent.daemon.annotations": "read from a pod's annotations: docs/guides/kubernetes.md",
    "agent.daemon.policies.Choice": "an entry of `policies` of the agent's file, which is told there",
    "hosting.kubernetes.annotations._": "read from a pod's annotations: docs/guides/kubernetes.md",
    "labs.vms.load.messages": "a message to the load generator of tests and demos",
    "scheduler.pools.service._": "the scheduler's own file",
    "scheduler.clusters.kubernetes": "read from objects of Kubernetes",
    "scheduler.placing.cycle.pages": "the body of a request: in the API's document",
    "scheduler.pools.entry.WrittenPool": "the body of a request: in the API's document",
    "scheduler.permits.service.config_file._": "parts of other models, or variants of them",
    "scheduler.placing.plugins.base.NoArgs": "nothing can be set",
    "scheduler.placing.plugins.device_share.core.": "read from a pod's annotations: docs/guides/koordinator.md",
    "scheduler.placing.plugins.published_reservations": "read from objects and annotations: docs/guides/koordinator.md",
    "scheduler.placing.plugins.scheduling_hint.HintEntry": "read from a pod's annotation: docs/guides/koordinator.md",
    "scheduler.placing.plugins.load_aware.reading.": "read from annotations: docs/guides/koordinator.md",
    "agent.node.qos.config.NoStrategyArgs": "nothing can be set",
}
"""Models that are no file of ours, and no part of one, by what their full names begin with."""


def test_everything_has_a_meaning() -> None:
    """Each reason code and error code has advice; each metric, option and setting has a text. A fault names the place where it belongs."""
    assert FAULTS == ()


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_one_that_is_made(name: str) -> None:
    """`make reference` makes it."""
    assert (DIRECTORY / name).read_text() == PAGES[name]


def test_no_other_page_says_that_it_is_made() -> None:
    assert {page.name for page in DIRECTORY.iterdir() if "by `make reference`" in page.read_text()} == set(
        PAGES
    )


def test_every_metric_that_the_code_names_is_there() -> None:
    named = set()
    for package in PACKAGES:
        for file in python_files(package):
            for node in ast.walk(ast.parse((ROOT / file).read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Family"):
                    words = [each.value for each in node.args if isinstance(each, ast.Constant)]
                    named |= {
                        str(word) for word in words if re.fullmatch(r"(parley|plugin_manager)_\w+", str(word))
                    }
    shown = {each.name for each in metrics.served()}
    assert len(named) > 40
    assert {name for name in named if not {name, f"{name}_total"} & shown} == set()


def test_every_script_is_there() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    told = {path.replace("kubectl ", "kubectl-") for path in commands.ROOTS}
    assert set(scripts) - {"kubectl_complete-parley"} == told  # kubectl calls that one


def test_every_model_of_settings_is_there() -> None:
    for package in PACKAGES:
        for file in python_files(package):
            if re.search(r"\((Settings|StrategyArgs)\)", (ROOT / file).read_text()):
                importlib.import_module(str(file).removesuffix(".py").replace("/", "."))
    told = {model for file in settings.FILES for model in settings.models_of(file)}
    known = {model for model in _below(Settings) if model.__module__.split(".")[0] in PACKAGES}
    # What others are made from is told with them.
    left = {f"{model.__module__}.{model.__name__}" for model in known - told if not model.__subclasses__()}
    assert {name for name in left if not name.startswith(tuple(NO_FILES))} == set()


def _below(model: type[Settings]) -> set[type[Settings]]:
    return {each for below in model.__subclasses__() for each in (below, *_below(below))}

"""Part C of `golden/pluginmanager-v1.35.jsonl`: the published watcher of sockets, recorded on a real file system."""

from pathlib import Path
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from tests.unit.agent_plugins.recorded_plugins import recorded
from tests.unit.agent_plugins.registry_folder import Folder, WatchedFolder, step

CASES: Final = recorded(("watcher",))
RENAMED: Final = (
    "what was renamed away is not there any more; the published watcher has the old name desired for ever"
)
FOLDER: Final = f"{RENAMED}, and with a folder it also loses what happens below the new name"
HIDDEN: Final = (
    "hidden folders are never entered; the published watcher enters those that it finds at its start"
)
LINK: Final = "sockets behind a link at the root are found at the start, too; the published watcher sees only later ones"
TWICE: Final = (
    "a watcher that is started again changes nothing that is as it was: no plugin registers anew for that"
)
ROOT: Final = "a folder that is made anew is watched again"

# By case and step: what is desired and what has a new identity here, and why that is not as recorded.
REPAIRED: Final[dict[tuple[str, int], tuple[list[str], list[str], str]]] = {
    ("watcher-06", 1): ([], [], HIDDEN),
    ("watcher-06", 2): ([], [], HIDDEN),
    ("watcher-06", 3): ([], [], HIDDEN),
    ("watcher-11", 2): (["r/b.sock"], [], RENAMED),
    ("watcher-11", 3): ([], [], RENAMED),
    ("watcher-12", 2): ([], [], RENAMED),
    ("watcher-12", 3): (["r/a.sock"], [], RENAMED),
    ("watcher-13", 3): ([], [], RENAMED),
    ("watcher-22", 1): (["r/y/a.sock"], [], FOLDER),
    ("watcher-22", 2): (["r/y/a.sock", "r/y/b.sock"], [], FOLDER),
    ("watcher-22", 3): (["r/y/b.sock"], [], FOLDER),
    ("watcher-23", 1): ([], [], FOLDER),
    ("watcher-23", 2): ([], [], FOLDER),
    ("watcher-23", 3): ([], [], FOLDER),
    ("watcher-32", 1): (["l/a.sock"], [], LINK),
    ("watcher-32", 2): (["l/a.sock", "l/b.sock"], [], LINK),
    ("watcher-32", 3): (["l/a.sock"], [], LINK),
    ("watcher-41", 2): (["r/b.sock"], [], ROOT),
    ("watcher-45", 1): (["r/a.sock"], [], TWICE),
}
Seen = dict[str, Any]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_desired_world_is_as_recorded(case: dict[str, Any], tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    watched = WatchedFolder(Path(f"{tmp_path}/{case['root']}"))
    try:
        for number, recorded in enumerate(case["steps"]):
            before, counted = watched.world.uuids(), watched.world.added.copy()
            with capture_logs() as lines:
                await step(folder, watched, recorded["do"])
            after = watched.world.uuids()
            told = [line["error"] for line in lines if line["event"] == "folder of plugins cannot be watched"]
            seen = _seen(before, after, tmp_path)
            assert seen == _expected(case["id"], number, recorded), f"step {number}: {recorded['do']}"
            assert bool(told) == bool(recorded.get("start_error")), told
            _check_calls(recorded, watched.world.added - counted, tmp_path)
    finally:
        await watched.stop()


def _seen(before: dict[str, str], after: dict[str, str], base: Path) -> Seen:
    renewed = [path for path, uuid in after.items() if before.get(path, uuid) != uuid]
    return {"desired": sorted(_short(after, base)), "refreshed": sorted(_short(renewed, base))}


def _recorded(recorded: dict[str, Any]) -> Seen:
    return {
        each: [path.removeprefix("$DIR/") for path in recorded[each]] for each in ("desired", "refreshed")
    }


def _expected(case: str, number: int, recorded: dict[str, Any]) -> Seen:
    found = _recorded(recorded)
    if (case, number) in REPAIRED:
        desired, refreshed, _ = REPAIRED[case, number]
        repaired = {"desired": desired, "refreshed": refreshed}
        assert repaired != found, f"the row {case}, {number} of REPAIRED is not needed"
        return repaired
    return found


def _check_calls(recorded: dict[str, Any], added: Any, base: Path) -> None:
    """No socket is added twice where the published watcher adds it once."""
    for path, count in added.items():
        assert count <= 1 or count == recorded["calls"][path.replace(str(base), "$DIR")].count(
            "add_or_update"
        )


def _short(paths: Any, base: Path) -> list[str]:
    return [path.removeprefix(f"{base}/") for path in paths]


def test_every_repair_is_of_a_recorded_case() -> None:
    assert {case for case, _ in REPAIRED} <= CASES.keys()
    assert all(number < len(CASES[case]["steps"]) for case, number in REPAIRED)

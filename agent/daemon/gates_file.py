"""Feature gates of strategies that change while the agent runs: `qos.featureGates` of the settings file, read again when the file
changes."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from agent.daemon.settings import AgentSettings
from hosting.fault_log import FaultLog
from hosting.logs import Logger
from hosting.settings import FaultsError, SettingsError
from hosting.watched_file import FileUnreachableError, WatchedFile

CHECK_S: Final = 2.0


def _gates(settings: AgentSettings) -> Mapping[str, bool]:
    return settings.qos.feature_gates if settings.qos is not None else {}


class GatesFile:
    """Gives the gates of the file at `path` to `switch`; those that the command line has `given` win."""

    def __init__(
        self,
        path: Path,
        given: Mapping[str, bool],
        switch: Callable[[Mapping[str, bool]], None],
        log: Logger,
    ) -> None:
        self._file = WatchedFile(path, AgentSettings, _gates)
        self._given = dict(given)
        self._switch = switch
        self._log = log
        self._switched: Mapping[str, bool] | None = None
        self._faults = FaultLog(
            log, "feature gates not usable, the old ones stay in force", "feature gates usable again"
        )

    async def run(self) -> None:
        """Follow the file for ever."""
        while True:
            await self.look()
            await asyncio.sleep(CHECK_S)

    async def look(self) -> None:
        """Take up what has changed. The first look takes the gates as they were at the start."""
        try:
            found = await self._file.refresh()
            if found is not None and found != self._switched:
                is_first, self._switched = self._switched is None, found
                if not is_first:
                    self._switch({**found, **self._given})
                    self._log.info("feature gates switched", gates=dict(found))
        except (SettingsError, FaultsError, FileUnreachableError) as error:
            self._faults.failed(error)
        else:
            self._faults.worked()

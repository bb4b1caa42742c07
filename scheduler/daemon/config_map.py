"""The scheduler's configuration in a ConfigMap: `--config-map NAMESPACE/NAME`. A change of it is taken up at once.

A text with faults is reported with all of them, also as an Event about the ConfigMap, and the configuration that was read before stays in force; so also where the
ConfigMap is deleted.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hosting.kubernetes.api import KubernetesApi, KubernetesError
from hosting.kubernetes.reflector import Reflector
from hosting.kubernetes.resources import CONFIG_MAPS, Manifest
from hosting.logs import Logger
from hosting.settings import MAX_FILE_BYTES, SettingsError
from hosting.supervisor import Child
from hosting.threads import in_own_thread
from scheduler.permits.service.config_file import Configuration, model_of, read_configuration
from scheduler.ports import ClusterUnreachableError

KEY: Final = "config.yaml"


class ConfigMapSource:
    """The configuration under `config.yaml` in the ConfigMap `namespace`/`name`. It is up to date while `run` runs."""

    def __init__(
        self,
        api: KubernetesApi,
        place: tuple[str, str],
        clock: Callable[[], float],
        rng: random.Random,
        log: Logger,
        *,
        migrator_present: bool,
    ) -> None:
        self._place = place
        self._clock = clock
        self._log = log
        self._model = model_of(migrator_present=migrator_present)
        self._watch = Reflector(
            api,
            CONFIG_MAPS,
            place[0],
            field_selector=f"metadata.name={place[1]}",
            clock=clock,
            rng=rng,
            log=log,
        )
        self.run: Final[Child] = self._watch.run
        self._read: str | None = None
        """The text that was read last."""
        self._faults: list[str] = []
        self._has_begun = False

    @property
    def manifest(self) -> Manifest | None:
        """The ConfigMap; None where there is none."""
        return self._watch.objects().get(self._place)

    @property
    def path(self) -> Path:
        """What faults name."""
        return Path(f"configmap/{'/'.join(self._place)}/{KEY}")

    async def refresh(self) -> Configuration | None:
        """The configuration, where it is read for the first time or has changed since; else None.

        Raises `SettingsError` with every fault, in each call until the text changes, and `ClusterUnreachableError` before the
        ConfigMap was seen for the first time.
        """
        if not self._watch.has_synced:
            try:
                await self._watch.caught_up(self._clock())
            except KubernetesError as error:
                raise ClusterUnreachableError(f"{self.path}: {error}") from None
        text = self._text()
        if text == self._read:
            if self._faults:
                raise SettingsError(self.path, self._faults)
            return None
        content = text.encode()
        self._read, self._faults = text, []
        if len(content) > MAX_FILE_BYTES:
            self._faults = [f"is larger than {MAX_FILE_BYTES} bytes"]
            raise SettingsError(self.path, self._faults)
        try:
            found = await in_own_thread(lambda: read_configuration(self.path, content, self._model))
        except SettingsError as error:
            self._faults = error.faults
            raise
        if self._has_begun:
            self._log.info("configuration read again", source=str(self.path))
        self._has_begun = True
        return found

    def _text(self) -> str:
        """The text as the API server showed it last. Raises `SettingsError` where there is none."""
        found = self.manifest
        if found is None:
            raise SettingsError(self.path, ["there is no such ConfigMap"])
        text = (found.get("data") or {}).get(KEY)
        if not isinstance(text, str):
            raise SettingsError(self.path, [f"the ConfigMap has no key {KEY}"])
        return text

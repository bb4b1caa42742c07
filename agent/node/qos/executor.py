"""Writes control groups for all strategies, in cgroup v1 and v2: the one place of the agent that does."""

import contextlib
import errno
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from agent.node.qos.core.actions import CgroupResource, CgroupUpdate, WriteOutcome, WriteResult
from agent.node.qos.core.cgroup_values import (
    PERIOD_FILE,
    PERIOD_US,
    GroupFile,
    LevelChange,
    LevelStep,
    checked,
    file_of,
    held_back_by,
    level,
    period_of,
    text_of,
    value_of,
    width_of,
)
from agent.node.qos.group_directory import (
    GroupGoneError,
    NoSuchFileError,
    group_directory,
    parts_of,
    read_file,
    write_file,
)
from hosting.cgroups.tree import ROOT, CgroupTree
from protocol.cpu_lists import CpuListError, cpu_list, cpus_of
from protocol.pages import GroupWrite

_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MAX_WRITERS: Final = 4096
"""So many values are remembered with their writers; the oldest is forgotten first."""
_HINTS: Final = {
    errno.EINVAL: "the kernel refuses the value: wider than the group around it, narrower than one inside, or a burst above the quota",
    errno.EBUSY: "the kernel refuses the value: a group inside needs more",
    errno.ENOSPC: "the kernel refuses a group with tasks and without CPUs",
    errno.ELOOP: "a symbolic link on the way",
    errno.ENOTDIR: "no directory, or a symbolic link on the way",
}


@dataclass(frozen=True, slots=True)
class _FileValue:
    """The content of a file, the value that it means, and the period of the group."""

    text: str
    value: int | str | None
    period_us: int


@dataclass(slots=True)
class _Target:
    """An update on its way: its meaning here, and its outcome."""

    update: CgroupUpdate
    parts: tuple[str, ...]
    file: GroupFile
    value: int | str
    period_us: int
    before: int | str | None
    outcome: WriteOutcome | None = None


class ResourceExecutor:
    """Reads and writes the groups below `root`, the mount point of cgroups. Any thread may call; one at a time is served, so that the
    writes of two strategies never mix."""

    def __init__(self, root: Path = ROOT) -> None:
        self.cgroups = CgroupTree(root)
        self._lock = threading.Lock()
        self._hierarchies: dict[str, Path] = {}
        self._writers: dict[tuple[str, CgroupResource], GroupWrite] = {}

    @property
    def is_v2(self) -> bool:
        return self.cgroups.is_v2

    def read(self, group: str, resource: CgroupResource) -> int | str | None:
        """The value of a group; None if the group or its file is not there. CPUs that cgroup v2 leaves to the group around are
        those of that group. Raises `ValueError` for a path that is no group's."""
        parts = parts_of(group)
        with self._lock:
            try:
                return self._read(parts, resource).value
            except (GroupGoneError, NoSuchFileError, OSError):
                return None

    def write(self, updates: Sequence[CgroupUpdate], writer: str = "") -> tuple[WriteOutcome, ...]:
        """Write updates as `NodeClient.write` says. `writer` is the strategy. Never raises an error of a file or of the kernel."""
        with self._lock:
            found = [self._prepare(update) for update in updates]
            targets = self._without_earlier(found)
            self._resolve_inherited(targets)
            refused = [each.update for each in found if isinstance(each, WriteOutcome)]
            self._perform(targets, refused)
            done = [each if isinstance(each, WriteOutcome) else _outcome(each) for each in found]
            return tuple(self._noted(outcome, writer) for outcome in done)

    def last_writes(self) -> tuple[GroupWrite, ...]:
        """The values that strategies have set, the oldest first."""
        with self._lock:
            return tuple(self._writers.values())

    # ------------------------------------------------------------ one value

    def _file(self, resource: CgroupResource) -> GroupFile:
        found = file_of(resource, is_v2=self.is_v2)
        if found is None:
            raise NoSuchFileError(resource)
        return found

    def _hierarchy(self, controller: str) -> Path:
        """The directory of a controller, which may be a link, but not to a place outside the root."""
        if controller in self._hierarchies:
            return self._hierarchies[controller]
        found = self.cgroups.hierarchy(controller).resolve()
        if not found.is_relative_to(self.cgroups.root.resolve()):
            raise OSError(errno.ELOOP, f"{found} is outside {self.cgroups.root}")
        if not found.is_dir():
            raise NoSuchFileError(controller)
        self._hierarchies[controller] = found
        return found

    def _read(self, parts: tuple[str, ...], resource: CgroupResource) -> _FileValue:
        file = self._file(resource)
        with group_directory(self._hierarchy(file.controller), parts) as directory:
            text = read_file(directory, file.name)
            period_us = PERIOD_US
            if resource in {CgroupResource.CPU_QUOTA_US, CgroupResource.CPU_BURST_US}:
                with contextlib.suppress(NoSuchFileError):
                    period_us = period_of(read_file(directory, PERIOD_FILE[self.is_v2].name))
            meant = text
            if not text and resource is CgroupResource.CPUSET_CPUS and self.is_v2:
                meant = read_file(directory, "cpuset.cpus.effective")
        return _FileValue(text, value_of(resource, meant, is_v2=self.is_v2, period_us=period_us), period_us)

    def _write(self, target: _Target, directory: int, text: str) -> None:
        write_file(directory, target.file.name, text)

    # ------------------------------------------------------------ many values

    def _prepare(self, update: CgroupUpdate) -> _Target | WriteOutcome:
        """The meaning of an update here; its outcome if it is settled already."""
        try:
            parts = parts_of(update.group)
            if not parts:
                raise ValueError("the root of all groups is never written")
            value = checked(update.resource, update.value)
            found = self._read(parts, update.resource)
            target = _Target(update, parts, self._file(update.resource), value, found.period_us, found.value)
        except (ValueError, GroupGoneError, NoSuchFileError, OSError) as error:
            return _failed(update, error)
        if value != "" and _means(target, found.text, self._text_of(target, value)):
            target.outcome = WriteOutcome(update, WriteResult.UNCHANGED, found.text)
        return target

    @staticmethod
    def _without_earlier(found: list[_Target | WriteOutcome]) -> list[_Target]:
        """The updates to perform: of several for one value the last one counts."""
        last: dict[tuple[tuple[str, ...], CgroupResource], _Target] = {}
        for each in found:
            if isinstance(each, _Target):
                key = (each.parts, each.update.resource)
                if (earlier := last.get(key)) is not None:
                    earlier.outcome = _failed(
                        earlier.update, ValueError("a later update of the same call sets it")
                    )
                last[key] = each
        return list(last.values())

    def _resolve_inherited(self, targets: list[_Target]) -> None:
        """Give those who want all CPUs of the group around them that group's CPUs. cgroup v2 does so itself when the file is empty."""
        wanted = {each.parts: each for each in targets if each.update.resource is CgroupResource.CPUSET_CPUS}
        for parts, each in sorted(wanted.items()):
            if each.value == "":
                around = wanted.get(parts[:-1])
                try:
                    found = (
                        around.value if around else self._read(parts[:-1], CgroupResource.CPUSET_CPUS).value
                    )
                except (GroupGoneError, NoSuchFileError, OSError) as error:
                    each.outcome = _failed(each.update, error)
                else:
                    each.value = found or ""

    def _perform(self, targets: list[_Target], refused: list[CgroupUpdate]) -> None:
        changes = [
            LevelChange(
                each.parts,
                each.update.resource,
                None if each.before is None else width_of(each.before),
                width_of(each.value),
            )
            for each in targets
        ]
        failed = [LevelChange(tuple(each.group.split("/")), each.resource, None, 0) for each in refused]
        for step in level(changes):
            target, change = targets[step.change], changes[step.change]
            if target.outcome is None:
                around = held_back_by(change, failed) if step.is_widening else None
                if around is not None:
                    target.outcome = _failed(
                        target.update, ValueError(f"{'/'.join(around.parts)} around it was not widened")
                    )
                else:
                    self._take(step, target)
            if step.is_widening and target.outcome is not None and not _is_done(target.outcome):
                failed.append(change)

    def _take(self, step: LevelStep, target: _Target) -> None:
        """Write one value, unless the file means it already, and read it back."""
        value = target.value if step.union is None else cpu_list(step.union)
        is_inherited = self.is_v2 and step.union is None and target.update.value == ""
        text = "" if is_inherited else self._text_of(target, value)
        result = WriteResult.UNCHANGED
        try:
            with group_directory(self._hierarchy(target.file.controller), target.parts) as directory:
                found = read_file(directory, target.file.name)
                if not _means(target, found, text):
                    self._write(target, directory, text)
                    result = WriteResult.WRITTEN
                    found = read_file(directory, target.file.name)
        except (GroupGoneError, NoSuchFileError, OSError) as error:
            target.outcome = _failed(target.update, error)
            return
        if not _means(target, found, text):
            error_text = f"{target.file.name} says {found!r} after {text!r} was written"
            target.outcome = WriteOutcome(target.update, WriteResult.FAILED, found, error_text)
        elif step.union is None:
            target.outcome = WriteOutcome(target.update, result, found)

    def _text_of(self, target: _Target, value: int | str) -> str:
        resource = target.update.resource
        return text_of(resource, value, is_v2=self.is_v2, period_us=target.period_us, page_bytes=_PAGE_BYTES)

    def _noted(self, outcome: WriteOutcome, writer: str) -> WriteOutcome:
        """Remember who has set the value; the outcome names whose value was replaced."""
        update = outcome.update
        key = (update.group, update.resource)
        if outcome.result is WriteResult.GONE:
            self._writers.pop(key, None)
        if not _is_done(outcome):
            return outcome
        before = self._writers.pop(key, None)
        self._writers[key] = GroupWrite(
            group=update.group, resource=update.resource.value, value=update.value, strategy=writer or None
        )
        if len(self._writers) > _MAX_WRITERS:
            self._writers.pop(next(iter(self._writers)))
        if before is None or before.strategy == (writer or None) or before.value == update.value:
            return outcome
        return replace(outcome, displaced=before.strategy or "")


def _means(target: _Target, found: str, text: str) -> bool:
    if target.update.resource is not CgroupResource.CPUSET_CPUS:
        return found.split() == text.split()
    try:
        return cpus_of(found) == cpus_of(text)
    except CpuListError:
        return False


def _outcome(target: _Target) -> WriteOutcome:
    assert target.outcome is not None, f"no step for {target.update}"
    return target.outcome


def _is_done(outcome: WriteOutcome) -> bool:
    return outcome.result in {WriteResult.WRITTEN, WriteResult.UNCHANGED}


_RESULTS: Final[Mapping[type[Exception], WriteResult]] = {
    GroupGoneError: WriteResult.GONE,
    NoSuchFileError: WriteResult.UNSUPPORTED,
}


def _failed(update: CgroupUpdate, error: Exception) -> WriteOutcome:
    result = _RESULTS.get(type(error), WriteResult.FAILED)
    text = str(error)
    if isinstance(error, OSError):
        text = f"{error.strerror}: {_HINTS.get(error.errno or 0, 'the file cannot be read or written')}"
    elif result is WriteResult.GONE:
        text = "the group is not there any more"
    elif result is WriteResult.UNSUPPORTED:
        text = "this kernel, version of cgroups or group has no such file"
    return WriteOutcome(update, result, error=text)

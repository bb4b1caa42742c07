"""Time windows as configured: cron expressions and time zones, read by `cronsim` and `zoneinfo`.

An expression has the five fields of cron. If the clock is set forward, moments in the gap come at its end; if the clock is set back, a
fixed time counts once, the first time, as with cron.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, BeforeValidator, Field

from agent.core.policies.values import MAX_UNITS
from agent.core.policies.windows import NO_LIMITS, Edges, UnitLimit, Window, WindowLimits, limits
from hosting.settings import FaultsError, Settings, check

MAX_WINDOWS: Final = 16
MAX_EXPRESSION: Final = 100
MAX_IN_HOUR: Final = 4
"""An edge may come this often; shorter windows would cost more than they give, at every edge."""
_MARGIN: Final = timedelta(hours=3)
"""A search backwards begins this far ahead: `cronsim` goes by local time, of which a change of the clock repeats a part."""
_MOST_IN_MARGIN: Final = 64
"""More moments than the margin can hold, an hour that comes twice included."""
_YEAR_S: Final = 365 * 86400.0


def _cron(value: str) -> str:
    if len(value) > MAX_EXPRESSION or len(value.split()) != 5:
        raise ValueError("must be a cron expression of five fields, such as 0 8 * * MON-FRI")
    try:
        moments = CronSim(value, datetime(2024, 1, 1, tzinfo=UTC))
        moment = next(moments, None)
    except (CronSimError, ValueError, AssertionError) as error:
        raise ValueError(f"is no cron expression: {error}") from None
    if moment is None:
        raise ValueError("never happens")
    if len(moments.minutes) > MAX_IN_HOUR:
        raise ValueError(f"must not happen more than {MAX_IN_HOUR} times an hour")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (OSError, LookupError, ValueError):
        raise ValueError("is no time zone that is known here, such as Europe/Berlin") from None
    return value


Cron = Annotated[str, AfterValidator(_cron)]
Count = Annotated[int, Field(ge=0, le=MAX_UNITS)]


class UnitsEntry(Settings):
    """A floor or a ceiling for one resource, or for each by itself."""

    cpu: Count | None = None
    memory: Count | None = None

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """At least one of the two is given."""
        if found.get("cpu", 0) is None and found.get("memory", 0) is None:
            yield "", "needs cpu or memory"


def _both(value: object) -> object:
    """A number alone stands for both resources."""
    if value is None or isinstance(value, Mapping):
        return value
    if type(value) is not int or not 0 <= value <= MAX_UNITS:
        raise ValueError(
            f"must be a number of units from 0 to {MAX_UNITS}, or {{cpu, memory}} with such numbers"
        )
    return {"cpu": value, "memory": value}


UnitsOfEach = Annotated[UnitsEntry, BeforeValidator(_both)]


class WindowEntry(Settings):
    """A window: opens with each `from`, closes with each `until`, in its `zone`."""

    name: Annotated[str, Field(min_length=1, max_length=63)]
    opens: Cron = Field(alias="from")
    closes: Cron = Field(alias="until")
    zone: Annotated[str, Field(min_length=1, max_length=63), AfterValidator(_zone)] = "UTC"
    floor: UnitsOfEach | None = None
    ceiling: UnitsOfEach | None = None

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """A floor or a ceiling is given, the floor is below the ceiling, and opening differs from closing."""
        if found.get("floor", 0) is None and found.get("ceiling", 0) is None:
            yield "", "needs a floor or a ceiling"
        floor, ceiling = _limit(found.get("floor")), _limit(found.get("ceiling"))
        pairs = (("cpu", floor.cpu, ceiling.cpu), ("memory", floor.memory, ceiling.memory))
        for name, low, high in pairs:
            if low is not None and high is not None and low > high:
                yield "floor", f"must not be above the ceiling of {name}: {low} is above {high}"
        opens, closes = found.get("opens"), found.get("closes")
        if opens and closes and opens.upper().split() == closes.upper().split():
            yield "until", f"is the same as from ({opens!r}); the window would never be open"

    def timed(self) -> "Timed":
        window = Window(self.name, _limit(self.floor), _limit(self.ceiling))
        return Timed(window, self.opens, self.closes, ZoneInfo(self.zone))


def _limit(entry: UnitsEntry | None) -> UnitLimit:
    return UnitLimit() if entry is None else UnitLimit(entry.cpu, entry.memory)


@dataclass(frozen=True, slots=True)
class Timed:
    """A window, when it opens and closes, and in which time zone."""

    window: Window
    opens: str
    closes: str
    zone: ZoneInfo

    def edges(self, at_s: float) -> Edges:
        return Edges(last(self.opens, self.zone, at_s), last(self.closes, self.zone, at_s))

    def next_s(self, at_s: float) -> float | None:
        found = (following(self.opens, self.zone, at_s), following(self.closes, self.zone, at_s))
        return min((moment for moment in found if moment is not None), default=None)


def last(expression: str, zone: ZoneInfo, at_s: float) -> float | None:
    """The latest moment of `expression` that is not after `at_s`, in seconds since the epoch."""
    now = datetime.fromtimestamp(at_s, UTC)
    moments = CronSim(expression, (now + _MARGIN).astimezone(zone), reverse=True)
    seconds = (moment.timestamp() for moment in islice(moments, _MOST_IN_MARGIN))
    return next((moment for moment in seconds if moment <= at_s), None)


def following(expression: str, zone: ZoneInfo, at_s: float) -> float | None:
    """The earliest moment of `expression` after `at_s`, in seconds since the epoch."""
    now = datetime.fromtimestamp(at_s, UTC)
    moments = CronSim(expression, now.astimezone(zone))
    seconds = (moment.timestamp() for moment in islice(moments, _MOST_IN_MARGIN))
    return next((moment for moment in seconds if moment > at_s), None)


class Schedule:
    """The windows of one VM. Remembers the limits until the next change, so that asking costs nothing."""

    def __init__(self, windows: Sequence[Timed]) -> None:
        self._windows = tuple(windows)
        self._limits = NO_LIMITS
        self._from_s = self._until_s = 0.0

    def __bool__(self) -> bool:
        """Whether there are any windows."""
        return bool(self._windows)

    def at(self, now_s: float) -> WindowLimits:
        """The limits at `now_s`, in seconds since the epoch (the wall clock, which may be set back)."""
        if self._windows and not self._from_s <= now_s < self._until_s:
            self._limits = limits((timed.window, timed.edges(now_s)) for timed in self._windows)
            found = (timed.next_s(now_s) for timed in self._windows)
            self._until_s = min((moment for moment in found if moment is not None), default=now_s + _YEAR_S)
            self._from_s = now_s
        return self._limits

    def next_s(self, now_s: float) -> float | None:
        """When that changes next, at the latest; None if it never does."""
        self.at(now_s)
        return self._until_s if self._windows else None


def read(data: object, path: str = "windows") -> tuple[tuple[Timed, ...], list[str]]:
    """The windows of a configuration's list that can be used, and the faults of the others."""
    if not isinstance(data, list | tuple):
        return (), [f"{path}: must be a list of windows"]
    if len(data) > MAX_WINDOWS:
        return (), [f"{path}: has {len(data)} windows, more than {MAX_WINDOWS}"]
    found: list[Timed] = []
    faults: list[str] = []
    seen: set[str] = set()
    for index, item in enumerate(data):
        name = item.get("name") if isinstance(item, Mapping) else None
        is_taken = isinstance(name, str) and name in seen
        if is_taken:
            faults.append(f"{path}[{index}].name: {name!r} is used more than once")
        elif isinstance(name, str):
            seen.add(name)
        try:
            entry = check(item, WindowEntry)
        except FaultsError as error:
            faults += error.below(f"{path}[{index}]")
        else:
            if not is_taken:
                found.append(entry.timed())
    return tuple(found), faults


def faults_of(data: object, path: str = "windows") -> list[str]:
    """The faults of a configuration's list, for `Settings.cross_faults`."""
    return read(data, path)[1]


def of(data: Any) -> Schedule:
    """The schedule of a list that was found good. Raises `FaultsError` otherwise."""
    windows, faults = read(data)
    if faults:
        raise FaultsError(faults)
    return Schedule(windows)

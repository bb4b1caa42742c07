"""The messages of `/load`: the setting that `PUT` takes, and the report that `PUT` and `GET` answer with."""

from typing import Annotated

from pydantic import Field

from hosting.settings import Settings
from labs.vms.load.plan import IDLE, GuestLoad
from protocol.values import Value


class LoadSetting(Settings):
    """The body of `PUT /load`. A value that is left out is as in an idle guest."""

    cpus: Annotated[float, Field(ge=0, le=64, allow_inf_nan=False)] = IDLE.cpus
    memory_bytes: Annotated[int, Field(ge=0, le=2**40)] = IDLE.memory_bytes
    memory_bytes_per_second: Annotated[int, Field(ge=2**16, le=2**40)] = IDLE.memory_bytes_per_s

    @classmethod
    def of(cls, load: GuestLoad) -> "LoadSetting":
        """The setting that says `load`. Raises `ValidationError` beyond the limits."""
        return cls.model_validate(
            {
                "cpus": load.cpus,
                "memoryBytes": load.memory_bytes,
                "memoryBytesPerSecond": load.memory_bytes_per_s,
            }
        )

    def load(self) -> GuestLoad:
        return GuestLoad(self.cpus, self.memory_bytes, self.memory_bytes_per_second)


class ActualLoad(Value, frozen=True, rename="camel"):
    """The present use. `cpus` is the mean of the last seconds."""

    cpus: float
    jobs_in_flight: int
    memory_bytes: int


class JobCounts(Value, frozen=True, rename="camel"):
    """Jobs since the start: `lost` ones found too many in flight, the process of a `failed` one was killed."""

    arrived: int
    done: int
    lost: int
    failed: int


class EndedChild(Value, frozen=True, rename="camel"):
    """How a process of the load generator ended by itself."""

    kind: str
    how: str
    seconds_ago: float


class LoadReport(Value, frozen=True, rename="camel"):
    """The wanted load, and the actual one. `children_ended` counts processes that have ended, by kind: `jobs` or `memory`."""

    wanted: dict[str, float]
    actual: ActualLoad
    jobs: JobCounts
    children_ended: dict[str, int]
    last_end: EndedChild | None

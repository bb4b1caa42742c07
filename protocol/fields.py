"""The kinds of fields that travel: what each one accepts in strict reading. `protocol.lenient` reads the same marks.

Every mark is a frozen value in an `Annotated` type, so that one declaration in `protocol.wire` serves the strict
reader (pydantic), the lenient reader, and the writer.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import Field, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from protocol import float32, quantities

UINT16_MAX: Final = 2**16 - 1
UINT32_MAX: Final = 2**32 - 1
UINT64_MAX: Final = 2**64 - 1


def wire(name: str) -> FieldInfo:
    """The field's name on the wire."""
    info = Field(alias=name)
    assert isinstance(info, FieldInfo)
    return info


@dataclass(frozen=True, slots=True)
class Uint:
    """An unsigned whole number, `low` to `high`; the annotated type may be a subclass of int."""

    high: int
    low: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        number = core_schema.int_schema(strict=True, ge=self.low, le=self.high)
        return number if source is int else core_schema.no_info_after_validator_function(source, number)


@dataclass(frozen=True, slots=True)
class Single:
    """A finite number within the range of a 32-bit float, rounded to one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        number = core_schema.float_schema(strict=True, allow_inf_nan=False)
        return core_schema.no_info_after_validator_function(float32.round32, number)


@dataclass(frozen=True, slots=True)
class Amount:
    """A Kubernetes quantity, given as a string."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(strict=True, max_length=quantities.MAX_TEXT)
        return core_schema.no_info_after_validator_function(quantities.parse, text)


@dataclass(frozen=True, slots=True)
class Text:
    """A string of `low` to `high` characters."""

    high: int
    low: int = 0

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.str_schema(strict=True, min_length=self.low, max_length=self.high)


Uint16 = Annotated[int, Uint(UINT16_MAX)]
Uint64 = Annotated[int, Uint(UINT64_MAX)]
Positive64 = Annotated[int, Uint(UINT64_MAX, low=1)]
Float32 = Annotated[float, Single()]
WireQuantity = Annotated[quantities.Quantity, Amount()]
PodUid = Annotated[str, Text(64, low=1)]
Id = UUID

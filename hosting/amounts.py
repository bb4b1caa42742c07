"""Amounts in settings: CPUs and memory as Kubernetes quantities, shares as decimals, each read exactly.

A field of a settings model is marked with one of these; decisions get whole milli-CPU, bytes and parts per million.
"""

from collections.abc import Hashable, Iterator
from decimal import Decimal
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from hosting.settings import Settings
from protocol import quantities, values
from protocol.durations import parse_go_duration


def _cpu(value: object) -> int:
    amount = _quantity(value).exact_milli_value()
    if amount is None or not 0 <= amount <= values.MAX_VCPU_MILLI:
        raise ValueError("must be CPUs in whole milli-CPU, 0 or more, such as 2, 1.5 or 250m")
    return amount


def _memory(value: object) -> int:
    amount = _quantity(value).exact_value()
    if amount is None or not 0 <= amount <= values.MAX_MEMORY_BYTES:
        raise ValueError("must be memory in whole bytes, 0 or more, such as 4Gi or 512Mi")
    return amount


def _quantity(value: object) -> quantities.Quantity:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity such as 2, 250m or 4Gi")
    if isinstance(value, int) and abs(value) > values.MAX_MEMORY_BYTES:
        raise ValueError("must be a quantity such as 2, 250m or 4Gi")
    return quantities.parse(str(value))


Cpu = BeforeValidator(_cpu)
"""Marks an `int` of milli-CPU that is written as a quantity of CPUs."""
Memory = BeforeValidator(_memory)
"""Marks an `int` of bytes that is written as a quantity."""


def _go_duration(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError("must be a duration such as 300s, 5m or 1h30m0s")
    found = parse_go_duration(value)
    if found < 0:
        raise ValueError("must not be below 0s")
    return found


GoDuration = Annotated[float, BeforeValidator(_go_duration)]
"""Seconds from 0, written as Go writes durations."""


def millionths(value: object) -> int | None:
    """A share in parts per million, exactly as it is written; None for anything but a number of at most six decimals.

    A float counts as the decimals that it is written with.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e9:
        return None
    ppm = Decimal(str(value)).scaleb(6)
    return int(ppm) if ppm == ppm.to_integral_value() else None


def share(least: float, most: float) -> BeforeValidator:
    """Marks an `int` of parts per million that is written as a number from `least` to `most`."""
    example = min(0.75, most)

    def read(value: object) -> int:
        ppm = millionths(value)
        if ppm is None or not least <= ppm / 1_000_000 <= most:
            raise ValueError(
                f"must be a number from {least:g} to {most:g} with at most six decimals, such as {example:g}"
            )
        return ppm

    return BeforeValidator(read)


class _WrittenAmount(Settings):
    cpu: Annotated[int, Cpu]
    memory: Annotated[int, Memory]


def _amount_schema(*, is_positive: bool) -> JsonSchemaValue:
    """An amount in a JSON Schema, with the usual spellings of quantities."""
    least = {"exclusiveMinimum": 0} if is_positive else {"minimum": 0}
    ahead = "(?=.*[1-9])" if is_positive else ""

    def quantity(words: str, pattern: str, number: JsonSchemaValue) -> JsonSchemaValue:
        text = {"type": "string", "pattern": f"^{ahead}{pattern}$"}
        return {"description": words, "anyOf": [{**number, **least}, text]}

    cpu = quantity(
        "CPUs in whole milli-CPU, such as 2, 1.5 or 250m.",
        r"(([0-9]{1,12}|[1-8][0-9]{12})(\.[0-9]{1,3})?|([0-9]{1,15}|[1-8][0-9]{15})m|[0-9]{1,9}k|[0-9]{1,6}M|[0-9]{1,3}G|[1-9]T)",
        {"type": "number", "maximum": values.MAX_VCPU_MILLI // 1000},
    )
    memory = quantity(
        "Memory in whole bytes, such as 4Gi or 512Mi.",
        "([0-9]{1,18}|[1-8][0-9]{18}|[0-9]{1,15}Ki|[0-9]{1,15}k|[0-9]{1,12}Mi?|[0-9]{1,9}Gi?|[0-9]{1,6}Ti?|[0-9]{1,3}Pi?|[1-7]Ei?)",
        {"type": "integer", "maximum": values.MAX_MEMORY_BYTES},
    )
    return {
        "type": "object",
        "description": f"CPUs and memory as Kubernetes quantities{', both above zero' if is_positive else ''}.",
        "properties": {"cpu": cpu, "memory": memory},
        "required": ["cpu", "memory"],
        "additionalProperties": False,
    }


MOST_SHARED: Final = 1024
_shared: dict[tuple[type, object, type, object], values.Resources] = {}
"""Amounts that were read, by how they were written. A file of 100,000 VMs has few sizes, each of which is read and kept once."""


def _shared_amount(written: object, read: ValidatorFunctionWrapHandler) -> values.Resources:
    key = None
    if type(written) is dict and len(written) == 2:
        cpu, memory = written.get("cpu"), written.get("memory")
        key = (type(cpu), cpu, type(memory), memory)  # 1 and True are not written alike
        if isinstance(cpu, Hashable) and isinstance(memory, Hashable) and key in _shared:
            return _shared[key]
    found: _WrittenAmount = read(written)
    amount = values.Resources(found.cpu, found.memory)
    if key is not None and len(_shared) < MOST_SHARED:
        _shared[key] = amount
    return amount


class _AsAmount:
    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        del schema, handler  # of the fields it knows no more than that they become whole numbers
        return _amount_schema(is_positive=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_wrap_validator_function(_shared_amount, handler(_WrittenAmount))


Resources = Annotated[values.Resources, _AsAmount()]
"""An amount written as `{cpu: 2, memory: 4Gi}`; both are Kubernetes quantities."""


def _positive(amount: values.Resources) -> values.Resources:
    if not amount.is_positive():
        raise ValueError(
            f"must be above zero in both resources, such as {{cpu: 1, memory: 1Gi}}, not {amount}"
        )
    return amount


PositiveResources = Annotated[
    Resources, AfterValidator(_positive), WithJsonSchema(_amount_schema(is_positive=True))
]
"""An amount above zero in both resources."""


def bounds_fault(least: values.Resources | None, most: values.Resources | None) -> Iterator[tuple[str, str]]:
    """The rule that a minimum and a maximum make bounds, if both are known."""
    if least is not None and most is not None and not least.fits_in(most):
        yield "min", f"must not exceed max in either resource: {least} does not fit in {most}"

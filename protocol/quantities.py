"""Kubernetes quantities, exactly: the one module that parses and writes them.

A quantity is a number with a unit suffix ("250m", "1536Mi", "12e6"). Values are kept as whole *nano-units* in an
`int`, so nothing is ever rounded except by the published rules: finer than nano goes up (away from zero),
and binary-suffixed values stop at the largest signed 64-bit number.

`parse` and `Quantity.canonical` follow apimachinery's `resource.Quantity` (golden vectors, op "quantity"). Known and
wanted differences: `value` and `milli_value` are exact beyond 64 bits, where Go wraps; the canonical text is always
written, where Go repeats some texts as it read them; and exponents beyond `MAX_EXPONENT` are refused, because a
short text must not cost unbounded memory.
"""

import enum
import functools
import re
from dataclasses import dataclass

NANO = 10**9
INT64_MAX = 2**63 - 1
MAX_EXPONENT = 400
MAX_TEXT = 512

_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_SUFFIX = {exponent: suffix for suffix, exponent in _BINARY.items()}
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:(?P<suffix>[numkMGTPE]|[KMGTPE]i)|[eE](?P<exponent>[+-]?[0-9]+))?"
)
JSON_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?$"
"""The pattern of a quantity in a JSON Schema."""
_NEARLY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<prefix>[kmgtpe])(?P<binary>i?)b?", re.IGNORECASE)
"""Texts that people write for a quantity of bytes."""


class QuantityError(ValueError):
    """A text is not a Kubernetes quantity. The message names the text and what would be right."""


class Format(enum.Enum):
    """How a quantity is written: the family of its suffix."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount and the family of suffixes it is written with.

    `nanos` is the amount in units of 10^-9. Two quantities are equal when their amounts are, in any format
    ("1Gi" == "1073741824"). Source: seed 004 (`resource.Quantity`).
    """

    nanos: int
    format: Format = Format.DECIMAL_SI

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos

    def __str__(self) -> str:
        return self.canonical()

    def value(self) -> int:
        """The amount in whole units, rounded up."""
        return _ceil_div(self.nanos, NANO)

    def milli_value(self) -> int:
        """The amount in thousandths, rounded up."""
        return _ceil_div(self.nanos, 10**6)

    def exact_value(self) -> int | None:
        """The amount in whole units, or None when it is not whole."""
        whole, rest = divmod(self.nanos, NANO)
        return None if rest else whole

    def exact_milli_value(self) -> int | None:
        """The amount in thousandths, or None when it is finer than that."""
        millis, rest = divmod(self.nanos, 10**6)
        return None if rest else millis

    def canonical(self) -> str:
        """The canonical text: the largest suffix of the format's family that leaves a whole number."""
        return _canonical(self.nanos, self.format)


def from_value(value: int, *, binary: bool = False) -> Quantity:
    """A quantity of `value` whole units; `binary` writes it with Ki, Mi, Gi, … if one fits."""
    return Quantity(value * NANO, Format.BINARY_SI if binary else Format.DECIMAL_SI)


def from_milli(millis: int) -> Quantity:
    """A quantity of `millis` thousandths, e.g. milli-CPU."""
    return Quantity(millis * 10**6)


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> Quantity:
    """Read a quantity as `resource.ParseQuantity` does.

    Raises `QuantityError` for anything else: empty, blanks, unknown suffix, hexadecimal, digit separators.
    """
    if len(text) > MAX_TEXT:
        raise QuantityError(f"quantity of {len(text)} characters is too long (at most {MAX_TEXT})")
    match = _NUMBER.fullmatch(text)
    if match is None or not text or text in {"+", "-", "."}:
        raise QuantityError(
            f"{text!r} is not a quantity: expected a number with an optional suffix "
            f"n, u, m, k, M, G, T, P, E, Ki … Ei or an exponent, such as 250m, 4Gi or 1e3{_hint(text)}"
        )
    digits = match["whole"] + (match["fraction"] or "")
    scale = -len(match["fraction"] or "")
    amount = int(digits or "0")
    sign = -1 if match["sign"] == "-" else 1
    suffix = match["suffix"]
    if suffix in _BINARY:
        return _binary(sign, amount << _BINARY[suffix], scale)
    format_ = Format.DECIMAL_SI
    if match["exponent"] is not None:
        exponent = int(match["exponent"])
        if abs(exponent) > MAX_EXPONENT:
            raise QuantityError(f"{text!r}: the exponent must lie within ±{MAX_EXPONENT}")
        format_, scale = Format.DECIMAL_EXPONENT, scale + exponent
    elif suffix:
        scale += _DECIMAL[suffix]
    return Quantity(sign * _to_nanos(amount, scale), format_)


def _hint(text: str) -> str:
    """The text that was probably meant: for `16GB` it is 16G or 16Gi."""
    nearly = _NEARLY.fullmatch(text)
    if nearly is None:
        return ""
    number, prefix = nearly["number"], nearly["prefix"].upper()
    binary = f"{number}{prefix}i"
    if nearly["binary"]:
        return f"; did you mean {binary}?"
    return f"; did you mean {number}{'k' if prefix == 'K' else prefix} or {binary}?"


def _to_nanos(amount: int, scale: int) -> int:
    """`amount` · 10^`scale` in nano-units; finer amounts go up, so that a little never becomes nothing."""
    shift = scale + 9
    return amount * 10**shift if shift >= 0 else _ceil_div(amount, 10**-shift)


def _binary(sign: int, amount: int, scale: int) -> Quantity:
    nanos = min(_to_nanos(amount, scale), INT64_MAX * NANO)
    # Go writes a binary quantity below one in decimals, which avoids rounding and confusion.
    format_ = Format.DECIMAL_SI if 0 < nanos < NANO else Format.BINARY_SI
    return Quantity(sign * nanos, format_)


@functools.lru_cache(maxsize=4096)
def _canonical(nanos: int, format_: Format) -> str:
    if nanos == 0:
        return "0"
    if format_ is Format.BINARY_SI and nanos % NANO == 0 and abs(nanos) >= 1024 * NANO:
        return _canonical_binary(nanos // NANO)
    exponent = -9
    while nanos % 1000 == 0 and (format_ is Format.DECIMAL_EXPONENT or exponent < 18):
        nanos //= 1000
        exponent += 3
    if format_ is Format.DECIMAL_EXPONENT:
        return f"{nanos}e{exponent}" if exponent else str(nanos)
    return f"{nanos}{_DECIMAL_SUFFIX[exponent]}"


def _canonical_binary(value: int) -> str:
    exponent = 0
    while value % 1024 == 0 and exponent < 60:
        value //= 1024
        exponent += 10
    return f"{value}{_BINARY_SUFFIX.get(exponent, '')}"

"""Settings files: YAML, read safely, checked by a pydantic model; every fault at once with path, value and rule.

The loader refuses duplicate keys (YAML would let the last one win silently), aliases without end, what nests deeper
than `MAX_DEPTH` and files beyond `MAX_FILE_BYTES`.
"""

import gc
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import click
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema
from yaml.constructor import SafeConstructor

from hosting import logs
from protocol import quantities, values

MAX_FILE_BYTES: Final = 4 * 1024 * 1024

MAX_NODES: Final = 2_000_000
MAX_DEPTH: Final = 100
"""Of lists and mappings within each other. No setting lies a tenth as deep."""

if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    # The same loader over libyaml's parser, an order of magnitude faster; PyYAML may be built without it.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

M = TypeVar("M", bound="Settings")


class Settings(BaseModel):
    """Base of all settings: frozen, unknown keys refused, nothing coerced; keys are written in camelCase."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Faults between parts of the raw `data` (a name that is used twice, say), found whatever else is wrong."""
        del data
        return []


class FiniteRange(click.FloatRange):
    """A number of the command line within a range; NaN lies in none, although click lets it through."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails for what is no finite number of the range."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


def daemon(default_port: int) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function the command of a daemon, with what all of them take: version, host, port, log level."""

    def decorate(function: Callable[..., None]) -> click.Command:
        port = click.IntRange(0, 65535)
        for option in (
            click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True),
            click.option(
                "--port", type=port, default=default_port, show_default=True, help="Port; 0: any free."
            ),
            click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
            click.version_option(package_name="parley-autoscaler"),
        ):
            function = option(function)
        context = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        return click.command(context_settings=context)(function)

    return decorate


class SettingsError(Exception):
    """A settings file cannot be used. `faults` are lines for a person, one for each thing that is wrong."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        super().__init__(f"{path}: {count}\n" + "\n".join(f"  {fault}" for fault in faults))


class _Loader(_SafeLoader):
    """A safe loader that keeps note of duplicate keys and refuses what nests too deep."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.duplicates: list[str] = []
        self._depth = 0

    def descend_resolver(self, current_node: yaml.Node | None, current_index: Any) -> None:
        """Called for every value before it is composed, which recurses: in libyaml without regard for the stack."""
        super().descend_resolver(current_node, current_index)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"lists and mappings nest deeper than {MAX_DEPTH}")

    def ascend_resolver(self) -> None:
        """Called for every value after it is composed."""
        super().ascend_resolver()
        self._depth -= 1


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: dict[Hashable, int] = {}
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            continue  # the safe loader refuses it below, with its own message
        line = key_node.start_mark.line + 1
        if key in seen:
            loader.duplicates.append(
                f"line {line}: the key {key!r} was given on line {seen[key]} already; each key may come once"
            )
        seen[key] = line
    return SafeConstructor.construct_mapping(loader, node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class FaultsError(ValueError):
    """Data cannot be used. `faults` are lines with the path of the field, one for each thing that is wrong."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


def check(data: object, model: type[M]) -> M:
    """Check data that was read already, such as a part of a file. Raises `FaultsError` with every fault."""
    faults: list[str] = []
    try:
        read = model.model_validate({} if data is None else data)
    except ValidationError as error:
        faults += [_fault(item) for item in error.errors(include_url=False)]
        faults += model.cross_faults(data)
    else:
        faults += model.cross_faults(data)
        if not faults:
            return read
    raise FaultsError(faults) from None


def load(path: Path, model: type[M]) -> M:
    """Read and check a YAML file. Raises `SettingsError` with every fault."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError(path, [f"cannot be read: {error.strerror}"]) from None
    if len(content) > MAX_FILE_BYTES:
        raise SettingsError(path, [f"is larger than {MAX_FILE_BYTES} bytes"])
    return parse(path, content, model)


def parse(path: Path, content: bytes, model: type[M]) -> M:
    """Check the content of a YAML file. Raises `SettingsError` with every fault."""
    with _without_collections():
        data, faults = _read(path, content)
    return _checked(path, data, faults, model)


def parse_json(path: Path, content: bytes, model: type[M]) -> M:
    """Check JSON that a program has written, such as the body of a request. Raises `SettingsError` with every fault.

    The YAML reader takes most of it, but neither every character nor every escape, and it needs ten times as long.
    """
    faults: list[str] = []

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, count in Counter(key for key, _ in found).items():
            if count > 1:
                faults.append(f"the key {key[:60]!r} was given {count} times; each key may come once")
        return dict(found)

    try:
        data = json.loads(content, object_pairs_hook=pairs) if content.strip() else None
        json.dumps(data, ensure_ascii=False).encode()
    except RecursionError:
        raise SettingsError(path, [f"lists and mappings nest deeper than {MAX_DEPTH}"]) from None
    except UnicodeEncodeError:
        raise SettingsError(path, ["not valid JSON: a text holds half of a character"]) from None
    except ValueError as error:  # of the decoder, or of the characters
        raise SettingsError(path, [f"not valid JSON: {error}"]) from None
    return _checked(path, data, faults, model)


def _checked(path: Path, data: Any, faults: list[str], model: type[M]) -> M:
    try:
        read = check(data, model)
    except FaultsError as error:
        faults += error.faults
    else:
        if not faults:
            return read
    raise SettingsError(path, faults) from None


class _Collector:
    """Who keeps the garbage collector off: files may be read at the same time, and the last one switches it on again."""

    lock = threading.Lock()
    users = 0
    was_enabled = True


@contextmanager
def _without_collections() -> Iterator[None]:
    """Keep the garbage collector off. It would look at all the nodes again and again, in vain, and stop every thread
    meanwhile: for a large file that takes longer than all the rest.
    """
    with _Collector.lock:
        _Collector.users += 1
        if _Collector.users == 1:
            _Collector.was_enabled = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _Collector.lock:
            _Collector.users -= 1
            if not _Collector.users and _Collector.was_enabled:
                gc.enable()


def _read(path: Path, content: bytes) -> tuple[Any, list[str]]:
    """What a YAML file holds, and its duplicate keys as faults. Raises `SettingsError` where it is no YAML."""
    try:
        loader = _Loader(content)
        node = loader.get_single_node()
        _check_size(node)
        data = None if node is None else loader.construct_document(node)
    except (
        yaml.YAMLError,
        RecursionError,
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
    ) as error:
        # PyYAML's constructors raise more than their own errors: `!!bool perhaps` is a KeyError.
        raise SettingsError(path, [_yaml_fault(error, content)]) from None
    return data, loader.duplicates


def _check_size(root: yaml.Node | None) -> None:
    """Refuse what unfolds to more than `MAX_NODES`, counting an alias as all that it stands for."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        sizes[id(node)] = MAX_NODES + 1  # what lies within itself has no end
        below = (
            [part for pair in node.value for part in pair]
            if isinstance(node, yaml.MappingNode)
            else node.value
        )
        count = 1 + sum(map(size, below)) if isinstance(node, yaml.CollectionNode) else 1
        sizes[id(node)] = count
        return count

    if root is not None and size(root) > MAX_NODES:
        raise yaml.YAMLError(f"unfolds to more than {MAX_NODES} values")


def _shown(value: object) -> str:
    """A value for a person; texts and numbers in part, and of anything larger its kind."""
    match value:
        case bool() | float() | None:
            return repr(value)
        case str():
            return repr(value[:60])
        case int() if abs(value) < 10**60:
            return repr(value)
        case int():
            return "a huge number"
        case _:
            return f"a {type(value).__name__}"


def _yaml_fault(error: Exception, content: bytes) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        # A file that ends too early is at fault in its last line; libyaml names the one after that.
        line = min(error.problem_mark.line + 1, max(1, len(content.splitlines())))
        return f"line {line}: not valid YAML: {error.problem}"
    return f"not valid YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


_KINDS: Final = {
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
}


def _fault(item: Any) -> str:
    path = ""
    for part in item["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    match item["type"]:
        case "extra_forbidden":
            return f"{path}: there is no such setting"
        case "model_type" | "dict_type":
            return f"{path or '(file)'}: must be a mapping (found {_shown(item['input'])})"
        case "missing":
            return f"{path}: is required"
        case "list_type" | "string_type" | "int_type" | "float_type" | "float_parsing" | "bool_type" as kind:
            return f"{path}: must be {_KINDS[kind]} (found {_shown(item['input'])})"
        case _:
            value = "" if isinstance(item["input"], dict | list) else f" (found {_shown(item['input'])})"
            return f"{path or '(file)'}: {message}{value}"


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


class _Amount(Settings):
    cpu: Annotated[int, Cpu]
    memory: Annotated[int, Memory]


class _WrittenAsAmount:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def convert(amount: _Amount) -> values.Resources:
            return values.Resources(amount.cpu, amount.memory)

        return core_schema.no_info_after_validator_function(convert, handler(_Amount))


Resources = Annotated[values.Resources, _WrittenAsAmount()]
"""An amount written as `{cpu: 2, memory: 4Gi}`; both are Kubernetes quantities."""

"""Settings files: YAML, read safely, checked by a pydantic model; every fault at once with path, value and rule.

Faults of fields and of rules between fields are reported together: a rule is judged by the fields that are valid by themselves.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from hosting import yaml_reader
from hosting.addresses import checked_advertise
from protocol.texts import counted

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
MAX_NAME: Final = 253

M = TypeVar("M", bound="Settings")

_ABSENT: Final = object()
_RULE: Final = "rule"
"""The type of a fault between fields; its text is the whole message."""


def _path(value: object) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("must be a path")
    return Path(value)


PathSetting = Annotated[Path, BeforeValidator(_path)]
"""A path of a settings file, absolute or below the working directory."""
AdvertiseSetting = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(checked_advertise)]
"""The setting `advertise` of a settings file; `hosting.addresses.advertised` turns it into an address."""


class Settings(BaseModel):
    """Base of all settings: frozen, unknown keys refused, nothing coerced; keys are written in camelCase."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel)

    max_file_bytes: ClassVar[int] = MAX_FILE_BYTES
    """The largest file of these settings."""

    @classmethod
    def rules(cls, found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Faults between the fields of one mapping, each as the path of a field as it is written, and its fault.

        `found` has the fields that are valid by themselves, by their Python names, defaults included; a rule that needs
        another field yields nothing.
        """
        del found
        yield from ()

    @classmethod
    def cross_faults(cls, data: object) -> list[str]:
        """Faults between parts of the raw `data` (such as a name that is used twice), found even if other things are wrong."""
        del data
        return []

    @model_validator(mode="wrap")
    @classmethod
    def _with_rules(cls, data: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        faults: list[InitErrorDetails] = []
        read: Self | None = None
        try:
            read = handler(data)
        except ValidationError as error:
            faults += map(_kept, error.errors(include_url=False))
        if read is not None:
            found: Mapping[str, Any] = read.__dict__
        else:
            found = _right_fields(cls, data) if isinstance(data, dict) else {}
        faults += (_broken(path, text) for path, text in cls.rules(found))
        if read is None or faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return read


def _broken(path: str, text: str) -> InitErrorDetails:
    kind = PydanticCustomError(_RULE, "{text}", {"text": text})
    parts = (int(part) if part.isdecimal() else part for part in path.split(".") if part)
    return InitErrorDetails(type=kind, loc=tuple(parts), input=None)


def _kept(item: ErrorDetails) -> InitErrorDetails:
    """A fault as it was found, to be raised again beside others."""
    context = item.get("ctx", {})
    known: str | PydanticCustomError = item["type"]
    if known not in get_args(ErrorType):
        known = PydanticCustomError(_RULE, "{text}", {"text": item["msg"]})
    return InitErrorDetails(type=known, loc=item["loc"], input=item["input"], ctx=context)


def _or_absent(value: object, handler: ValidatorFunctionWrapHandler) -> object:
    try:
        return handler(value)
    except ValidationError:
        return _ABSENT


@functools.cache
def _tolerant(model: type[Settings]) -> type[BaseModel]:
    """A model with the same fields, in which a field that is wrong or missing is absent."""
    fields: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        default: Any = {"default": _ABSENT} if field.is_required() else {"default_factory": field.get_default}
        if field.default_factory is not None:
            default = {"default_factory": field.default_factory}
        kind: Any = Annotated[field.rebuild_annotation(), WrapValidator(_or_absent)]
        fields[name] = (kind, FieldInfo(validation_alias=field.alias, **default))
    return create_model(f"Tolerant{model.__name__}", __config__=ConfigDict(strict=True), **fields)


def _right_fields(model: type[Settings], data: dict[Any, Any]) -> dict[str, Any]:
    """The fields of a mapping that are valid by themselves, by their Python names."""
    read = _tolerant(model).model_validate(data)
    return {name: value for name, value in read.__dict__.items() if value is not _ABSENT}


MAX_TOLD: Final = 100
"""So many faults are in an error's text."""
MAX_PATH_PART: Final = 100
"""So many characters of a key are in a fault's path."""


class SettingsError(Exception):
    """A settings file cannot be used. `faults` are lines for a person, one for each thing that is wrong; the text has the first of them."""

    def __init__(self, path: Path, faults: list[str]) -> None:
        self.path = path
        self.faults = faults
        count = counted(len(faults), "fault")
        more = [f"and {len(faults) - MAX_TOLD} more"] if len(faults) > MAX_TOLD else []
        told = "\n".join(f"  {fault}" for fault in (*faults[:MAX_TOLD], *more))
        super().__init__(f"{path}: {count}\n{told}")


class FaultsError(ValueError):
    """Data cannot be used. `faults` are lines with the path of the field, one for each thing that is wrong."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))

    def below(self, place: str) -> list[str]:
        """The faults with paths that begin at `place`: the data was a part of something larger."""
        return [
            f"{place}{fault.removeprefix('(file)')}" if fault.startswith("(file)") else f"{place}.{fault}"
            for fault in self.faults
        ]


def check(data: object, model: type[M]) -> M:
    """Check data that was parsed already, such as a part of a file. Raises `FaultsError` with every fault."""
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


def listed(data: object, key: str) -> list[Any]:
    """The list `key` of raw data, for `Settings.cross_faults`; empty if there is none."""
    found = data.get(key) if isinstance(data, Mapping) else None
    return found if isinstance(found, list) else []


def load(path: Path, model: type[M]) -> M:
    """Read and check a YAML file. Raises `SettingsError` with every fault."""
    try:
        with path.open("rb") as file:
            content = file.read(model.max_file_bytes + 1)
    except OSError as error:
        raise SettingsError(path, [f"cannot be read: {error.strerror}"]) from None
    if len(content) > model.max_file_bytes:
        raise SettingsError(path, [f"is larger than {model.max_file_bytes} bytes"])
    return parse(path, content, model)


def parse(path: Path, content: bytes, model: type[M]) -> M:
    """Check the content of a YAML file. Raises `SettingsError` with every fault."""
    try:
        data, faults = yaml_reader.read(content)
    except yaml_reader.NotYamlError as error:
        raise SettingsError(path, [str(error)]) from None
    read = _checked(path, data, faults, model)
    _free(data, read)
    return read


def _free(data: object, read: Settings) -> None:
    """Free the lists of raw data entry by entry, but for any that the settings hold: 100,000 entries at once would stop every thread
    for a tenth of a second."""
    kept = {id(value) for value in vars(read).values()}
    for found in data.values() if isinstance(data, dict) else ():
        while isinstance(found, list) and found and id(found) not in kept:
            found.pop()


def parse_json(path: Path, content: bytes, model: type[M]) -> M:
    """Check JSON that a program has written, such as the body of a request. Raises `SettingsError` with every fault.

    The YAML reader takes most JSON, but neither every character nor every escape, and it needs ten times as long.
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
        raise SettingsError(path, [f"lists and mappings nest deeper than {yaml_reader.MAX_DEPTH}"]) from None
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


_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")
"""Those of a URL, which no message quotes."""


def _shown(value: object) -> str:
    """A value for a person; texts and numbers in part, and of anything larger its kind."""
    match value:
        case bool() | float() | None:
            return repr(value)
        case str():
            return repr(_CREDENTIALS.sub("//…@", value)[:60])
        case int() if abs(value) < 10**60:
            return repr(value)
        case int():
            return "a huge number"
        case _:
            return f"a {type(value).__name__}"


_KINDS: Final = {
    "list_type": "a list",
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
}
_LIMITS: Final = {
    "greater_than": ("gt", "be above {}"),
    "greater_than_equal": ("ge", "be at least {}"),
    "less_than": ("lt", "be below {}"),
    "less_than_equal": ("le", "be at most {}"),
    "string_too_short": ("min_length", "have at least {} characters"),
    "string_too_long": ("max_length", "have at most {} characters"),
    "too_short": ("min_length", "have at least {} entries"),
    "too_long": ("max_length", "have at most {} entries"),
    "string_pattern_mismatch": ("pattern", "match {}"),
}
"""Limits by the type of a fault: the place of the limit in the fault's context, and its wording."""


def _fault(item: ErrorDetails) -> str:
    path = ""
    for part in item["loc"]:
        name = str(part)[:MAX_PATH_PART]
        path += f"[{name}]" if isinstance(part, int) else f".{name}" if path else name
    path = path or "(file)"
    kind, found = item["type"], item["input"]
    shown = f" (found {_shown(found)})"
    if kind == _RULE:
        return f"{path}: {item['msg']}"
    if kind == "extra_forbidden":
        return f"{path}: there is no such setting"
    if kind == "missing":
        return f"{path}: is required"
    if kind in ("model_type", "dict_type"):
        return f"{path}: must be a mapping{shown}"
    if kind in _KINDS:
        is_unquoted = kind == "string_type" and isinstance(found, int | float | date)
        return f"{path}: must be {_KINDS[kind]}{shown}{'; put it in quotes' if is_unquoted else ''}"
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        limit = item.get("ctx", {}).get(key)
        rule = words.format(f"{limit:g}" if isinstance(limit, float) else limit)
        if key == "min_length" and limit == 1:
            rule = "not be empty"
        return f"{path}: must {rule}{f' (found {len(found)})' if isinstance(found, list | dict) else shown}"
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message.replace("Input should be", "must be", 1)
    names_it = isinstance(found, dict | list) or (isinstance(found, str) and message.startswith(repr(found)))
    return f"{path}: {message}{'' if names_it else shown}"


def _name(value: str) -> str:
    if not 1 <= len(value) <= MAX_NAME or not value.isprintable() or set(value) & {"/", " "}:
        raise ValueError(
            f"must be a name of 1 to {MAX_NAME} printable characters without blanks and /, such as db-0"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
"""The name of a node, a namespace, a pod. Kubernetes allows fewer characters; characters that cannot be read are refused."""

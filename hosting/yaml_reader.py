"""YAML as people write it in settings: the safe types, and no text that means something else than it looks like.

Plain files are read right from the parser's events, in a third of the time and an eighth of the memory that PyYAML's graph of nodes takes. What
is out of the ordinary, faults among it, is left to the graph (`_straight`).

The reader refuses duplicate keys (YAML would let the last one win silently), aliases without end, and content that nests deeper than
`MAX_DEPTH`. Of the ways in which YAML 1.1 writes numbers, base 60 (`1:30` for 90) and octal numbers without a letter (`010` for 8) are left
out, as YAML 1.2 does: they are texts here.
"""

import re
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

import yaml
from yaml.constructor import SafeConstructor

from hosting.long_work import without_collections

MAX_NODES: Final = 2_000_000
MAX_DEPTH: Final = 100
"""Of lists and mappings within each other. No setting lies a tenth as deep."""

if TYPE_CHECKING:
    _SafeLoader = yaml.SafeLoader
else:
    # The same loader over libyaml's parser, an order of magnitude faster; PyYAML may be built without it.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
_INT: Final = "tag:yaml.org,2002:int"
_FLOAT: Final = "tag:yaml.org,2002:float"
_WHOLE_NUMBER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0b[0-1_]+|0x[0-9a-fA-F_]+)$")
_NUMBER: Final = re.compile(
    r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class NotYamlError(ValueError):
    """Content is not YAML, or YAML that is refused. The text says why, with the line if that is known."""


class _Loader(_SafeLoader):
    """A safe loader that lists duplicate keys and refuses values that nest too deep."""

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
        if key_node.tag == _MERGE:
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            continue  # the safe loader refuses it below, with its own message
        line = key_node.start_mark.line + 1
        if key in seen:
            loader.duplicates.append(
                f"line {line}: the key {repr(key)[:60]} was given on line {seen[key]} already; each key may come once"
            )
        seen[key] = line
    return SafeConstructor.construct_mapping(loader, node, deep=True)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, {_INT: _WHOLE_NUMBER, _FLOAT: _NUMBER}.get(tag, pattern)) for tag, pattern in resolvers]
    for first, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class _UnusualError(Exception):
    """Content that is left to PyYAML's graph: anchors, tags, merged or repeated keys, lists as keys, many levels."""


def read(content: bytes) -> tuple[Any, list[str]]:
    """The data, and duplicate keys as faults for a person. Raises `NotYamlError`."""
    with without_collections():
        try:
            return _straight(_Loader(content)), []
        except Exception:  # noqa: BLE001, S110 - whatever it is, it is found again below, and told as it should be
            pass
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
            raise NotYamlError(_fault(error, content)) from None
    return data, loader.duplicates


def _straight(loader: Any) -> Any:
    """The data of a plain file, as the graph of nodes would have it. Raises `_UnusualError`, or as PyYAML does."""
    loader.get_event()  # the beginning of the stream
    if isinstance(loader.get_event(), yaml.StreamEndEvent):
        return None
    data = _value(loader, loader.get_event(), {}, 1)
    loader.get_event()  # the end of the document
    if not isinstance(loader.get_event(), yaml.StreamEndEvent):
        raise _UnusualError
    return data


def _value(loader: Any, event: Any, plain: dict[str, Any], depth: int) -> Any:
    """The value that begins with `event`. `plain` are the values of texts without quotes that were read before."""
    if depth > MAX_DEPTH or event.anchor is not None or event.tag is not None:
        raise _UnusualError
    kind = type(event)
    if kind is yaml.ScalarEvent:
        text = event.value
        if not event.implicit[0]:
            return text
        if text not in plain:
            plain[text] = _plain_value(loader, text)
        return plain[text]
    next_event = loader.get_event
    if kind is yaml.SequenceStartEvent:
        items = []
        while type(event := next_event()) is not yaml.SequenceEndEvent:
            items.append(_value(loader, event, plain, depth + 1))
        return items
    found: dict[Hashable, Any] = {}
    while type(event := next_event()) is not yaml.MappingEndEvent:
        if type(event) is not yaml.ScalarEvent:
            raise _UnusualError
        key = _value(loader, event, plain, depth + 1)
        if key in found:
            raise _UnusualError
        found[key] = _value(loader, next_event(), plain, depth + 1)
    return found


def _plain_value(loader: Any, text: str) -> Any:
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    if tag == _TEXT:
        return text
    if tag == _MERGE:
        raise _UnusualError
    return loader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, text))


def _fault(error: Exception, content: bytes) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        # A file that ends too early is at fault in its last line; libyaml names the one after that.
        line = min(error.problem_mark.line + 1, max(1, len(content.splitlines())))
        return f"line {line}: not valid YAML: {error.problem}"
    return f"not valid YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def _check_size(root: yaml.Node | None) -> None:
    """Refuse YAML that unfolds to more than `MAX_NODES`; an alias counts as all that it stands for."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known is not None:
            return known
        sizes[id(node)] = MAX_NODES + 1  # a node that lies within itself has no end
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

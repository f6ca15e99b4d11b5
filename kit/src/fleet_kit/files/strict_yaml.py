"""Reads untrusted YAML limited to JSON's data model: one document of plain values with line numbers."""

import math
import re
from collections.abc import Sequence
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

# The parser in C, where the platform has it.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_MOST_LEVELS = 32
# No sensible number is longer, and the cost of a conversion grows faster than the length.
_LONGEST_NUMBER = 100
_LONGEST_SHOWN = 60

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_CORE_TAGS = {f"tag:yaml.org,2002:{kind}": kind for kind in ("null", "bool", "int", "float")}
_TEXT_TAG = "tag:yaml.org,2002:str"

Path = Sequence[str | int]


class BadYaml(ValueError):
    """The text is not accepted; the message gives the reason, `line` the place."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


class YamlDocument:
    """A parsed document: its value, and the line of each part."""

    def __init__(self, root: Node, value: Any) -> None:
        self._root = root
        self.value = value

    def line_of(self, path: Path) -> int:
        """The line of a key or an item; if it does not exist, the line of the nearest parent."""
        return _line(self._find(path)[0])

    def line_in_text(self, path: Path, offset: int) -> int:
        """The line of a character of a text value: exact in a block (`|`), else where the value begins."""
        place, node = self._find(path)
        if isinstance(node, ScalarNode) and node.style == "|":
            return _line(node) + 1 + str(node.value).count("\n", 0, offset)
        return _line(place)

    def _find(self, path: Path) -> tuple[Node, Node]:
        """The node that marks the place (a key), and the node of its value."""
        place = node = self._root
        for part in path:
            found = _child(node, part)
            if found is None:
                break
            place, node = found
        return place, node


def read_yaml(text: str) -> YamlDocument:
    """Parse a document. BadYaml also for YAML features that plain data does not need.

    These are anchors and aliases (a short text may expand to a huge value), tags, several documents, keys that are no
    strings or occur twice, deep nesting, numbers that JSON does not have. A date is a string, as in JSON.
    """
    if found := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise BadYaml(f"the character U+{ord(found[0]):04X} is not allowed", line)
    try:
        _check_events(text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # An error at the end of the text is reported for the last line, not for one after it.
        line = min(mark.line, text.rstrip().count("\n")) + 1 if mark else 1
        raise BadYaml(error.problem or "not valid YAML", line) from error
    except yaml.YAMLError as error:
        raise BadYaml(f"not valid YAML: {error}", 1) from error
    if root is None:
        raise BadYaml("the document is empty", 1)
    return YamlDocument(root, _plain(root, ()))


def shown_path(path: Path) -> str:
    """The path as text, such as `tasks.fetch.outputs[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{shorten(part)}" for part in path).lstrip(".")


def shorten(text: str) -> str:
    """Untrusted text, cut to fit into a message."""
    return printable(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")


def printable(text: str) -> str:
    """Escape control characters: a terminal would execute some of them."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def _check_events(text: str) -> None:
    """Check the parser's events before nodes are built from them."""
    levels = documents = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise BadYaml("there is more than one document", line)
        elif isinstance(event, yaml.CollectionEndEvent):
            levels -= 1
        elif isinstance(event, yaml.AliasEvent):
            raise BadYaml(f'aliases such as "*{shorten(str(event.anchor))}" are not allowed', line)
        elif isinstance(event, yaml.NodeEvent):
            if event.anchor is not None:
                raise BadYaml(f'anchors such as "&{shorten(str(event.anchor))}" are not allowed', line)
            if (tag := getattr(event, "tag", None)) is not None:
                raise BadYaml(f'tags such as "{shorten(tag)}" are not allowed', line)
            if isinstance(event, yaml.CollectionStartEvent):
                levels += 1
                if levels > _MOST_LEVELS:
                    raise BadYaml(f"nested deeper than {_MOST_LEVELS} levels", line)


def _plain(node: Node, path: tuple[str | int, ...]) -> Any:
    """The value of a node. `_check_events` has bounded the depth of the recursion."""
    if isinstance(node, MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _key(key_node, path)
            if key in mapping:
                raise BadYaml(f'the key "{shorten(key)}" occurs twice{_inside(path)}', _line(key_node))
            mapping[key] = _plain(value_node, (*path, key))
        return mapping
    if isinstance(node, SequenceNode):
        return [_plain(item, (*path, index)) for index, item in enumerate(node.value)]
    return _scalar(node, path)


def _key(node: Node, path: Path) -> str:
    if not isinstance(node, ScalarNode) or node.tag != _TEXT_TAG:
        shown = f'"{shorten(str(node.value))}" ' if isinstance(node, ScalarNode) else ""
        raise BadYaml(f"the key {shown}is no text{_inside(path)}; put it in quotes", _line(node))
    key = _text(node)
    if found := _CONTROL.search(key):
        # Written as an escape such as "\\e".
        reason = f'the character U+{ord(found[0]):04X} is not allowed in the key "{shorten(key)}"{_inside(path)}'
        raise BadYaml(reason, _line(node))
    return key


def _scalar(node: Node, path: Path) -> Any:
    kind = _CORE_TAGS.get(node.tag)
    if kind is None:
        return _text(node)
    try:
        if len(node.value) > _LONGEST_NUMBER:
            raise ValueError("too long")
        value = SafeConstructor().construct_object(node)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError("not finite")
    except ValueError as error:
        shown = shorten(str(node.value))
        raise BadYaml(f'"{shown}"{_inside(path)} is not a usable number; put it in quotes', _line(node)) from error
    return value


def _text(node: Node) -> str:
    text = str(node.value)
    if _SURROGATE.search(text):
        raise BadYaml("half of a surrogate pair is no text", _line(node))
    return text


def _child(node: Node, part: str | int) -> tuple[Node, Node] | None:
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == part), None)
    if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _inside(path: Path) -> str:
    return f" in {shown_path(path)}" if path else ""

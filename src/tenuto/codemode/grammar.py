"""The grammars of JavaScript and TypeScript, loaded without what their packages load besides.

The packages of tree-sitter import `typing` and `importlib.resources` for things not needed here, which
takes five times as long as the parsers themselves. Only their extension modules are loaded.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tree_sitter import Node, Parser, Tree, TreeCursor

_PACKAGES = {
    "js": ("tree_sitter_javascript", "language"),
    "ts": ("tree_sitter_typescript", "language_typescript"),
}
FUNCTIONS = frozenset(  # what has an `await`, a `return` and a `var` of its own
    [
        "function_declaration",
        "function_expression",
        "function",
        "generator_function_declaration",
        "generator_function",
        "arrow_function",
        "method_definition",
        "class_static_block",
        "function_signature",
        "internal_module",
        "module",
        "ambient_declaration",
    ]
)
_parsers: dict[str, Parser] = {}


class BadSourceError(Exception):
    """The source cannot run here: what, where (from 1), and what to do instead."""

    def __init__(self, message: str, place: tuple[int, int]) -> None:
        super().__init__(message)
        self.line, self.column = place


class UnreadableError(BadSourceError):
    """The source cannot even be parsed."""


def _extension(package: str) -> Any:
    name = f"{package}._binding"
    if name in sys.modules:
        return sys.modules[name]
    found = PathFinder.find_spec(package)
    places = found.submodule_search_locations if found else None
    spec = PathFinder.find_spec(name, places) if places else None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    module = spec.loader.create_module(spec)
    if module is None:
        raise ImportError(f"{name} is no extension module", name=name)
    module.__spec__ = spec
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def parser(language: str) -> Parser:
    """Return the parser of "js" or "ts"; the first call loads it."""
    if language not in _parsers:
        package, function = _PACKAGES[language]
        sitter = _extension("tree_sitter")
        grammar = sitter.Language(getattr(_extension(package), function)())
        _parsers[language] = sitter.Parser(grammar)
    return _parsers[language]


def parse(source: bytes, language: str) -> Tree:
    """Parse the source; the tree marks what is wrong in it."""
    return parser(language).parse(source)


def children(node: Node) -> Iterator[Node]:
    """Go through a node's children; `node.children` would make them all at once."""
    cursor = node.walk()
    found = cursor.goto_first_child()
    while found:
        child = cursor.node
        if child is not None:
            yield child
        found = cursor.goto_next_sibling()


def inner(node: Node) -> Node | None:
    """Return the first child that is more than punctuation: the expression of a statement."""
    return node.named_child(0) if node.named_child_count else None


def last_part(node: Node) -> Node:
    """Return the last child that is no comment: those before an end of line count to a statement."""
    cursor = node.walk()
    found = cursor.goto_last_child()
    while found and (child := cursor.node) is not None:
        if child.type != "comment":
            return child
        found = cursor.goto_previous_sibling()
    return node


def leave(cursor: TreeCursor) -> bool:
    """Move to what follows the whole node the cursor is on; False at the end of the tree."""
    while not cursor.goto_next_sibling():
        if not cursor.goto_parent():
            return False
    return True


def first_error(root: Node) -> tuple[int, int]:
    """Return line and column (from 1) of the first place that the grammar does not allow."""
    cursor = root.walk()
    place = root.start_point
    while (node := cursor.node) is not None:
        if node.is_error or node.is_missing:
            place = node.start_point
            break
        if not (node.has_error and cursor.goto_first_child()) and not leave(cursor):
            break
    return place[0] + 1, place[1] + 1


def place_of(node: Node) -> tuple[int, int]:
    """Return line and column of a node, from 1."""
    row, column = node.start_point
    return row + 1, column + 1


def outside_functions(root: Node, source: bytes, word: bytes) -> Iterator[tuple[Node, Node, Node]]:
    """Go through a keyword's places outside of every function, each with the two nodes around it.

    Down the tree from where the word stands in the text: what is large is mostly not on the way.
    """
    kind = word.decode()
    at = source.find(word)
    while at >= 0:
        cursor = root.walk()
        around, within = root, root
        after = at + len(word)
        while cursor.goto_first_child_for_byte(at) is not None:
            node = cursor.node
            if node is None or node.start_byte > at:
                break
            if node.end_byte == after and (node.type == kind or _awaits(node, within, kind)):
                yield around, within, node
                break
            if node.type in FUNCTIONS and not _in_key(node, at):
                after = node.end_byte
                break
            around, within = within, node
        at = source.find(word, after)


def _awaits(node: Node, around: Node, kind: str) -> bool:
    """Tell `await (x)`, `await [x]` and a template after it, which read like a function's name."""
    named = kind == "await" and node.type == "identifier"
    return (
        named
        and around.type in ("call_expression", "subscript_expression")
        and around.start_byte == node.start_byte
    )


def _in_key(node: Node, at: int) -> bool:
    """Tell whether a place is in a method's computed name, which belongs to what is around it."""
    name = node.child_by_field_name("name")
    return name is not None and name.start_byte <= at < name.end_byte

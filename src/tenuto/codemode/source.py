"""Prepares JavaScript and TypeScript for an engine that evaluates plain scripts.

Nothing here runs any of the source, and every line keeps its number. A script that awaits nothing at its
top level stays what it is, and its value is its completion value. One that awaits or returns there
becomes the body of an async function, which returns the value of its last statement if that is an
expression (an `if`, a loop or a block at the end has no value then). In a session, what is declared at
the top level becomes a global that later sources see and may declare again; that a `const` cannot be
assigned to is for whoever runs it to see to.
"""

from __future__ import annotations

from tenuto.codemode import bindings, grammar
from tenuto.codemode.edits import CLOSE, OPEN, Edits, decode, encode
from tenuto.codemode.grammar import (
    BadSourceError,
    UnreadableError,
    outside_functions,
    place_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tree_sitter import Node

_HEAD = "(async()=>{"
_TAIL = "\n})()"
_STRICT = '"use strict";'
MODULE_VALUE = "$tenuto"
_READINGS = 10
_UNREADABLE = (
    "this is no TypeScript that can be read here. If it is right, run it with --engine deno."
)
_NO_SCRIPT = "this is no JavaScript"
_WORDS = (b"await", b"return", b"import", b"export")
_SILENT = frozenset(  # statements without a value that do nothing where they stand
    [
        "comment",
        "html_comment",
        "empty_statement",
        "function_declaration",
        "generator_function_declaration",
        "function_signature",
        "interface_declaration",
        "type_alias_declaration",
        "ambient_declaration",
    ]
)


class Prepared:
    """What to evaluate: a script whose value is the source's value, or a promise of it."""

    def __init__(self, text: str, is_async: bool, names: list[str], edits: Edits | None) -> None:
        self.text = text
        self.is_async = is_async
        self.names = names  # declared at the top level; of a session only
        self.constants: list[str] = []  # those of them that are `const`
        self._edits = edits

    @property
    def moves(self) -> list[tuple[int, int, int]]:
        """Where in the text something was put for something: place, and length before and after."""
        return [] if self._edits is None else self._edits.moves

    def column(self, line: int, column: int) -> int:
        """Return the column of the source for a place in the text (all from 1); lines are the same."""
        if self._edits is None:
            return column
        return self._edits.column(self.text, line, column)


def prepare(code: str, language: str = "js", session: bool = False) -> Prepared:
    """Prepare "js" or "ts"; raises BadSourceError for what cannot be run here at all.

    A JavaScript source with a mistake in it is left as it is, for the engine to report it.
    """
    code = code.removeprefix("\ufeff")
    source = encode(code)
    if language == "js" and not session and not any(word in source for word in _WORDS):
        return Prepared(code, False, [], None)
    root, edits, is_async = _read(source, language, session)
    if root.has_error:
        return _plain(edits, is_async)
    names: list[str] = []
    constants: list[str] = []
    head = _export(root, edits, is_async) if b"port" in source else ""
    if is_async:
        _return_last(root, edits)
    if session:
        names, constants, inside = bindings.share(root, edits, is_async)
        head += inside
    prepared = _plain(edits, is_async, head, names)
    prepared.constants = constants
    return prepared


def prepare_function(code: str, language: str, parameters: str) -> str:
    """Return an expression: an async function of these parameters that does what the source does."""
    root, edits, _ = _read(encode(code.removeprefix("\ufeff")), language, False)
    head = ""
    if not root.has_error:
        head = _export(root, edits, True) if b"port" in edits.source else ""
        _return_last(root, edits)
    return f"({parameters})=>{_plain(edits, True, head).text}"


def check(code: str, language: str) -> None:
    """Raise BadSourceError for a source that cannot be parsed or needs modules: no engine runs it.

    What only one of the engines takes is left to be said when it runs.
    """
    source = encode(code.removeprefix("\ufeff"))
    try:
        root, edits, _ = _read(source, language, False)
        if root.has_error:
            raise UnreadableError(_NO_SCRIPT, grammar.first_error(root))
    except UnreadableError as error:
        line = source.split(b"\n")[error.line - 1][: error.column - 1]
        raise UnreadableError(
            str(error), (error.line, len(line.decode("utf-8", "replace")) + 1)
        ) from None
    except BadSourceError:
        return
    _export(root, edits, True)


def prepare_module(code: str) -> Prepared:
    """Prepare TypeScript for an engine that reads it itself, as a module.

    Its value is exported under the name MODULE_VALUE. It awaits what it likes, and cannot return.
    What the grammar cannot read is left as it is, and has no value.
    """
    source = encode(code.removeprefix("\ufeff"))
    root = grammar.parse(source, "ts").root_node
    edits = Edits(source)
    last = last_statement(root)
    for node in grammar.children(root):
        if node.type == "import_statement" and not any(c.type == "type" for c in node.children):
            raise _no_modules(node)
        if node.type == "export_statement" and any(c.type == "default" for c in node.children):
            last = None
    if not root.has_error and last is not None and last.type == "expression_statement":
        expression = grammar.inner(last)
        if expression is not None and expression.type != "internal_module":
            edits.insert(last.start_byte, f";export const {MODULE_VALUE} = (", OPEN)
            edits.insert(expression.end_byte, ")", CLOSE)
    return Prepared(edits.apply(), True, [], edits)


def _read(source: bytes, language: str, session: bool) -> tuple[Node, Edits, bool]:
    """Parse the source; if it is TypeScript, without its types."""
    if language == "js":
        root = grammar.parse(source, language).root_node
        return root, Edits(source), _steps_out(root, source)

    from tenuto.codemode import typescript

    failed: BadSourceError | None = None
    for _ in range(_READINGS):
        root = grammar.parse(source, language).root_node
        edits = Edits(source)
        is_async = _steps_out(root, source)
        if not root.has_error:
            ends = typescript.strip(root, edits, bare=session and is_async)
            if not ends:
                return root, edits, is_async
        else:
            ends = [] if failed else typescript.likely_ends(source)
            failed = failed or _unreadable(root)
            if not ends:
                raise failed
        edits = Edits(source)
        for end in ends:
            edits.insert(end, ";", CLOSE)
        source = encode(edits.apply())
    raise failed or UnreadableError(_UNREADABLE, (1, 1))


def _plain(
    edits: Edits, is_async: bool, head: str = "", names: list[str] | None = None
) -> Prepared:
    if not is_async:
        if head:
            edits.insert(0, head, CLOSE)
        return Prepared(edits.apply(), False, names or [], edits)
    if edits.source.startswith(b"#!"):
        edits.replace(0, 2, "//")
    declared = f"var {','.join(names)};" if names else ""
    edits.insert(0, declared + _HEAD + head, CLOSE)
    edits.insert(len(edits.source), _TAIL, OPEN)
    return Prepared(edits.apply(), True, names or [], edits)


def _steps_out(root: Node, source: bytes) -> bool:
    """Tell whether the source awaits or returns outside of every function."""
    words = (b"await", b"return")
    return any(next(outside_functions(root, source, word), None) for word in words)


def _export(root: Node, edits: Edits, is_async: bool) -> str:
    """Drop `export`, refuse `import`; return what makes the source strict if it was a module."""
    module = False
    last = last_statement(root)
    for node in grammar.children(root):
        if node.type == "import_statement":
            if any(child.type == "type" for child in node.children):
                continue  # blanked with the other types
            raise _no_modules(node)
        if node.type != "export_statement":
            continue
        module = True
        if node.child_by_field_name("source"):
            raise _no_modules(node)
        declaration = node.child_by_field_name("declaration")
        value = node.child_by_field_name("value")
        if declaration is not None:
            edits.blank(node.start_byte, declaration.start_byte)
        elif value is not None:
            edits.blank(node.start_byte, value.start_byte, ";")
            edits.insert(value.start_byte, "return (" if is_async and node == last else "(", OPEN)
            edits.insert(value.end_byte, ")", CLOSE)
        else:
            edits.blank(node.start_byte, node.end_byte, ";")
    return _STRICT if module else ""


def last_statement(root: Node) -> Node | None:
    """Return the last statement that does something where it stands."""
    cursor = root.walk()
    if not cursor.goto_last_child():
        return None
    while (node := cursor.node) is not None:
        if node.type not in _SILENT:
            return node
        if not cursor.goto_previous_sibling():
            break
    return None


def _return_last(root: Node, edits: Edits) -> None:
    """Return the last expression."""
    last = last_statement(root)
    if last is None or last.type != "expression_statement":
        return
    expression = grammar.inner(last)
    if expression is None or expression.type == "internal_module":
        return
    edits.insert(last.start_byte, "return (", OPEN)
    edits.insert(expression.end_byte, ")", CLOSE)


def _no_modules(node: Node) -> BadSourceError:
    source = node.child_by_field_name("source")
    name = f" of {decode(source.text or b'')}" if source is not None else ""
    return BadSourceError(
        f"import{name} is not possible: there are no modules here, only what the code was given "
        "(inputs and functions). Packages are there with --lang node, outside of the VM.",
        place_of(node),
    )


def _unreadable(root: Node) -> UnreadableError:
    return UnreadableError(_UNREADABLE, grammar.first_error(root))

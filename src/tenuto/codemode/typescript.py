"""Takes the types out of TypeScript: spaces in their place, so that lines and columns stay.

What is more than types, and has a plain meaning, is written as JavaScript: enums and parameter
properties. Namespaces with values and decorators are refused; the deno engine knows them.
"""

from __future__ import annotations

import re

from tenuto.codemode import enums
from tenuto.codemode.edits import CLOSE, OPEN, SEMICOLON, Edits, decode
from tenuto.codemode.grammar import BadSourceError, children, inner, last_part, leave, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

# Nothing of these is left, and they are no statements.
_TYPES = frozenset(
    [
        "type_annotation",
        "type_predicate_annotation",
        "asserts_annotation",
        "type_parameters",
        "type_arguments",
        "implements_clause",
    ]
)
# Statements and members of which nothing is left but a semicolon, which keeps the neighbours apart.
_DECLARATIONS = frozenset(
    [
        "interface_declaration",
        "type_alias_declaration",
        "ambient_declaration",
        "function_signature",
        "method_signature",
        "abstract_method_signature",
        "index_signature",
    ]
)
# What ends with a line when no semicolon does it: it needs one if its end is blanked.
_ENDED_BY_LINE = frozenset(
    [
        "expression_statement",
        "lexical_declaration",
        "variable_declaration",
        "return_statement",
        "throw_statement",
        "export_statement",
        "public_field_definition",
    ]
)
_MODIFIERS = frozenset(
    ["accessibility_modifier", "override_modifier", "readonly", "abstract", "declare"]
)
_TYPE_ONLY = _DECLARATIONS | {"comment", "{", "}", ";", "empty_statement"}
_BETWEEN = re.compile(rb"(?:\s|//[^\n]*|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*")
_BEFORE_BRACKET = re.compile(rb"(?<=[\w\])}>'\"`])[ \t]*\r?\n\s*[\[(`]")
_CAST = re.compile(rb"\b(?:as|satisfies)\b")
_SEE_DENO = "run it with --engine deno, which knows all of TypeScript."


def strip(root: Node, edits: Edits, bare: bool = False) -> list[int]:
    """Blank what is only type. `bare`: enums of the top level are assigned, not declared.

    Return where a statement ends that the grammar reads on: with a semicolon there, it is to be read
    again, and nothing of what was done is right.
    """
    stripper = _Stripper(edits, bare)
    stripper.walk(root)
    return stripper.misread


class _Stripper:
    def __init__(self, edits: Edits, bare: bool) -> None:
        self._edits = edits
        self._enums = enums.Enums(edits, bare)
        self._blank_ends: set[int] = set()
        self._line_ends: set[int] = set()
        self.misread: list[int] = []
        self._handlers: dict[str, Callable[[Node], bool | None]] = {
            **dict.fromkeys(_TYPES, self._type),
            **dict.fromkeys(_DECLARATIONS, self._declaration),
            "as_expression": self._cast,
            "satisfies_expression": self._cast,
            "non_null_expression": self._cast,
            "binary_expression": self._comparison,
            "type_assertion": self._assertion,
            "arrow_function": self._arrow,
            "required_parameter": self._parameter,
            "optional_parameter": self._parameter,
            "variable_declarator": self._declarator,
            "public_field_definition": self._field,
            "method_definition": self._method,
            "abstract_class_declaration": self._abstract_class,
            "enum_declaration": self._enums.rewrite,
            "import_statement": self._import,
            "export_statement": self._export,
            "internal_module": self._namespace,
            "module": self._namespace,
            "decorator": self._decorator,
            "import_alias": self._alias,
        }

    def walk(self, root: Node) -> None:
        """Go through the tree; a handler that returns True has done what is below its node."""
        cursor = root.walk()
        handlers = self._handlers
        going = True
        while going and (node := cursor.node) is not None:
            kind = node.type
            if kind in _ENDED_BY_LINE and (last := last_part(node)).type != ";":
                self._line_ends.add(last.end_byte)
            handler = handlers.get(kind)
            done = handler is not None and handler(node)
            going = (not done and cursor.goto_first_child()) or leave(cursor)
        for end in self._blank_ends & self._line_ends:
            self._edits.insert(end, ";", SEMICOLON)

    def _blank(self, start: int, end: int, first: str = "") -> None:
        self._edits.blank(start, end, first)
        self._blank_ends.add(end)

    def _type(self, node: Node) -> bool:
        self._blank(node.start_byte, node.end_byte)
        return True

    def _declaration(self, node: Node) -> bool:
        self._blank(node.start_byte, node.end_byte, ";")
        return True

    def _cast(self, node: Node) -> None:
        """Keep what `as T`, `satisfies T` and `!` follow.

        The grammar reads on where TypeScript does not: a line that begins with `(` or `[` after a
        type is a new statement.
        """
        kept, last = node.children[0], node.children[-1]
        if last.type == "!":
            self._blank(kept.end_byte, node.end_byte)
            return
        end = _end_of_type(last, self._edits)
        self._blank(kept.end_byte, end)
        if end < node.end_byte or _called_next_line(self._edits.source, end):
            self.misread.append(end)

    def _comparison(self, node: Node) -> None:
        """Read a<T>`text` as what it is: the grammar takes it for two comparisons."""
        left, right = node.children[0], node.children[-1]
        if right.type == "template_string" and left.type == "binary_expression":
            function, operators = left.children[0], (left.children[1], node.children[1])
            if [operator.type for operator in operators] == ["<", ">"]:
                self._blank(function.end_byte, operators[1].end_byte)

    def _assertion(self, node: Node) -> None:
        """Keep what follows `<T>`; in parentheses if another line would begin between."""
        types, value = node.children[0], node.children[-1]
        if self._edits.has_line_end(types.start_byte, value.start_byte):
            self._edits.insert(types.start_byte, "(", OPEN)
            self._edits.insert(node.end_byte, ")", CLOSE)

    def _arrow(self, node: Node) -> None:
        """No line may end before the arrow, after `async`, or after a `return` before the function."""
        edits = self._edits
        generic = node.child_by_field_name("type_parameters")
        parameters = node.child_by_field_name("parameters")
        if parameters is None:
            return
        if generic is not None and edits.has_line_end(generic.start_byte, parameters.start_byte):
            if node.children[0].type == "async":
                edits.insert(generic.start_byte, "(", OPEN)
                edits.blank(parameters.start_byte, parameters.start_byte + 1)
            else:
                edits.insert(generic.start_byte, "(", OPEN)
                edits.insert(node.end_byte, ")", CLOSE)
        arrow = next(child for child in node.children if child.type == "=>")
        if node.child_by_field_name("return_type") and edits.has_line_end(
            parameters.end_byte, arrow.start_byte
        ):
            edits.blank(parameters.end_byte - 1, arrow.start_byte)
            edits.insert(arrow.start_byte, ")", CLOSE)

    def _parameter(self, node: Node) -> bool | None:
        pattern = node.child_by_field_name("pattern")
        if pattern is not None and pattern.type == "this":
            following = node.next_sibling
            comma = following is not None and following.type == ","
            self._blank(
                node.start_byte, following.end_byte if following and comma else node.end_byte
            )
            return True
        self._tokens(node, "")
        return None

    def _tokens(self, node: Node, first: str) -> None:
        """Blank modifiers and marks. `first` takes the place of one that begins a member: what
        follows may be `[` or `*`, and must not go on with the member before."""
        for child in children(node):
            if child.type in _MODIFIERS:
                at_start = child.start_byte == node.start_byte
                self._blank(child.start_byte, child.end_byte, first if at_start else "")
            elif child.type in ("?", "!"):
                self._blank(child.start_byte, child.end_byte)

    def _declarator(self, node: Node) -> None:
        for child in children(node):
            if child.type == "!":
                self._blank(child.start_byte, child.end_byte)

    def _field(self, node: Node) -> bool | None:
        if any(child.type in ("declare", "abstract") for child in node.children):
            self._blank(node.start_byte, node.end_byte, ";")
            return True
        self._tokens(node, ";")
        return None

    def _method(self, node: Node) -> None:
        self._tokens(node, ";")
        parameters = node.child_by_field_name("parameters")
        body = node.child_by_field_name("body")
        name = node.child_by_field_name("name")
        if parameters is None or body is None or name is None or name.text != b"constructor":
            return
        names: list[str] = []
        for parameter in parameters.named_children:
            pattern = parameter.child_by_field_name("pattern")
            if pattern is not None and any(c.type in _MODIFIERS for c in parameter.children):
                names.append(decode(pattern.text or b""))
        if names:
            text = ";" + "".join(f"this.{name}={name};" for name in names)
            self._edits.insert(_after_super(body), text, SEMICOLON)

    def _abstract_class(self, node: Node) -> None:
        for child in children(node):
            if child.type == "abstract":
                self._blank(child.start_byte, child.end_byte)

    def _import(self, node: Node) -> bool | None:
        kinds = [child.type for child in node.children]
        if "import_require_clause" in kinds:
            return self._alias(node)
        if "type" not in kinds:
            return None  # refused with the modules
        self._blank(node.start_byte, node.end_byte, ";")
        return True

    def _export(self, node: Node) -> bool | None:
        declaration = node.child_by_field_name("declaration")
        kinds = [child.type for child in node.children]
        if "type" in kinds or (declaration is not None and declaration.type in _DECLARATIONS):
            self._blank(node.start_byte, node.end_byte, ";")
            return True
        if "=" in kinds or "namespace" in kinds:
            raise BadSourceError(
                "`export =` and `export as` need modules: " + _SEE_DENO, place_of(node)
            )
        return None

    def _namespace(self, node: Node) -> bool:
        body = node.child_by_field_name("body")
        for child in [] if body is None else body.children:
            declaration = child.child_by_field_name("declaration") or child
            if declaration.type not in _TYPE_ONLY:
                message = "a namespace with values in it is not possible here: "
                raise BadSourceError(message + _SEE_DENO, place_of(node))
        self._blank(node.start_byte, node.end_byte, ";")
        return True

    def _decorator(self, node: Node) -> bool:
        raise BadSourceError("decorators are not possible here: " + _SEE_DENO, place_of(node))

    def _alias(self, node: Node) -> bool:
        raise BadSourceError("`import … =` is not possible here: " + _SEE_DENO, place_of(node))


def _after_super(body: Node) -> int:
    """Return where a constructor has its `this`: after `super(…)`, or at its beginning."""
    for statement in children(body):
        call = inner(statement)
        if statement.type == "expression_statement" and call and call.type == "call_expression":
            function = call.child_by_field_name("function")
            if function is not None and function.type == "super":
                return statement.end_byte
    return body.start_byte + 1


def _end_of_type(node: Node, edits: Edits) -> int:
    """Return where a type ends at the latest: before a line that begins with a bracket."""
    end = node.end_byte
    while node.type in ("lookup_type", "array_type"):
        of, bracket = node.children[0], node.children[1]
        if edits.has_line_end(of.end_byte, bracket.start_byte):
            end = of.end_byte
        node = of
    return end


def _called_next_line(source: bytes, end: int) -> bool:
    between = _BETWEEN.match(source, end)
    start = between.end() if between else end
    return source[start : start + 1] == b"(" and b"\n" in source[end:start]


def likely_ends(source: bytes) -> list[int]:
    """Return where statements may end in a source that the grammar cannot read: see `_cast`."""
    starts = (found.start() for found in _BEFORE_BRACKET.finditer(source))
    return [at for at in starts if _CAST.search(source, max(source.rfind(b"\n", 0, at), 0), at)]

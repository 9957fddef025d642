"""Makes what a session's source declares at its top level globals, which later sources see.

In a plain script `var` does that, and functions are globals as they are. The body of an async function
keeps its declarations to itself: there they become assignments to globals that are declared before it,
and functions, which are there from the first line on, are assigned at its beginning.
"""

from __future__ import annotations

from tenuto.codemode.edits import CLOSE, INNER, OPEN, SEMICOLON, Edits, decode
from tenuto.codemode.grammar import children, inner, last_part, outside_functions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

_CLASSES = ("class_declaration", "abstract_class_declaration")
_FUNCTIONS = ("function_declaration", "generator_function_declaration")
_LISTS = ("program", "statement_block", "switch_case", "switch_default", "export_statement")
_NAMES = ("identifier", "shorthand_property_identifier_pattern")


class _Declared:
    """What stands at the top level, by kind."""

    def __init__(self, root: Node, source: bytes) -> None:
        self.lexical: list[Node] = []  # let and const
        self.classes: list[Node] = []
        self.functions: list[Node] = []
        self.enums: list[Node] = []
        self.vars = list(outside_functions(root, source, b"var"))
        self.strict = _is_strict(root)
        for node in children(root):
            declaration = node.child_by_field_name("declaration") or node
            kind = declaration.type
            if kind == "lexical_declaration":
                self.lexical.append(declaration)
            elif kind in _CLASSES:
                self.classes.append(declaration)
            elif kind in _FUNCTIONS:
                self.functions.append(declaration)
            elif kind == "enum_declaration":
                self.enums.append(declaration)


def _is_strict(root: Node) -> bool:
    for node in children(root):
        if node.type in ("comment", "hash_bang_line"):
            continue
        string = inner(node)
        if node.type != "expression_statement" or string is None or string.type != "string":
            return False
        if (string.text or b"")[1:-1] == b"use strict":
            return True
    return False


def share(root: Node, edits: Edits, is_async: bool) -> tuple[list[str], list[str], str]:
    """Rewrite the declarations; return all names, those of constants, and the async function's head."""
    found = _Declared(root, edits.source)
    lexical = [name for node in found.lexical for name in _names(node)]
    lexical += [_name(node) for node in found.classes]
    others = [name for _, node, _ in found.vars for name in _names(node)]
    others += [_name(node) for node in (*found.functions, *found.enums)]
    if len({*lexical}) < len(lexical) or not {*lexical}.isdisjoint(others):
        return [], [], ""  # declared twice: left as it is, for the engine to say so
    _rewrite_lexical(found, edits, is_async)
    _rewrite_classes(found, edits, is_async)
    head = ""
    if is_async:
        _rewrite_vars(found, edits)
        head = '"use strict";' if found.strict else ""
        head += _hoist(found, edits)
    fixed = [node for node in found.lexical if node.children[0].type == "const"]
    constants = [name for node in fixed for name in _names(node)]
    return list(dict.fromkeys([*lexical, *others])), constants, head


def _name(node: Node) -> str:
    name = node.child_by_field_name("name")
    return decode(name.text or b"") if name is not None else ""


def _names(declaration: Node) -> Iterator[str]:
    """Go through the names that a declaration (or the head of a for-in loop) binds."""
    stack: list[Node] = []
    left = declaration.child_by_field_name("left")
    if declaration.type == "for_in_statement" and left is not None:
        stack.append(left)
    else:
        for child in children(declaration):
            name = child.child_by_field_name("name")
            if child.type == "variable_declarator" and name is not None:
                stack.append(name)
    stack.reverse()
    while stack:
        node = stack.pop()
        if node.type in _NAMES:
            yield decode(node.text or b"")
        elif node.type in ("assignment_pattern", "object_assignment_pattern", "pair_pattern"):
            field = "value" if node.type == "pair_pattern" else "left"
            target = node.child_by_field_name(field)
            if target is not None:
                stack.append(target)
        else:
            stack.extend(reversed(node.named_children))


def _rewrite_lexical(found: _Declared, edits: Edits, is_async: bool) -> None:
    for declaration in found.lexical:
        keyword = declaration.children[0]
        for child in children(declaration):
            if child.type == "variable_declarator" and child.child_by_field_name("value") is None:
                edits.insert(child.end_byte, "=void 0", INNER)  # a second `let x` empties it again
        if is_async:
            _assign(declaration, keyword, edits, in_list=True)
        else:
            text = "var".ljust(keyword.end_byte - keyword.start_byte)
            edits.replace(keyword.start_byte, keyword.end_byte, text)


def _assign(declaration: Node, keyword: Node, edits: Edits, in_list: bool) -> None:
    """Turn `let a = 1, {b} = c` into `;(a = 1, {b} = c);`, where the keyword left room."""
    last = last_part(declaration)
    ended = last.type == ";"
    end = last.start_byte if ended else last.end_byte
    width = keyword.end_byte - keyword.start_byte
    text = (";" if in_list else " ") + " " * (width - 2) + "("
    edits.replace(keyword.start_byte, keyword.end_byte, text)
    edits.insert(end, ")" if ended else ");", CLOSE)


def _rewrite_vars(found: _Declared, edits: Edits) -> None:
    for around, declaration, keyword in found.vars:
        if declaration.type == "variable_declaration":
            _assign(declaration, keyword, edits, in_list=around.type in _LISTS)
        else:
            edits.blank(keyword.start_byte, keyword.end_byte)


def _rewrite_classes(found: _Declared, edits: Edits, is_async: bool) -> None:
    for node in found.classes:
        keyword = next(child for child in children(node) if child.type == "class")
        opening = ";" if is_async else "var "
        edits.insert(keyword.start_byte, f"{opening}{_name(node)}=", OPEN)
        edits.insert(node.end_byte, ";", SEMICOLON)


def _hoist(found: _Declared, edits: Edits) -> str:
    """Give functions a name of their own inside, and assign them to the global one."""
    suffix = "$1"
    while suffix.encode() in edits.source:
        suffix += "1"
    head = ""
    for node in found.functions:
        name = node.child_by_field_name("name")
        if name is None:
            continue
        edits.insert(name.end_byte, suffix, INNER)
        text = _name(node)
        head += f'{text}={text}{suffix};Object.defineProperty({text},"name",{{value:"{text}"}});'
    return head

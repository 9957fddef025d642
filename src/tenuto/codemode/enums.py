"""Writes TypeScript's enums as JavaScript: each member in its place, on its line."""

from __future__ import annotations

import json

from tenuto.codemode.edits import OPEN, SEMICOLON, Edits, decode
from tenuto.codemode.grammar import BadSourceError, children, leave, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tree_sitter import Node


class Enums:
    """Rewrites one enum after the other; those of one name in one place are one enum."""

    def __init__(self, edits: Edits, bare: bool) -> None:
        self._edits = edits
        self._bare = bare
        self._seen: dict[tuple[int, str], dict[str, bool]] = {}

    def rewrite(self, node: Node) -> bool:
        """Turn `enum E { A, B = "b" }` into `var E=(function(E){E[E["A"]=0]="A"; …return E})({});`."""
        name_node, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name_node is None or body is None:
            return False
        name = decode(name_node.text or b"")
        parent = node.parent
        if parent is not None and parent.type == "export_statement":
            parent = parent.parent
        place = (parent.id if parent is not None else 0, name)
        again = place in self._seen
        members = self._seen.setdefault(place, {})
        top = parent is None or parent.type == "program"
        if again or (top and self._bare):
            opening = f";{name}="
        else:
            opening = f"var {name}=" if top else f"let {name}="
        self._edits.replace(
            node.start_byte, body.start_byte, self._with_lines(node, body, opening, name)
        )
        self._edits.replace(body.start_byte, body.start_byte + 1, "{")
        self._members(body, name, members)
        start = name if again else "{}"
        self._edits.replace(body.end_byte - 1, body.end_byte, f"return {name}}})({start});")
        return True

    def _with_lines(self, node: Node, body: Node, opening: str, name: str) -> str:
        ends = "\n" * self._edits.source[node.start_byte : body.start_byte].count(b"\n")
        return f"{opening}(function({name}){ends}"

    def _members(self, body: Node, name: str, members: dict[str, bool]) -> None:
        """Write the members; `members` tells for each whether it is a string."""
        edits = self._edits
        previous = ""
        for child in children(body):
            if child.type == ",":
                edits.replace(child.start_byte, child.end_byte, ";")
            if child.type in ("{", "}", ",", "comment"):
                continue
            key_node = child.child_by_field_name("name") or child
            key = self._key(key_node)
            value = child.child_by_field_name("value")
            target = f"{name}[{key}]"
            if value is None:
                if previous and members[previous]:
                    raise BadSourceError(
                        f"the member {key} of enum {name} needs a value: the one before is a string",
                        place_of(child),
                    )
                number = f"{name}[{previous}]+1" if previous else "0"
                edits.replace(child.start_byte, child.end_byte, f"{name}[{target}={number}]={key}")
                members[key] = False
            else:
                text = self._qualify(value, name, members)
                members[key] = text
                opening = target if text else f"{name}[{target}"
                edits.replace(key_node.start_byte, key_node.end_byte, opening)
                edits.insert(value.end_byte, "" if text else f"]={key}", SEMICOLON)
            edits.insert(child.end_byte, ";", OPEN)
            previous = key

    def _key(self, node: Node) -> str:
        text = decode(node.text or b"")
        if node.type == "property_identifier":
            return json.dumps(text)
        if node.type == "computed_property_name":
            return text[1:-1].strip()
        return text

    def _qualify(self, value: Node, name: str, members: dict[str, bool]) -> bool:
        """Let a value name other members; tell whether it is a string."""
        text = value.type in ("string", "template_string")
        adds = value.type == "binary_expression" and any(c.type == "+" for c in value.children)
        end = value.end_byte
        cursor = value.walk()
        going = True
        while going and (node := cursor.node) is not None and node.start_byte < end:
            if adds and node.type in ("string", "template_string"):
                text = True
            if node.type == "identifier":
                key = json.dumps(decode(node.text or b""))
                if key in members:
                    self._edits.replace(node.start_byte, node.end_byte, f"{name}[{key}]")
                    text = text or (members[key] and (adds or node == value))
            going = cursor.goto_first_child() or leave(cursor)
        return text

"""Renders the templates of an engine's messages as the lines that it would print.

    python tests/drift/render.py FACTS.json > wordings.tsv

makes the table of example lines that a framework plugin's tests read. FACTS.json lists the logging
calls of a framework's releases: `id`, `template` (an f-string's or a % format's text), `versions`
(first and last), and, where the releases differ, `variants`. `test_drift.py` renders what it finds
in the engines' source in the same way.

The values come from `values.tsv`: what stands in a hole, by the text before it and its expression.
They are of one imagined server, so that a line's figures fit each other.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
BEFORE = 160
"""How many characters before a hole its rule may look at."""

_PERCENT = re.compile(r"%(?:\((\w+)\))?([-+ #0]*(?:\*|\d+)?(?:\.\d+)?)([hlL]?)([a-zA-Z%])")
_LAST_WORD = re.compile(r"[\w#.\-]*[^\w#.\-]{0,3}$")


class Hole(NamedTuple):
    """A place in a template for the value of an expression.

    `form` is how it is printed there: `:.2f` and `!r` of an f-string, `%d` of a % format, or
    nothing.
    """

    expression: str
    form: str = ""


Template = tuple[str | Hole, ...]
"""Text and holes of one branch of a message, in order."""


class Bare(str):
    """A value that is no Python literal: the same as text and as `repr`."""

    def __repr__(self) -> str:
        return str(self)


class Rule(NamedTuple):
    """What stands in a hole; one line is made for each value.

    `where` is searched in `text before it⟨expression`; in the last word before it and the
    expression alone where it does not say itself on which side of `⟨` it stands.
    """

    where: re.Pattern[str]
    values: tuple[object, ...]

    def fits(self, before: str, hole: Hole) -> bool:
        seen = before[-BEFORE:]
        if "⟨" not in self.where.pattern:
            seen = _LAST_WORD.search(seen)[0]  # type: ignore[index]  # matches any text
        return self.where.search(f"{seen}⟨{hole.expression}") is not None


class Wording(NamedTuple):
    """One example line, and the releases that print it. A line break in it is `\\n`."""

    id: str
    first: str
    last: str
    line: str


# --- templates -----------------------------------------------------------------------------------


def of_text(template: str, args: Sequence[str] = ()) -> list[Template]:
    """The branches of a template that is given as text: of a % format when it has arguments or no
    braces, of an f-string otherwise."""
    if args or not re.search(r"\{[A-Za-z_'\"(0-9]", template):
        return _percented([(template,)], [_expression(arg) for arg in args])
    return _joined(
        [_of_hole(part) if isinstance(part, Hole) else [(part,)] for part in _braces(template)]
    )


def of_node(node: ast.expr, args: Sequence[ast.expr] = ()) -> list[Template]:
    """The branches of a message expression of the source: each side of a conditional once."""
    templates = _of_expression(node)
    return _percented(templates, args) if args else templates


def _of_expression(node: ast.expr) -> list[Template]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [(node.value,)]
    if isinstance(node, ast.JoinedStr):
        return _joined([_of_expression(value) for value in node.values])
    if isinstance(node, ast.FormattedValue):
        return _of_value(node.value, _form(node))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_of_expression(node.left), _of_expression(node.right)])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_text(node.left):
        args = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        return _percented(_of_expression(node.left), args)
    if isinstance(node, ast.IfExp):
        return [*_of_expression(node.body), *_of_expression(node.orelse)]
    if is_format_call(node):
        return _of_format_call(node)
    if isinstance(node, ast.Call) and node.args and _is_wrapper(node.func):
        return _of_expression(node.args[0])
    return [(Hole(ast.unparse(node)),)]


def _of_value(node: ast.expr, form: str) -> list[Template]:
    """What an f-string's braces hold: text that is chosen or put together there, or a hole."""
    if isinstance(node, ast.IfExp):
        return [*_of_value(node.body, form), *_of_value(node.orelse, form)]
    if is_text(node) and not form:
        return _of_expression(node)
    return [(Hole(ast.unparse(node), form),)]


def is_text(node: ast.expr) -> bool:
    """Whether an expression is text that the source itself spells, at least in part."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        return is_text(node.left) or (isinstance(node.op, ast.Add) and is_text(node.right))
    if isinstance(node, ast.IfExp):
        return is_text(node.body) or is_text(node.orelse)
    if isinstance(node, ast.Call):
        return is_format_call(node) or bool(
            node.args and _is_wrapper(node.func) and is_text(node.args[0])
        )
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def is_format_call(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "format"
        and isinstance(node.func.value, ast.Constant)
    )


def _is_wrapper(function: ast.expr) -> bool:
    """Functions whose first argument is the message: `textwrap.dedent(…)`, `inspect.cleandoc`."""
    return ast.unparse(function).rpartition(".")[2] in ("dedent", "cleandoc", "rank0_text")


def _of_format_call(node: ast.expr) -> list[Template]:
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Attribute)
    assert isinstance(node.func.value, ast.Constant)
    positional = [ast.unparse(arg) for arg in node.args]
    named = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
    parts: list[str | Hole] = []
    for part in _braces(str(node.func.value.value)):
        if isinstance(part, Hole):
            key = part.expression
            if key in named:
                part = Hole(named[key], part.form)
            elif positional and (not key or key.isdigit()):
                part = Hole(positional[int(key)] if key else positional.pop(0), part.form)
        parts.append(part)
    return [tuple(parts)]


def _form(node: ast.FormattedValue) -> str:
    form = f"!{chr(node.conversion)}" if node.conversion >= 0 else ""
    if isinstance(node.format_spec, ast.JoinedStr):
        form += ":" + "".join(
            str(value.value) for value in node.format_spec.values if isinstance(value, ast.Constant)
        )
    return form


def _joined(pieces: Sequence[list[Template]]) -> list[Template]:
    """Pieces in a row. Each branch of a piece is used once, so there are as many results as the
    piece with the most branches has."""
    most = max((len(branches) for branches in pieces), default=1)
    return [
        tuple(part for branches in pieces for part in branches[min(i, len(branches) - 1)])
        for i in range(most)
    ]


def _percented(templates: list[Template], args: Sequence[ast.expr]) -> list[Template]:
    """Templates whose texts are % formats, with holes for the arguments."""
    found: list[Template] = []
    for template in templates:
        left = list(args)
        pieces: list[list[Template]] = []
        for part in template:
            if isinstance(part, Hole):
                pieces.append([(part,)])
                continue
            end = 0
            for directive in _PERCENT.finditer(part):
                pieces.append([(part[end : directive.start()],)])
                end = directive.end()
                if directive[4] == "%":
                    pieces.append([("%",)])
                    continue
                argument = left.pop(0) if left and not isinstance(left[0], ast.Starred) else None
                form = f"%{directive[2].replace('*', '')}{directive[4]}"
                if argument is not None and is_text(argument) and directive[4] == "s":
                    pieces.append(_of_expression(argument))
                else:
                    spelled = directive[1] or (ast.unparse(argument) if argument else "")
                    pieces.append([(Hole(spelled, form),)])
            pieces.append([(part[end:],)])
        found += _joined(pieces)
    return found


def _of_hole(hole: Hole) -> list[Template]:
    node = _expression(hole.expression)
    return [(hole,)] if isinstance(node, ast.Name) else _of_value(node, hole.form)


def _expression(text: str) -> ast.expr:
    """An argument's source as a tree; of one that was cut off, the text literal it begins with."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        begun = re.match(r"""(['"]).*?\1""", text)
        return ast.parse(f"{begun[0]} % ()", mode="eval").body if begun else ast.Name(text)


def _braces(template: str) -> Iterator[str | Hole]:
    """Text and holes of an f-string's text; what no `}` closes is text."""
    text, position = "", 0
    while position < len(template):
        two = template[position : position + 2]
        if two in ("{{", "}}"):
            text, position = text + two[0], position + 2
        elif template[position] == "{" and (end := _closing(template, position)):
            if text:
                yield text
            yield _hole(template[position + 1 : end])
            text, position = "", end + 1
        else:
            text, position = text + template[position], position + 1
    if text:
        yield text


def _closing(template: str, start: int) -> int:
    """Where the brace at `start` closes; 0 when it does not."""
    depth, quote = 0, ""
    for position in range(start, len(template)):
        sign = template[position]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "{[(":
            depth += 1
        elif sign in "}])":
            depth -= 1
            if not depth:
                return position
    return 0


def _hole(inside: str) -> Hole:
    """`expression!r:.2f` apart; a colon or `!` inside brackets or quotes belongs to the
    expression."""
    depth, quote = 0, ""
    for position, sign in enumerate(inside):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "{[(":
            depth += 1
        elif sign in "}])":
            depth -= 1
        elif not depth and (sign == ":" or (sign == "!" and inside[position + 1 :][:1] != "=")):
            return Hole(inside[:position], inside[position:])
    return Hole(inside)


# --- lines ---------------------------------------------------------------------------------------


def lines(templates: Iterable[Template], version: str = "") -> list[str]:
    """The messages of these branches, one for each branch and each value that a rule offers."""
    found: dict[str, None] = {}
    for template in templates:
        count, i = 1, 0
        while i < count:
            message = ""
            for part in template:
                if isinstance(part, Hole):
                    values = _values(message, part, version)
                    count = max(count, len(values))
                    message += values[min(i, len(values) - 1)]
                else:
                    message += part
            found[message] = None
            i += 1
    return list(found)


def _values(before: str, hole: Hole, version: str) -> list[str]:
    with contextlib.suppress(ValueError, SyntaxError):
        return [_formatted(ast.literal_eval(hole.expression), hole.form)]
    rule = next((rule for rule in rules() if rule.fits(before, hole)), None)
    values = rule.values if rule else (7 if hole.form.endswith("d") else "X",)
    return [_formatted(value, hole.form).replace("<version>", version) for value in values]


@cache
def rules() -> tuple[Rule, ...]:
    """The rows of `values.tsv`: the first that matches a hole says what stands there."""
    rows = (FOLDER / "values.tsv").read_text(encoding="utf-8").splitlines()[1:]
    found = []
    for row in rows:
        if row and not row.startswith("#"):
            where, values = row.split("\t")
            found.append(Rule(re.compile(where), tuple(map(_literal, values.split(" || ")))))
    return tuple(found)


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return Bare(text)


def _formatted(value: object, form: str) -> str:
    """A value as a hole prints it; the number in a text, or any, where a text cannot be printed."""
    numbers = [int(str(value).replace(",", ""))] if re.fullmatch(r"[\d,]+", str(value)) else []
    for candidate in (value, *numbers, 12.34, 7):
        try:
            if form.startswith("%"):
                return form % candidate
            conversion, _, spec = form.partition(":")
            shown = repr(candidate) if conversion == "!r" else candidate
            return format(shown, spec) if spec else str(shown)
        except (TypeError, ValueError):
            continue
    return str(value)


# --- the table -----------------------------------------------------------------------------------


def wordings(facts: Sequence[Mapping[str, Any]]) -> Iterator[Wording]:
    """A row for each line; the variants of an entry are numbered."""
    for entry in facts:
        variants = _variants(entry)
        for number, variant in enumerate(variants, 1):
            id = f"{entry['id']}.{number}" if len(variants) > 1 else str(entry["id"])
            first, last = variant["versions"]
            last = _amended("last").get(id, last)
            templates = of_text(_spelled(variant["template"]), variant.get("args", ()))
            for line in lines(templates, first):
                yield Wording(id, first, last, _framed(id, str(entry["level"]), line))


def _variants(entry: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return _amended("variants").get(entry["id"]) or entry.get("variants") or [entry]


@cache
def _amended(what: str) -> Mapping[str, Any]:
    """What the facts lack, by id: `variants` of entries that they describe in prose, and the
    `frame` that the code puts around a fragment (… stands for it), and the `last` release of code
    that later ones hold without running it."""
    amendments: dict[str, Any] = json.loads((FOLDER / "amended.json").read_text(encoding="utf-8"))
    return {str(key): value for key, value in amendments[what].items()}


def _spelled(template: str) -> str:
    return template.replace("\\n", "\n").replace("<msg>", "{msg}")


def _framed(id: str, level: str, message: str) -> str:
    """A message as a line: an exception's with its class, a fragment in what it is printed in."""
    message = _amended("frame").get(id, "…").replace("…", message)
    if level.startswith("raise:"):
        message = f"{level[6:]}: {message}"
    elif level == "EXCEPTION":
        message = f"ValueError: {message}"
    return message.rstrip().replace("\\", r"\\").replace("\n", r"\n").replace("\t", r"\t")


def main(arguments: Sequence[str]) -> None:
    """Print the table of a list of facts."""
    if len(arguments) != 1:
        raise SystemExit("usage: python tests/drift/render.py FACTS.json > wordings.tsv")
    facts = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    print("\t".join(Wording._fields))
    for wording in wordings(facts):
        print("\t".join(wording))


if __name__ == "__main__":
    main(sys.argv[1:])

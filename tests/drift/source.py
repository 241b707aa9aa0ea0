"""The messages that a release's Python source can print, found in its syntax trees.

Found are calls of loggers and of what the engines wrap around them, raised and asserted text, and
text that is put together in a variable first. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from .render import Template, is_text, of_node

_LEVELS = frozenset(
    ("debug", "info", "warning", "warn", "error", "exception", "critical", "fatal", "log")
)
_LOGGER = re.compile(r"(^|[._])(logg?er|logging|log|LOG)(\(.*\))?$|get_?[lL]ogger\(|init_logger\(")
# `log_info_on_rank0(logger, …)`, `rank0_log(…)`, `print_info_once(…)`, `log_fn(…)`, and functions
# that raise or warn with the text that they are given.
_WRAPPER = re.compile(
    r"^(log_\w*_?(rank0|once)|_?rank_?(0|zero)_\w+|print_\w+_once|_?log_fn|raise_\w+|\w+_once)$"
)
_DEPTH = 4


class Message(NamedTuple):
    """A place that prints a message: where it stands, how it is printed, its branches."""

    file: str
    line: int
    how: str
    templates: tuple[Template, ...]

    @property
    def text(self) -> str:
        """What the source itself spells of it."""
        return " ".join(
            part for template in self.templates for part in template if isinstance(part, str)
        )


def messages(root: Path, package: str) -> Iterator[Message]:
    """Every message of a package's modules, by file."""
    for path in sorted((root / package).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes and the like are theirs
                tree = ast.parse(path.read_text(encoding="utf-8", errors="replace"))
        except (SyntaxError, ValueError):
            continue
        yield from in_tree(tree, file)


def in_tree(tree: ast.Module, file: str = "") -> Iterator[Message]:
    """The messages of one module."""
    module = _texts(_own(tree))
    for function in (tree, *_functions(tree)):
        nodes = _own(function)
        texts = module if function is tree else {**module, **_texts(nodes)}
        for node in nodes:
            found = _message(node)
            if found is None:
                continue
            how, words, args = found
            line = getattr(node, "lineno", 0)
            words = _spelled(words, texts, line)
            if is_text(words):
                yield Message(file, line, how, tuple(of_node(words, args)))


def _functions(tree: ast.Module) -> list[ast.AST]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


def _own(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function or module without those of the functions in it, by line."""
    found: list[ast.AST] = []
    left = list(ast.iter_child_nodes(function))
    while left:
        node = left.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
            left.extend(ast.iter_child_nodes(node))
    return sorted(found, key=lambda node: getattr(node, "lineno", 0))


def _message(node: ast.AST) -> tuple[str, ast.expr, Sequence[ast.expr]] | None:
    """(how, message, arguments of its % format) of a node that prints or raises one."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        return f"raise {ast.unparse(node.exc.func)}", node.exc.args[0], ()
    if isinstance(node, ast.Assert) and node.msg is not None:
        return "raise AssertionError", node.msg, ()
    if not isinstance(node, ast.Call) or not node.args:
        return None
    if isinstance(node.func, ast.Attribute):
        level = node.func.attr.removesuffix("_once").removesuffix("_rank0")
        if level in _LEVELS and _LOGGER.search(ast.unparse(node.func.value)):
            args = node.args[1:] if level == "log" else node.args
            return (level, args[0], args[1:]) if args else None
    name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
    if _WRAPPER.match(name):
        at = next((i for i, arg in enumerate(node.args) if not _names_logger(arg)), None)
        return None if at is None else (name, node.args[at], node.args[at + 1 :])
    return None


def _names_logger(node: ast.expr) -> bool:
    return bool(_LOGGER.search(ast.unparse(node)))


class _Text(NamedTuple):
    """A statement that gives a variable text: all of it, or (`+=`, `append`) more of it.

    A module's constant holds for every line, wherever it stands.
    """

    line: int
    value: ast.expr
    more: bool
    constant: bool


def _texts(nodes: Sequence[ast.AST]) -> dict[str, list[_Text]]:
    """The text that variables are given, by name, in the order of the source."""
    found: dict[str, list[_Text]] = {}
    for node in nodes:
        for name, value, more in _assigned(node):
            if is_text(value) or (isinstance(value, ast.List) and all(map(is_text, value.elts))):
                found.setdefault(name, []).append(_Text(value.lineno, value, more, name.isupper()))
    return found


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr, bool]]:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        yield node.targets[0].id, node.value, False
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
        yield node.target.id, node.value, False
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, node.value, True
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("append", "extend")
        and isinstance(node.func.value, ast.Name)
        and node.args
    ):
        yield node.func.value.id, node.args[0], True


def _spelled(
    node: ast.expr, texts: Mapping[str, Sequence[_Text]], line: int, depth: int = _DEPTH
) -> ast.expr:
    """A message with its variables replaced by the text that they were given before a line."""
    if not depth:
        return node
    if isinstance(node, ast.Name):
        wholes = [_sum(pieces) for pieces in _pieces(texts.get(node.id, ()), line)]
        spelled = [_spelled(whole, texts, line, depth - 1) for whole in wholes]
        for whole in spelled[1:]:
            spelled[0] = ast.IfExp(ast.Constant(value=True), spelled[0], whole)
        return spelled[0] if spelled else node
    parts = _joined_list(node, texts, line)
    if parts:
        return _spelled(_sum(parts), texts, line, depth - 1)

    def below(child: ast.expr) -> ast.expr:
        return _spelled(child, texts, line, depth)

    if isinstance(node, ast.BinOp):
        right = below(node.right) if isinstance(node.op, ast.Add) else node.right
        return ast.BinOp(below(node.left), node.op, right)
    if isinstance(node, ast.IfExp):
        return ast.IfExp(node.test, below(node.body), below(node.orelse))
    if isinstance(node, ast.JoinedStr):
        return ast.JoinedStr([below(value) for value in node.values])
    if isinstance(node, ast.FormattedValue) and node.format_spec is None:
        return ast.FormattedValue(below(node.value), node.conversion, None)
    return node


def _joined_list(node: ast.expr, texts: Mapping[str, Sequence[_Text]], line: int) -> list[ast.expr]:
    """What `", ".join(parts)` of a list of texts puts together; nothing for anything else."""
    if not (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "join"
        and node.args
        and isinstance(node.args[0], ast.Name)
    ):
        return []
    pieces = next(iter(_pieces(texts.get(node.args[0].id, ()), line)), [])
    parts = [part for piece in pieces for part in getattr(piece, "elts", [piece])]
    return [each for part in parts for each in (part, node.func.value)][:-1]


def _pieces(texts: Sequence[_Text], line: int) -> list[list[ast.expr]]:
    """What a variable may hold: one list of pieces for each assignment, with what is added after
    it."""
    found: list[list[ast.expr]] = []
    for text in texts:
        if text.line >= line and not text.constant:
            break
        if not text.more:
            found.append([text.value])
        else:
            for pieces in found:
                pieces.append(text.value)
    return found


def _sum(pieces: Sequence[ast.expr]) -> ast.expr:
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = ast.BinOp(whole, ast.Add(), piece)
    return whole

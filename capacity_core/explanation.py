"""Why a line was recognised or not, and what a value of a report rests on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from capacity_core.analysis import Options, analyse
from capacity_core.api.explanation import Attempt, LineStory, ValueStory
from capacity_core.api.matchers import LOOK_BEHIND, Matcher, printed_fields
from capacity_core.api.report import VIEW_ONLY, CategoryRow, Report
from capacity_core.errors import UsageError
from capacity_core.loader import Plugins
from capacity_core.reading.scan import Scanner, clean, without_cut_number
from capacity_core.reading.sources import Source
from capacity_core.values import Known, Unknown, Value

_LINE = re.compile(r"(?:log(?P<log>[0-9]{1,4}):)?(?P<number>[0-9]{1,12})")
_SEGMENT = re.compile(r"([^.\[\]]+)(?:\[([^\]]*)\])?(?:\.|$)")


# --- a line -----------------------------------------------------------


def explain_line(paths: Sequence[str], spec: str, plugins: Plugins) -> LineStory:
    """What every matcher makes of line `15` or `log1:15`.

    Raises UsageError when there is no such line, UnusableInput when the log cannot be used.
    """
    match = _LINE.fullmatch(spec.strip())
    if match is None:
        raise UsageError(f"--line {spec}: write a number, or log1:15 for the second log")
    log, number = int(match["log"] or 0), int(match["number"])
    if log >= len(paths):
        raise UsageError(f"--line {spec}: there is no log{log}; logs are counted from log0")
    owners = {event: e.framework for e in plugins.extractors for event in e.events}
    scanner = Scanner(plugins.matchers, plugins.prefixes, owners)
    text = _text_of(paths[log], log, number, scanner)
    read = [(m.name, event) for _, m, event in scanner.matches(text, spec)]
    attempts = [
        attempt
        for matcher in sorted(plugins.matchers, key=lambda m: m.name)
        if matcher.anchor in text
        for attempt in _attempts(matcher, text, read)
    ]
    return LineStory(
        line=f"log{log}:{number}",
        text=text,
        speaker=scanner.speaker_of(text),
        attempts=tuple(attempts),
    )


def _text_of(path: str, log: int, number: int, scanner: Scanner) -> str:
    """A line as the scanner reads it."""
    source = Source(f"log{log}", path)
    try:
        cleaned = scanner.needs_cleaning(source)
        seen, tail = 1, b""
        for chunk in source.cleaned_chunks() if cleaned else source.chunks():
            lines = (tail + chunk).split(b"\n")
            if seen <= number < seen + len(lines) - 1:
                return clean(lines[number - seen])
            seen += len(lines) - 1
            tail = lines[-1]
        if number == seen and tail:
            return without_cut_number(clean(tail))
    finally:
        source.close()
    raise UsageError(f"--line {number}: {path} has {seen - 1 + bool(tail)} lines")


def _attempts(matcher: Matcher, text: str, read: Sequence[tuple[str, object]]) -> Iterator[Attempt]:
    """One for each message that the matcher finds, or for its near miss."""
    mine = [event for name, event in read if name == matcher.name]
    found = mine or [event for _, _, event in matcher.find(text)]
    for event in found:
        yield Attempt(matcher=matcher.name, used=bool(mine), fields=printed_fields(event))
    if not found:
        reached, expected = _progress(matcher, text)
        yield Attempt(
            matcher=matcher.name, used=False, fields=None, reached=reached, expected=expected
        )


def _progress(matcher: Matcher, text: str) -> tuple[str, str]:
    """The longest beginning of a pattern that matches near its anchor: what it took, and what is
    left of the pattern."""
    at = text.find(matcher.anchor)
    low, high = max(0, at - LOOK_BEHIND), at + len(matcher.anchor) + matcher.window
    for cut in range(len(matcher.pattern), 0, -1):
        try:
            match = re.compile(matcher.pattern[:cut]).search(text, low, high)
        except re.error:
            continue
        if match is not None and match[0]:
            return match[0], matcher.pattern[cut:]
    return "", matcher.pattern


# --- a value ----------------------------------------------------------


def explain_value(
    paths: Sequence[str], path: str, options: Options, plugins: Plugins
) -> ValueStory:
    """The tree behind the value at a path such as `ranks[tp=0].memory.weights`.

    Raises UsageError when the report has no value there.
    """
    report = analyse(paths, options, plugins)
    return _story(_value_at(report, path), path, {row.id: row.text for row in report.evidence})


def _story(value: Value, name: str, texts: Mapping[str, str]) -> ValueStory:
    operands = value.operands if isinstance(value, Known) else ()
    return ValueStory(
        name=value.name or name,
        value=value,
        lines=tuple((line, texts.get(line, "")) for line in value.evidence),
        operands=tuple(_story(operand, operand.label, texts) for operand in operands),
    )


def _value_at(report: Report, path: str) -> Value:
    node: Any = report
    end = 0
    for match in _SEGMENT.finditer(path):
        if match.start() != end:
            break
        end = match.end()
        node = _child(node, match[1], path)
        if match[2] is not None:
            node = _row(node, match[2], path)
    if isinstance(node, CategoryRow):
        node = node.value
    if end != len(path) or not isinstance(node, Known | Unknown):
        raise UsageError(f"--value {path}: is no value of the report{_offer(node)}")
    return node


def _child(node: Any, name: str, path: str) -> Any:
    if isinstance(node, Mapping) and name in node:
        return node[name]
    if attrs.has(type(node)) and not isinstance(node, Known | Unknown) and hasattr(node, name):
        return getattr(node, name)
    raise UsageError(f"--value {path}: there is no {name!r}{_offer(node)}")


def _row(node: Any, selector: str, path: str) -> Any:
    """The one row that `tp=0,dp=1`, a number or an id singles out."""
    rows = list(node) if isinstance(node, tuple) else []
    if selector.isdigit() and int(selector) < len(rows):
        return rows[int(selector)]
    found = [row for row in rows if _is_row(row, selector)]
    if len(found) != 1:
        why = "no row" if not found else f"{len(found)} rows"
        there = ", ".join(_name_of(row) for row in rows[:12])
        raise UsageError(
            f"--value {path}: [{selector}] names {why} of {len(rows)}; there are: {there}"
        )
    return found[0]


def _name_of(row: Any) -> str:
    """What tells a row from the others: its id, else its first field."""
    said = getattr(row, "id", None)
    if said is None and attrs.has(type(row)):
        said = getattr(row, attrs.fields(type(row))[0].name)
    return str(said)


def _is_row(row: Any, selector: str) -> bool:
    if getattr(row, "id", None) == selector:
        return True
    pairs = [pair.partition("=") for pair in selector.split(",")]
    return all(
        equals and str(getattr(getattr(row, key, None), "value", getattr(row, key, None))) == wanted
        for key, equals, wanted in (map(str.strip, pair) for pair in pairs)
    )


def _offer(node: Any) -> str:
    if isinstance(node, Mapping):
        names = list(node)
    elif attrs.has(type(node)):
        hidden = VIEW_ONLY if isinstance(node, Report) else set()
        names = [f.name for f in attrs.fields(type(node)) if f.name not in hidden]
    elif isinstance(node, tuple):
        return f"; it is a list of {len(node)}: write [0], [tp=0] or [id]"
    else:
        return ""
    return f"; there are: {', '.join(names)}"

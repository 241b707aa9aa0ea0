"""Explanations of a line and of a value, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from capacity_core.api.explanation import LineStory, ValueStory
from capacity_core.rendering.figures import wrapped
from capacity_core.rendering.json import to_plain
from capacity_core.values import Known, Unknown


def line_text(story: LineStory) -> str:
    """The line, and one paragraph for each matcher that looked at it."""
    lines = [story.line, *wrapped(story.text, "  "), "", f"speaker: {story.speaker or 'nobody'}"]
    if not story.attempts:
        lines += ["", "no matcher's anchor stands in this line"]
    for attempt in story.attempts:
        if attempt.fields is not None:
            verdict = "read it" if attempt.used else "matches, and another matcher was used"
            said = ", ".join(f"{name} = {value}" for name, value in attempt.fields.items())
            lines += ["", f"{attempt.matcher}: {verdict}", *wrapped(said or "no fields", "  ")]
        else:
            lines += ["", f"{attempt.matcher}: near miss"]
            lines += wrapped(f"took   {attempt.reached!r}", "  ", "         ")
            lines += wrapped(f"wanted {attempt.expected}", "  ", "         ")
    return "\n".join(lines) + "\n"


def value_text(story: ValueStory) -> str:
    """The tree of formulas, down to the lines that they rest on."""
    return "\n".join(_tree(story, "")) + "\n"


def _tree(story: ValueStory, indent: str) -> Iterator[str]:
    value = story.value
    if isinstance(value, Known):
        unit = f" {value.unit}" if value.unit else ""
        error = f" ±{value.error.normalize():f}" if value.error else ""
        amount = value.amount if value.unit is None else f"{value.number.normalize():f}"
        yield from wrapped(f"{story.name} = {amount}{error}{unit}", indent, indent + "  ")
        yield from wrapped(f"{value.origin.value}: {value.how or '-'}", f"{indent}  ")
        if value.assuming:
            yield from wrapped(f"assuming {'; '.join(value.assuming)}", f"{indent}  ")
    else:
        yield from wrapped(f"{story.name} = unknown", indent, indent + "  ")
        yield from wrapped(value.why, f"{indent}  ")
        for bound, number in (("at most", value.at_most), ("at least", value.at_least)):
            if number is not None:
                yield f"{indent}  {bound} {number.normalize():f} {value.unit or ''}".rstrip()
    if story.operands:
        for operand in story.operands:
            yield from _tree(operand, indent + "    ")
        return
    for line, text in story.lines:
        yield from wrapped(f"[{line}] {text}".strip(), f"{indent}  ", f"{indent}    ")


def line_json(story: LineStory) -> str:
    return json.dumps(to_plain(story), indent=1, ensure_ascii=False) + "\n"


def value_json(story: ValueStory) -> str:
    return json.dumps(_plain(story), indent=1, ensure_ascii=False) + "\n"


def _plain(story: ValueStory) -> dict[str, Any]:
    value: Known | Unknown = story.value
    return {
        "name": story.name,
        "value": to_plain(value),
        "lines": [{"id": line, "text": text} for line, text in story.lines],
        "operands": [_plain(operand) for operand in story.operands],
    }

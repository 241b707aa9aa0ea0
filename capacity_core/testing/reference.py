"""The generated tables of references/, made from what the project's plugins register.

    python -m capacity_core.testing.reference references/

rewrites what stands between the markers, and nothing else.
"""

from __future__ import annotations

import configparser
import sys
import typing
from collections.abc import Iterable
from pathlib import Path

import attrs
from tabulate import tabulate

from capacity_core.api.arguments import Arguments
from capacity_core.api.matchers import Matcher, unit_of
from capacity_core.errors import CapacityError, UnusableInput
from capacity_core.loader import Plugins, load

BEGIN = "<!-- generated: log-patterns -->"
END = "<!-- end -->"
PAGE = "log-patterns.md"

SHOWN = 90
"""How many characters of a message a row shows."""

_HEADERS = ("matcher", "message, as printed", "what it means", "event and its fields", "releases")


def own_plugins(references: Path) -> Plugins:
    """The plugins of this repository and no others, however many are installed.

    Raises UsageError when one is not installed, PluginError when one fails.
    """
    return load(only=_distributions(references.resolve().parent / "plugins"), strict=True)


def log_patterns(plugins: Plugins) -> str:
    """One table for each plugin that recognises messages, by name; one row for each matcher."""
    rows: dict[tuple[str, str], list[tuple[str, ...]]] = {}
    for matcher in plugins.matchers:
        owner = plugins.owner_of(matcher.name)
        key = (owner.name, owner.distribution or owner.module) if owner else ("", "")
        rows.setdefault(key, []).append(_row(matcher))
    return "\n\n".join(
        f"### {name} ({distribution})\n\n"
        + tabulate(rows[name, distribution], _HEADERS, tablefmt="github", disable_numparse=True)
        for name, distribution in sorted(rows)
    )


def between_markers(page: str) -> str:
    """What a page's generated part holds. Raises UnusableInput when a marker is missing."""
    return _split(page)[1].strip()


def rewritten(page: str, generated: str) -> str:
    """The page with another generated part. Raises UnusableInput when a marker is missing."""
    before, _, behind = _split(page)
    return f"{before}{BEGIN}\n\n{generated}\n\n{END}{behind}"


def _split(page: str) -> tuple[str, str, str]:
    """What stands before, between and behind the markers."""
    before, begin, rest = page.partition(BEGIN)
    inside, end, behind = rest.partition(END)
    if not begin or not end:
        raise UnusableInput(f"needs {BEGIN} and {END}, in this order")
    return before, inside, behind


def _distributions(folder: Path) -> list[str]:
    """The names of the distributions below a folder, as their setup.cfg say them."""
    names = []
    for path in sorted(folder.glob("*/setup.cfg")):
        config = configparser.ConfigParser()
        config.read(path, encoding="utf-8")
        names.append(config["metadata"]["name"])
    return names


def _row(matcher: Matcher) -> tuple[str, ...]:
    means = matcher.means
    if matcher.replaces:
        means += " Replaces " + ", ".join(f"`{name}`" for name in matcher.replaces) + "."
    return (
        f"`{matcher.name}`",
        _code(_cut(matcher.samples[0].text)) if matcher.samples else "",
        _cell(means),
        _fields(matcher),
        matcher.seen_in or "not stated",
    )


def _fields(matcher: Matcher) -> str:
    """The event, and the fields that this wording fills; a field without a unit is text or a
    flag."""
    printed = [
        field.name
        for field in attrs.fields(matcher.event)
        if field.name in matcher.regex.groupindex
    ]
    shown = ", ".join(_field(matcher.event, name) for name in printed)
    return f"`{matcher.event.__name__}`" + (f": {shown}" if shown else "")


def _field(event: type, name: str) -> str:
    unit = unit_of(event, name)
    if unit is not None:
        return f"{name} ({unit})"
    return f"{name} (key=value pairs)" if typing.get_type_hints(event)[name] is Arguments else name


def _cut(message: str) -> str:
    plain = " ".join(message.split())
    return plain if len(plain) <= SHOWN else plain[: SHOWN - 1].rstrip() + "…"


def _code(message: str) -> str:
    """A message as code; a table's cell ends at a bar even inside code, so bars are escaped."""
    fence = "``" if "`" in message else "`"
    return fence + _cell(message) + fence


def _cell(words: str) -> str:
    return words.replace("|", r"\|")


def main(arguments: Iterable[str]) -> None:
    """Rewrite the generated parts of the pages in a folder."""
    folders = tuple(arguments)
    if len(folders) != 1:
        raise SystemExit("usage: python -m capacity_core.testing.reference references/")
    path = Path(folders[0]) / PAGE
    try:
        page = path.read_text(encoding="utf-8")
        generated = log_patterns(own_plugins(path.parent))
        path.write_text(rewritten(page, generated), encoding="utf-8")
    except (OSError, CapacityError) as error:
        raise SystemExit(f"{path}: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1:])

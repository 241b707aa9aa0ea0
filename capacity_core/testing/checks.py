"""Checks that a plugin's own tests call: samples mean what they say, and nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterable

from capacity_core.api.kv_layouts import KVLayout, ModelConfig, Serving
from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import Prefix
from capacity_core.errors import LayoutError
from capacity_core.reading.scan import Scanner
from capacity_core.values import Known, Origin


def check_matchers(matchers: Iterable[Matcher]) -> None:
    """Every sample gives its event, no near miss matches, and no two matchers read the same text.

    Raises AssertionError with every problem, one a line. Give all matchers that are used together.
    """
    matchers = tuple(matchers)
    problems = [problem for matcher in matchers for problem in matcher.problems()]
    problems += [problem for matcher in matchers for problem in matcher.sample_problems()]
    scanner = Scanner(matchers, (), {})
    for matcher in matchers:
        for sample in matcher.samples:
            scanner.matches(sample.text, matcher.name)
    problems += [
        f"{c.used} and {c.dropped} overlap on a sample of {c.line}" for c in scanner.clashes
    ]
    if problems:
        raise AssertionError("\n".join(problems))


def check_prefixes(prefixes: Iterable[Prefix]) -> None:
    """Every prefix has a sample, matches its samples and names known coordinates. Raises
    AssertionError if not."""
    prefixes = tuple(prefixes)
    problems = [f"{prefix.name} has no sample" for prefix in prefixes if not prefix.samples]
    problems += [problem for prefix in prefixes for problem in prefix.problems()]
    if problems:
        raise AssertionError("\n".join(problems))


def check_layout(layout: KVLayout, config: ModelConfig, serving: Serving) -> None:
    """The layout claims the model and reads it: every figure is theoretical or assumed and says how
    it comes about. A configuration that lacks one of its fields is left to others, or refused with
    a LayoutError, or read without that field.

    Raises AssertionError with every problem, one a line.
    """
    problems = [] if layout.applies(config) else [f"{layout.name} does not claim the model"]
    reading = layout.read(config, serving)
    if layout.applies({}):
        problems.append("it claims a file that says nothing")
    figures = [reading.replication, reading.pool_bytes_per_token]
    costs = []
    for term in reading.terms:
        costs += [term.bytes_per_token, term.fixed_bytes_per_request]
        figures += [term.window_tokens, term.slot]
        if not term.source:
            problems.append(f"{term.name} has no source")
    if not any(isinstance(cost, Known) for cost in costs):
        problems.append("no cost is known")
    for figure in (*costs, *figures):
        if not isinstance(figure, Known):
            continue
        fields = [line.removeprefix("config0:") for line in figure.evidence if ":" in line]
        problems += [f"{field} is cited and not there" for field in fields if field not in config]
        if figure.origin not in (Origin.THEORETICAL, Origin.ASSUMED):
            problems.append(f"{figure.amount} {figure.unit} is {figure.origin.value}, not theory")
        if figure.how is None and not figure.evidence:
            problems.append(f"{figure.amount} {figure.unit} does not say where it comes from")
    for field in config:
        less = {name: value for name, value in config.items() if name != field}
        try:
            if layout.applies(less):
                layout.read(less, serving)
        except LayoutError:
            continue
        except Exception as error:  # noqa: BLE001  # whatever a plugin raises is what is looked for
            problems.append(f"without {field}: {type(error).__name__}: {error}, no LayoutError")
    if problems:
        raise AssertionError("\n".join(problems))

"""Plugins are found, blocked, isolated and collected; whatever one does, the others go on."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from capacity_core.api import Matcher, Prefix, Sample, hookimpl
from capacity_core.errors import PluginError, UsageError
from capacity_core.loader import Found, load


@attrs.frozen(kw_only=True)
class Said:
    word: str


def matcher(name: str, **more: Any) -> Matcher:
    return Matcher(
        name=name,
        anchor="word is ",
        pattern=r"word is (?P<word>\w+)",
        event=Said,
        samples=(Sample("word is here", Said(word="here")),),
        **more,
    )


def module(name: str, **members: object) -> Found:
    made = types.ModuleType(name)
    for key, member in members.items():
        setattr(made, key, member)
    return Found(
        name=name, module=name, load=lambda: made, distribution=f"dist-{name}", version="1"
    )


def hook(name: str, result: Callable[[], object]) -> dict[str, object]:
    result.__name__ = name
    return {name: hookimpl(result)}


def matchers(*items: object) -> dict[str, object]:
    return hook("capacity_matchers", lambda: tuple(items))


def failing(name: str, error: BaseException) -> Found:
    def fail() -> object:
        raise error

    return Found(name=name, module=name, load=fail, distribution=f"dist-{name}", version="1")


GOOD = module("good", **matchers(matcher("good.word")))


def test_active_plugins_contribute_sorted_by_name() -> None:
    two = module("two", **matchers(matcher("b.word"), matcher("a.word")))
    plugins = load([two, GOOD])
    assert [m.name for m in plugins.matchers] == ["a.word", "b.word", "good.word"]
    assert [(row.name, row.status) for row in plugins.rows] == [
        ("good", "active"),
        ("two", "active"),
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (failing("bad", ModuleNotFoundError("No module named 'x'")), "ModuleNotFoundError"),
        (failing("bad", SystemExit(3)), "SystemExit"),
        (module("bad", **hook("capacity_machters", lambda: ())), "unknown hook"),
        (module("bad", capacity_matchers=lambda: ()), "not marked with @hookimpl"),
        (module("bad", **hook("capacity_matchers", lambda wrong: ())), "wrong"),
        (module("bad", **hook("capacity_matchers", lambda: [matcher("x.word")])), "not a tuple"),
        (module("bad", **hook("capacity_matchers", lambda: ("word",))), "not a Matcher"),
        (module("bad", **hook("capacity_extractors", lambda: (object(),))), "lacks framework"),
        (module("bad", **hook("capacity_matchers", lambda: 1 / 0)), "ZeroDivisionError"),
        (module("bad", **matchers(attrs.evolve(matcher("x.word"), anchor="is"))), "anchor"),
        (module("bad", **matchers(attrs.evolve(matcher("x.word"), pattern="("))), "expression"),
        (module("bad", **matchers(attrs.evolve(matcher("x.w"), pattern="(?P<no>.)"))), "no field"),
        (
            module(
                "bad",
                **hook(
                    "capacity_prefixes",
                    lambda: (Prefix(name="p", framework="f", pattern="(?P<gpu>1)"),),
                ),
            ),
            "no coordinate",
        ),
    ],
)
def test_a_failing_plugin_is_named_and_the_others_go_on(bad: Found, why: str) -> None:
    plugins = load([bad, GOOD])
    (failed,) = plugins.failed
    assert (failed.name, failed.distribution) == ("bad", "dist-bad")
    assert failed.error is not None
    assert why in failed.error
    assert [m.name for m in plugins.matchers] == ["good.word"]
    with pytest.raises(PluginError, match="dist-bad"):
        load([bad, GOOD], strict=True)


def test_two_plugins_with_one_name_are_both_named_and_neither_is_used() -> None:
    other = module("other", **matchers(matcher("good.word")))
    third = module("third", **matchers(matcher("third.word")))
    plugins = load([GOOD, other, third])
    assert [row.name for row in plugins.failed] == ["good", "other"]
    for row in plugins.failed:
        assert "dist-good" in str(row.error)
        assert "dist-other" in str(row.error)
    assert [m.name for m in plugins.matchers] == ["third.word"]


def test_taking_over_is_explicit() -> None:
    taker = module("taker", **matchers(matcher("taker.word", replaces=("good.word",))))
    assert [m.name for m in load([GOOD, taker]).matchers] == ["taker.word"]


def test_blocking_is_decided_before_import_and_stays_visible() -> None:
    bomb = failing("bomb", RuntimeError("imported"))
    for plugins in (
        load([bomb, GOOD], disable=["bomb"]),
        load([bomb, GOOD], disable=["dist-bomb"]),
        load([bomb, GOOD], only=["good"]),
    ):
        assert [(row.name, row.status) for row in plugins.rows] == [
            ("bomb", "disabled"),
            ("good", "active"),
        ]


def test_an_unknown_name_is_a_usage_error_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="good"):
        load([GOOD], disable=["goood"])

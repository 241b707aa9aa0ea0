"""The tolerant reader of printed arguments: key by key, nothing evaluated, nothing guessed."""

from __future__ import annotations

import ast
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity_core.api.arguments import Arguments


@pytest.mark.parametrize(
    "text",
    [
        "model_path='/m', tp_size=8, flag=True, none=None, share=0.88)",
        "'model_path': '/m', 'tp_size': 8, 'flag': True, 'none': None, 'share': 0.88}",
        '"model_path": "/m", "tp_size": 8, "flag": True, "none": None, "share": 0.88}',
        "model_path=/m, tp_size=8, flag=True, none=None, share=0.88, rest",
        "model_path = '/m' ,tp_size =8,  flag= True,none=None,share=0.88)",
    ],
    ids=["repr", "dict", "json", "loose", "spaces"],
)
def test_every_form_reads_alike(text: str) -> None:
    assert dict(Arguments(text)) == {
        "model_path": "/m",
        "tp_size": "8",
        "flag": "True",
        "none": "None",
        "share": "0.88",
    }


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("'plain'", "plain"),
        ("''", ""),
        ("'a, b=1, c'", "a, b=1, c"),
        ("'a) b] c}'", "a) b] c}"),
        (r"'it\'s'", "it's"),
        ('"it\'s"', "it's"),
        (r"'say \"x\"'", 'say "x"'),
        (r"'C:\\dir\\'", "C:\\dir\\"),
        (r"'two\nlines\tand a tab'", "two\nlines\tand a tab"),
        (r"'\x1b[0m'", "\x1b[0m"),
        ("-1", "-1"),
        ("1e-05", "1e-05"),
        ("[1, 2, [3, 4]]", "[1, 2, [3, 4]]"),
        ("{'a': {'b': 1}, 'c': [2, 3]}", "{'a': {'b': 1}, 'c': [2, 3]}"),
        ("('x', None)", "('x', None)"),
        ("<Mode.X: 'x'>", "x"),
        ('<Mode.X: "it\'s">', "it's"),
        ("<Mode.X: 3>", "3"),
        ("<Mode.X: (2, 1)>", "(2, 1)"),
        ("<Mode.X: 'x, y'>", "x, y"),
        ("Mode.X", "Mode.X"),
        ("torch.bfloat16", "torch.bfloat16"),
        ("<function f at 0x7f01>", "<function f at 0x7f01>"),
        ("<acme.Thing object at 0x7f01>", "<acme.Thing object at 0x7f01>"),
        ("<Thing a=1, tp_size=2>", "<Thing a=1, tp_size=2>"),
        ("Config(a=1, b='x, y')", "Config(a=1, b='x, y')"),
        ("don't know", "don't know"),
        ("auto", "auto"),
        ("", ""),
    ],
)
def test_one_value(printed: str, value: str) -> None:
    """The neighbours of a value, and the arguments with its key's name, are left alone."""
    for text in (
        f"tp_size=4, x={printed}, after=7)",
        f"'tp_size': 4, 'x': {printed}, 'after': 7}}",
    ):
        assert dict(Arguments(text)) == {"tp_size": "4", "x": value, "after": "7"}


def test_keys_may_have_dashes_and_dots_where_they_are_quoted() -> None:
    assert dict(Arguments("'max-model-len': 1, 'a.b': 2}")) == {"max-model-len": "1", "a.b": "2"}


def test_what_stands_behind_the_closing_bracket_is_not_read() -> None:
    assert dict(Arguments("a=1) b=2, c=3")) == {"a": "1"}
    assert dict(Arguments("'a': {'b': 1}}, 'c': 3")) == {"a": "{'b': 1}"}


def test_words_between_are_passed_over() -> None:
    assert dict(Arguments("some words, a=1, 17, 'just a text', b=2, ")) == {"a": "1", "b": "2"}


def test_nested_values_are_arguments_of_their_own() -> None:
    arguments = Arguments(
        "'a': {'method': 'x', 'deep': {'n': 1}}, 'b': Config(method='y', n=2), c=3}"
    )
    assert dict(arguments.nested("a")) == {"method": "x", "deep": "{'n': 1}"}
    assert dict(arguments.nested("a").nested("deep")) == {"n": "1"}
    assert dict(arguments.nested("b")) == {"method": "y", "n": "2"}
    assert dict(arguments.nested("c")) == {}
    assert dict(arguments.nested("absent")) == {}


def test_json_inside_a_string_is_nested_too() -> None:
    arguments = Arguments("""speculative_config='{"method": "eagle", "tokens": 3}', tp=1)""")
    assert dict(arguments.nested("speculative_config")) == {"method": "eagle", "tokens": "3"}


def test_none_and_the_empty_text_say_nothing() -> None:
    arguments = Arguments("a=None, b='', c='x', d=0, e=False, f='None')")
    assert arguments["a"] == "None"
    assert arguments.said("a") is None
    assert arguments.said("b") is None
    assert arguments.said("missing") is None
    assert arguments.said("a", "b", "missing", "c") == "x"
    assert (arguments.said("d"), arguments.said("e")) == ("0", "False")


# --- cut off ----------------------------------------------------------


@pytest.mark.parametrize(
    "rest",
    [
        "b=8",  # of 8192
        "b=0.",
        "b=-",
        "b=",
        "b",
        "b='text",
        r"b='it\'",
        "b=\"it'",
        "b=[1, 2",
        "b=[1, 'x'",
        "b={'n': 1",
        "b={'n': 'x'",
        "b={'n': {'m': 1}",
        "b=Config(n=1",
        "b=Config(n=[1]",
        "b=<Mode.X: 'x'",
        "b=<Mode.X",
        "b=bfloat1",
        "b=Tru",
        "b=Non",
    ],
)
def test_a_value_that_was_cut_is_not_told(rest: str) -> None:
    assert dict(Arguments(f"a=1, {rest}")) == {"a": "1"}


@pytest.mark.parametrize(
    ("rest", "value"),
    [
        ("b='text'", "text"),
        ("b=[1, 2]", "[1, 2]"),
        ("b={'n': 'x'}", "{'n': 'x'}"),
        ("b=True", "True"),
        ("b=None", "None"),
    ],
)
def test_a_value_that_was_finished_before_the_cut_is_told(rest: str, value: str) -> None:
    assert dict(Arguments(f"a=1, {rest}")) == {"a": "1", "b": value}


WHOLE = {
    "model": 'it\'s "here", tp=9',
    "tp_size": 8192,
    "nested": {"method": "x", "sizes": [1, 2, 4], "none": None},
    "share": 0.8812,
    "flag": False,
    "more": ("a", "b"),
    "last": 1,
}


@pytest.mark.parametrize("form", ["dict", "call"])
def test_wherever_the_cut_is_no_wrong_value_is_told(form: str) -> None:
    if form == "dict":
        text = repr(WHOLE)[1:]
    else:
        text = ", ".join(f"{key}={value!r}" for key, value in WHOLE.items()) + ")"
    whole = {key: str(value) for key, value in WHOLE.items()}
    assert dict(Arguments(text)) == whole
    for cut in range(len(text)):
        told = dict(Arguments(text[:cut]))
        assert told.items() <= whole.items(), text[:cut]
        # Everything before the key that was cut is still there, in order.
        assert list(told) == list(whole)[: len(told)]


# --- any text ---------------------------------------------------------

syntax = st.sampled_from(
    [*"'\"\\()[]{}<>,=: \r\n", "key=", "'key': ", "None", "12", "<Mode.X: 'x'>", "\\'", "it's"]
)


@given(text=st.text() | st.lists(syntax | st.text(max_size=3)).map("".join))
def test_any_text_is_read(text: str) -> None:
    arguments = Arguments(text)
    assert len(arguments) == len(list(arguments))
    for key, value in arguments.items():
        assert key in text
        assert isinstance(value, str)
        arguments.nested(key)
        arguments.said(key)


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
# What repr prints as it is, beside quotes and backslashes; the others have a test of their own.
plain_text = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "))
scalars = plain_text | st.integers() | st.none() | st.booleans()


@given(values=st.dictionaries(names, scalars, max_size=8))
def test_a_dict_as_printed_reads_back(values: dict[str, Any]) -> None:
    expected = {key: str(value) for key, value in values.items()}
    assert dict(Arguments(repr(values)[1:])) == expected
    call = ", ".join(f"{key}={value!r}" for key, value in values.items())
    assert dict(Arguments(call + ")")) == expected


@given(value=st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
def test_text_with_any_escape_reads_back(value: str) -> None:
    r"""`\n`, `\x1b`, `\u2028`: what Python's repr writes for what cannot be printed."""
    assert dict(Arguments(f"a={value!r}, b=1)")) == {"a": value, "b": "1"}


nested_values = st.recursive(
    plain_text | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(values=st.dictionaries(names, nested_values, max_size=4))
def test_nested_values_keep_their_own_text(values: dict[str, Any]) -> None:
    """A nested value is the literal that was printed, which Python reads back."""
    read = Arguments(repr(values)[1:])
    assert list(read) == list(values)
    for key, value in values.items():
        expected = value if isinstance(value, str) else None
        assert read[key] == expected or ast.literal_eval(read[key]) == value


# --- long -------------------------------------------------------------


def test_arguments_of_64_kilobytes_are_read() -> None:
    values = {f"key_{number}": f"value, {number}" for number in range(2600)}
    text = repr(values)[1:]
    assert len(text) > 65536
    assert dict(Arguments(text)) == values


@pytest.mark.parametrize(
    "piece", ["'", '"\\', "'\\'", "(", "[{(", ")", "a='", "a=(", "<", ",", "x='\\", "it's "]
)
def test_the_work_grows_with_the_length_alone(piece: str) -> None:
    """A hostile line must not cost the square of its length: 16 KB took over 4 s where they did,
    and take some milliseconds where they do not."""
    text = piece * (16_384 // len(piece))
    before = time.process_time()
    Arguments(text)
    assert time.process_time() - before < 1

"""Templates become the lines that the engines print; messages are found in source of any style."""

from __future__ import annotations

import ast

import pytest

from .render import lines, of_text, rules, wordings
from .source import in_tree


def rendered(template: str, *args: str) -> list[str]:
    return lines(of_text(template, args), "1.2.3")


@pytest.mark.parametrize(
    ("template", "args", "expected"),
    [
        ("plain text", (), ["plain text"]),
        ("100%% of %d", ("3",), ["100% of 3"]),
        ("%.1f%% of %s", ("1.25", "'x'"), ["1.2% of x"]),
        ("{unheard_of:.2f} x", (), ["12.34 x"]),
        ("{{literal}} {7}", (), ["{literal} 7"]),
        ("{'a' if x else 'b'} c", (), ["a c", "b c"]),
        ("{'a' if x else f'b{1}' if y else ''}.", (), ["a.", "b1.", "."]),
        ("{'x' + 'y'!r}", (), ["'X'"]),
        ("%s is it", ("'yes' if x else 'no'",), ["yes is it", "no is it"]),
        ("%s", ("'a=%d b=%d' % (1, 2)",), ["a=1 b=2"]),
        ("%s", ("'a=%d b=%d' % (f(), cut_o",), ["a=7 b=7"]),
        ("engine (v{VERSION}) up", (), ["engine (v1.2.3) up"]),
    ],
)
def test_a_template_gives_a_line_for_each_branch(
    template: str, args: tuple[str, ...], expected: list[str]
) -> None:
    assert rendered(template, *args) == expected


def test_values_fit_their_place() -> None:
    (line,) = rendered("Load weight end. avail mem={after_avail_memory:.2f} GB")
    assert line == "Load weight end. avail mem=63.52 GB"
    assert rendered("Capture {graph_backend[self.device]} end.") == [
        "Capture cuda graph end.",
        "Capture npu graph end.",
        "Capture cpu graph end.",
    ]


def test_every_rule_is_a_pattern_with_values() -> None:
    assert len(rules()) > 100
    assert all(rule.values for rule in rules())


def test_a_table_numbers_variants_and_marks_exceptions() -> None:
    facts = [
        {"id": "a", "level": "info", "versions": ["1", "2"], "template": "one\ntwo"},
        {
            "id": "b",
            "level": "raise:ValueError",
            "versions": ["1", "3"],
            "template": "",
            "variants": [
                {"versions": ["1", "2"], "template": "old"},
                {"versions": ["3", "3"], "template": "new"},
            ],
        },
    ]
    assert [tuple(row) for row in wordings(facts)] == [
        ("a", "1", "2", r"one\ntwo"),
        ("b.1", "1", "2", "ValueError: old"),
        ("b.2", "3", "3", "ValueError: new"),
    ]


SOURCE = """
FAILED = "it failed"
logger = init_logger(__name__)

def one(size, error):
    logger.info("size %d", 5)
    self.logger.warning_once(f"size {5:.1f}")
    log_info_on_rank0(logger, "on rank 0")
    print_info_once("printed once")
    logging.getLogger(__name__).log(10, "by level %s", 'x')
    raise ValueError(f"wrong: {FAILED}")

def two(x):
    message = "first, "
    if x:
        message += "second, "
    logger.debug(message)
    message = "third"
    assert x, "an invariant"
    parts = ["a: %d"]
    parts.append("b: %d")
    log_fn("prefix " + ", ".join(parts), *x)
    print("not a log")
    logger.info(x)
    math.log(5)
    cleared.info("no logger")
"""


def test_messages_are_found_however_they_are_made() -> None:
    found = {
        (message.how, line)
        for message in in_tree(ast.parse(SOURCE))
        for line in lines(message.templates)
    }
    assert found == {
        ("info", "size 5"),
        ("warning", "size 5.0"),
        ("log_info_on_rank0", "on rank 0"),
        ("print_info_once", "printed once"),
        ("log", "by level x"),
        ("raise ValueError", "wrong: it failed"),
        ("debug", "first, second, "),
        ("raise AssertionError", "an invariant"),
        ("log_fn", "prefix a: 7, b: 7"),
    }

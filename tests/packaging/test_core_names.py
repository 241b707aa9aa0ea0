"""The core knows no framework, model, device or vendor by name: plugins do."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path

CORE = Path(__file__).parents[2] / "capacity_core"

NAMES = re.compile(
    r"sglang|vllm|trt-?llm|lmdeploy|deepseek|dsv\d|(?<![a-z\d])v4\d?(?![a-z\d])|qwen|llama|mistral|gemma|kimi|\bglm|gpt-?oss|laguna"
    r"|\b[abhlv]\d{2,3}s?\b|\bgb\d{2,3}\b|\bmi\d{3}x?\b|\brtx\b|nvidia|\bamd\b|rocm|\bhip\b|intel\b"
    r"|ascend\b|huawei|\bnpu\b|\bcuda\b|\btpu\b",
    re.IGNORECASE,
)

# The one name in code: an option that scripts of the field already use (design: cli).
ALIAS = '"--nvidia-smi-file"'


def names_in(source: str) -> list[str]:
    """Names in code, strings and comments; docstrings may hold an example and are left out."""
    found = []
    at_start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            at_start = True
            continue
        docstring = token.type == tokenize.STRING and at_start and token.string.startswith('"""')
        at_start = token.type in (tokenize.COMMENT, tokenize.ENCODING)
        if not docstring and token.string != ALIAS and NAMES.search(token.string):
            found.append(token.string)
    return found


def test_the_core_names_nobody() -> None:
    modules = sorted(CORE.rglob("*.py"))
    assert len(modules) > 30
    found = {
        str(path.relative_to(CORE)): names
        for path in modules
        if (names := names_in(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_the_check_sees_names_in_code_strings_and_comments() -> None:
    assert names_in('x = "SGLang"\n') == ['"SGLang"']
    assert names_in("x = 1  # only for vLLM\n") == ["# only for vLLM"]
    assert names_in('def f():\n    """As on an H100."""\n    h200 = 1\n') == ["h200"]

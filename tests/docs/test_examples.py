"""What plugin authors copy works: the example of every hook, and the package in CONTRIBUTING.md."""

from __future__ import annotations

import configparser
import inspect
import re
import sys
import textwrap
import types
from pathlib import Path

import pytest

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.hookspecs import CapacitySpecs
from capacity_core.api.kv_layouts import Placement, Serving
from capacity_core.api.prefixes import Speaker
from capacity_core.loader import Found, Plugins, load
from capacity_core.testing.checks import check_layout, check_matchers, check_prefixes
from capacity_core.values import Known

HOOKS = [name for name in dir(CapacitySpecs) if name.startswith("capacity_")]
CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"
WORKS = Path(__file__).parents[2] / "plugins" / "capacity-legacy-fork"


def module_of(code: str) -> types.ModuleType:
    module = types.ModuleType("example")
    sys.modules["example"] = module  # where the types of an event's fields are looked up
    exec(code, module.__dict__)  # noqa: S102  # our own documents
    return module


def loaded(module: types.ModuleType) -> Plugins:
    return load([Found(name="example", module="example", load=lambda: module)], strict=True)


def example(hook: str) -> Plugins:
    """What the example in a hook's docstring contributes."""
    said = inspect.cleandoc(getattr(CapacitySpecs, hook).__doc__)
    return loaded(module_of(textwrap.dedent(said.partition("Example::")[2])))


@pytest.mark.parametrize("hook", HOOKS)
def test_the_example_of_a_hook_is_complete(hook: str) -> None:
    (row,) = example(hook).rows
    assert row.hooks == (hook,)


def test_the_examples_of_matchers_and_prefixes_pass_their_checks() -> None:
    check_matchers(example("capacity_matchers").matchers)
    check_prefixes(example("capacity_prefixes").prefixes)


def test_the_example_of_an_extractor_reads_a_pool() -> None:
    (extractor,) = example("capacity_extractors").extractors
    (event,) = extractor.events
    ready = Sighting(
        event=event(tokens=4096), matcher="acme.pool", speaker=Speaker(), line="log0:1"
    )
    run = Run("acme")
    assert not extractor.starts_run(run, ready)
    run.add(ready)
    assert extractor.starts_run(run, ready)
    (worker,) = extractor.extract(run).workers
    assert isinstance(worker.tokens, Known)
    assert (worker.tokens.number, worker.tokens.evidence) == (4096, ("log0:1",))


def test_the_example_of_a_layout_passes_its_check() -> None:
    """4 layers in 2 stages: 2 * 640 B for each of 512 tokens."""
    (layout,) = example("capacity_kv_layouts").kv_layouts
    config = {"model_type": "acme_ring", "num_hidden_layers": 4, "ring_tokens": 512}
    serving = Serving(placement=Placement(pipeline=2, attention_tensor=8))
    check_layout(layout, config, serving)
    (ring,) = layout.read(config, serving).terms
    assert isinstance(ring.bytes_per_token, Known)
    assert ring.bytes_per_token.number == 1280
    assert isinstance(ring.window_tokens, Known)
    assert ring.window_tokens.number == 512


def test_the_example_of_a_device_reader_reads() -> None:
    (reader,) = example("capacity_device_readers").device_readers
    text = "ACME0 1024/16384 MiB\nACME1 0/16384 MiB\n"
    assert reader.recognises(text)
    first, second = reader.read(text, "smi0")
    assert isinstance(first.free, Known)
    assert (first.free.number, first.free.evidence) == (15_360, ("smi0:1",))
    assert (second.index, second.line) == (1, 2)


# --- CONTRIBUTING.md ------------------------------------------------------


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", CONTRIBUTING.read_text("utf-8"), re.M | re.S)


def test_the_package_of_contributing_is_built_as_ours_are() -> None:
    (build,) = blocks("toml")
    assert build == (WORKS / "pyproject.toml").read_text(encoding="utf-8")
    (declared,) = blocks("ini")
    mine, ours = configparser.ConfigParser(), configparser.ConfigParser()
    mine.read_string(declared)
    ours.read(WORKS / "setup.cfg")
    assert mine["options.entry_points"]["capacity_core.v1"].strip().endswith("= capacity_acmefork")
    for key in ("packages", "package_dir"):
        assert mine["options"][key] == ours["options"][key]
    assert dict(mine["options.packages.find"]) == dict(ours["options.packages.find"])


def test_the_plugin_of_contributing_loads_and_passes_its_checks() -> None:
    (code,) = blocks("python")
    plugins = loaded(module_of(code))
    assert [matcher.name for matcher in plugins.matchers] == ["acmefork.pool_ready"]
    check_matchers(plugins.matchers)
    check_prefixes(plugins.prefixes)

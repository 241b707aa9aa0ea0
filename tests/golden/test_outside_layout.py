"""A layout from outside, for an architecture that nobody has: it works in `capacity kv`, in
`analyze --config` and in concurrency, and none of them knows of it.

The made-up model "rivulet" has a third of its layers with KV of every token, a third with a window,
and a third with a state of each request. The layout uses what plugin authors have and nothing else:
`capacity_core.api`, its errors, units and values.
"""

from __future__ import annotations

import importlib
import json
import types
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest

from capacity_core.analysis import Options, analyse
from capacity_core.api import hookimpl
from capacity_core.api.admission import Request
from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.kv_layouts import (
    CacheTerm,
    Keeps,
    KVLayout,
    LayoutReading,
    ModelConfig,
    Serving,
    element_bytes,
)
from capacity_core.api.kv_report import KvReport
from capacity_core.api.ledger import Ledger
from capacity_core.errors import LayoutError, PluginError, UnusableInput
from capacity_core.kv import KvOptions, size_kv
from capacity_core.loader import Found, Plugins, load
from capacity_core.rendering.json import JsonRenderer
from capacity_core.rendering.kv import kv_json, kv_text
from capacity_core.units import BYTES_PER_REQUEST, BYTES_PER_TOKEN, COUNT, TOKENS
from capacity_core.values import Known, Origin, known

from .running import MODULES, Report, found
from .sglang_lines import UP, as_dict, limits, pool, pools_end, weights
from .sglang_lines import said as sglang_said
from .vllm_lines import SERVES, asked, budget, config, said, sized_in_one

RIVULET: dict[str, Any] = {
    "model_type": "rivulet",
    "architectures": ["RivuletForCausalLM"],
    "layers": 6,
    "channels": 512,
    "reach": 256,
    "memory_bytes": 60_000,
    "dtype": "bfloat16",
}
# Two layers of each kind; a key and a value of 512 elements of two bytes.
PER_TOKEN = 2 * 2 * 512 * 2
PER_REQUEST = 2 * 60_000  # less than a block of 32 tokens has


class Rivulet:
    """What a model team would write."""

    name = "rivulet"

    def applies(self, config: ModelConfig) -> bool:
        return config.get("model_type") == "rivulet"

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        each = element_bytes(serving.dtype)
        layers, channels = config.get("layers"), config.get("channels")
        if not isinstance(layers, int) or not isinstance(channels, int) or each is None:
            raise LayoutError("layers, channels or the element's type is missing")
        here = serving.placement.layers(layers)
        third = len(here) // 3
        cost = known(
            2 * third * channels * each,
            BYTES_PER_TOKEN,
            Origin.THEORETICAL,
            how="2 * layers/3 * channels * element",
            evidence=("config0:channels",),
        )
        reach = known(int(str(config["reach"])), TOKENS, Origin.THEORETICAL, how="reach")
        state = known(
            third * int(str(config["memory_bytes"])),
            BYTES_PER_REQUEST,
            Origin.THEORETICAL,
            how="layers/3 * memory_bytes",
        )
        source = "rivulet/cache.py"
        return LayoutReading(
            family="rivulet",
            terms=(
                CacheTerm(name="lake", layers=third, bytes_per_token=cost, source=source),
                CacheTerm(
                    name="river",
                    layers=third,
                    keeps=Keeps.WINDOW,
                    bytes_per_token=cost,
                    window_tokens=reach,
                    source=source,
                ),
                CacheTerm(
                    name="spring",
                    layers=third,
                    keeps=Keeps.STATE,
                    fixed_bytes_per_request=state,
                    source=source,
                ),
            ),
            replication=known(1, COUNT, Origin.THEORETICAL, how="nothing is copied"),
            formula="2 * layers/3 * channels * element",
            source=source,
        )


class Zephyr(Rivulet):
    """A layout of its own for a model whose file looks like another family's."""

    name = "zephyr"

    def applies(self, config: ModelConfig) -> bool:
        return config.get("model_type") == "llama"


class Aphyr(Zephyr):
    """The same, ahead in the alphabet."""

    name = "aphyr"


class Replacing(Zephyr):
    """The same, and it says that it takes over."""

    replaces = ("grouped-query",)


class Breaking(Rivulet):
    """Claims the model and cannot read it."""

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        raise ZeroDivisionError("rivulets have no source")


class BreakingClaim(Rivulet):
    """Cannot even say whether it knows a model."""

    def applies(self, config: ModelConfig) -> bool:
        raise KeyError("model_type")


class Refusing(Rivulet):
    """Knows the model, and refuses this configuration in words."""

    def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
        raise LayoutError("the reach is missing")


def plugins(layout: KVLayout | None) -> Plugins:
    """What ships, and beside it a distribution that an entry point names."""
    shipped = [
        Found(name=name, module=module, load=partial(importlib.import_module, module))
        for name, module in MODULES.items()
    ]
    if layout is None:
        return load(shipped)

    def capacity_kv_layouts() -> tuple[KVLayout, ...]:
        return (layout,)

    module = types.ModuleType("capacity_rivulet")
    module.__dict__["capacity_kv_layouts"] = hookimpl(capacity_kv_layouts)
    outside = Found(
        name="rivulet",
        module="capacity_rivulet",
        load=lambda: module,
        distribution="capacity-rivulet",
        version="1",
    )
    return load([*shipped, outside])


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(RIVULET), encoding="utf-8")
    return str(path)


def number(value: object) -> int:
    assert isinstance(value, Known), value
    return int(value.number)


# --- capacity kv ----------------------------------------------------------


def sized(model: str, outside: KVLayout | None, **options: Any) -> KvReport:
    return size_kv(model, KvOptions(**options), plugins(outside))


def test_without_the_plugin_nobody_knows_the_model(model: str) -> None:
    with pytest.raises(UnusableInput, match="rivulet"):
        sized(model, None)


@pytest.mark.parametrize("framework", [None, "sglang", "vllm"])
def test_kv_adds_up_the_terms_of_a_layout_from_outside(model: str, framework: str | None) -> None:
    report = sized(model, Rivulet(), framework=framework)

    assert (report.layout.name, report.layout.family) == ("rivulet", "rivulet")
    assert [term.name for term in report.layout.terms] == ["lake", "river", "spring"]
    assert number(report.layout.bytes_per_token) == PER_TOKEN == 4096
    assert number(report.layout.window_bytes_per_token) == PER_TOKEN
    assert number(report.layout.window_tokens) == 256
    assert number(report.layout.fixed_bytes_per_request) == PER_REQUEST


@pytest.mark.parametrize("tokens", [1, 256, 257, 4096])
def test_kv_prices_a_request_of_it(model: str, tokens: int) -> None:
    (row,) = sized(model, Rivulet(), requests=(Request(tokens),)).requests
    assert number(row.bytes) == tokens * PER_TOKEN + min(tokens, 256) * PER_TOKEN + PER_REQUEST


def test_kv_cuts_it_into_stages(model: str) -> None:
    report = sized(model, Rivulet(), pipeline=2)
    stages = [number(stage.layout.bytes_per_token) for stage in report.stages]
    assert stages == [PER_TOKEN // 2] * 2


def test_kv_shows_it_in_both_forms(model: str) -> None:
    report = sized(model, Rivulet())
    assert json.loads(kv_json(report))["layout"]["terms"][0]["bytes_per_token"]["value"] == 4096
    text = kv_text(report)
    assert all(name in text for name in ("lake", "river", "spring", "rivulet/cache.py"))


def test_kv_takes_its_name_for_the_option(model: str) -> None:
    assert sized(model, Rivulet(), layout="rivulet").layout.name == "rivulet"


def test_kv_says_why_such_a_layout_refuses(model: str) -> None:
    with pytest.raises(UnusableInput, match="the reach is missing"):
        sized(model, Refusing())


def test_kv_names_a_layout_that_breaks(model: str) -> None:
    with pytest.raises(PluginError, match=r"rivulet.*ZeroDivisionError"):
        sized(model, Breaking())


LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 1024,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def llama(tmp_path: Path) -> str:
    """A model that a layout which ships reads; the fields of the made-up one stand beside."""
    path = tmp_path / "llama.json"
    path.write_text(json.dumps({**RIVULET, **LLAMA}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("outside", [Zephyr(), Aphyr()])
def test_two_layouts_that_claim_a_model_are_both_named_and_not_used(
    tmp_path: Path, llama: str, outside: KVLayout
) -> None:
    with pytest.raises(UnusableInput, match=rf"(?=.*{outside.name})(?=.*grouped-query).*--layout"):
        sized(llama, outside)
    assert sized(llama, outside, layout=outside.name).layout.name == outside.name

    report = report_on(tmp_path, vllm(), outside, config=llama)
    assert report["kv_pool"]["layout"] is None
    (clash,) = found(report, "layout-clash")
    assert outside.name in clash["message"]


def test_a_layout_that_replaces_another_is_used(llama: str) -> None:
    assert sized(llama, Replacing()).layout.name == "zephyr"


def test_a_framework_that_cannot_split_layers_is_named_itself(model: str) -> None:
    class Engine:
        framework, title, events = "engine", "Engine", ()

        def starts_run(self, run: Run, sighting: Sighting[object]) -> bool:
            return False

        def extract(self, run: Run) -> Ledger:
            raise NotImplementedError

        def split_layers(self, layers: int, stages: int) -> tuple[int, ...]:
            raise ValueError("five is right out")

    installed = plugins(Rivulet())
    with_engine = attrs.evolve(installed, extractors=(*installed.extractors, Engine()))
    with pytest.raises(UnusableInput, match=r"engine failed to split .*ValueError: five is right"):
        size_kv(model, KvOptions(framework="engine", pipeline=2), with_engine)


def test_a_layout_that_breaks_on_claiming_does_not_hide_the_others(llama: str) -> None:
    """Llama is read by the layout that ships, and the broken plugin is named."""
    report = sized(llama, BreakingClaimFirst())

    assert number(report.layout.bytes_per_token) == 4 * 2 * (128 + 128) * 2
    failed = [row for row in report.plugins if row.status == "failed"]
    assert [(row.name, row.distribution) for row in failed] == [("rivulet", "capacity-rivulet")]
    assert "KeyError" in str(failed[0].error)


class BreakingClaimFirst(BreakingClaim):
    """Asked before all that ship: layouts are sorted by name."""

    name = "a-rivulet"


# --- capacity analyze -----------------------------------------------------


def report_on(folder: Path, lines: list[str], layout: KVLayout | None, **options: Any) -> Report:
    path = folder / "server.log"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    report = analyse([str(path)], Options(**options), plugins(layout))
    parsed: Report = json.loads(JsonRenderer().render(report))
    return parsed


BLOCKS, BLOCK, BATCHED, LENGTH = 2000, 32, 1024, 4096


def vllm() -> list[str]:
    """Three groups, one of each kind. A request of 4,096 reckons for 128 blocks of the lake, one
    state, and ceil(min(255 + 1,024, 4,096) / 32) + 1 = 41 of the river while scheduling runs
    alone (as the log of a host shows): 170."""
    reckoned = 128 + 1 + 41
    concurrency = BLOCKS / reckoned
    return [
        asked(
            max_model_len=LENGTH,
            block_size=BLOCK,
            max_num_batched_tokens=BATCHED,
            max_num_seqs=500,
        ),
        config("0.33.0", LENGTH).replace(
            "quantization=None", "quantization=None, device_config=cpu"
        ),
        budget("0.24"),  # 2,000 blocks of 2 layers * 32 tokens * 2,048 B
        said("Mamba cache mode is set to 'none' for RivuletForCausalLM by default"),
        sized_in_one(int(concurrency * LENGTH), LENGTH, concurrency),
        said("kv cache group sizes (32, 32, 32)"),
        said("init engine (profile, create kv cache, warmup model) took 12.34 s"),
        SERVES,
    ]


def token_limit(report: Report) -> Report:
    (row,) = report["concurrency"]["rows"]
    limit: Report = row["token_limit"]
    return limit


def test_analyze_shows_it_beside_the_log(tmp_path: Path, model: str) -> None:
    layout = report_on(tmp_path, vllm(), Rivulet(), config=model)["kv_pool"]["layout"]

    assert (layout["name"], layout["family"]) == ("rivulet", "rivulet")
    assert layout["bytes_per_token"]["value"] == PER_TOKEN
    assert "config0:channels" in layout["bytes_per_token"]["evidence"]
    assert layout["fixed_bytes_per_request"]["value"] == PER_REQUEST
    assert [term["name"] for term in layout["terms"]] == ["lake", "river", "spring"]


def test_analyze_without_the_plugin_says_that_nobody_knows_the_model(
    tmp_path: Path, model: str
) -> None:
    report = report_on(tmp_path, vllm(), None, config=model)
    assert report["kv_pool"]["layout"] is None
    assert len(found(report, "layout-unknown")) == 1


def test_its_groups_decide_how_many_requests_fit(tmp_path: Path, model: str) -> None:
    """2,000 + 500: 63 blocks of the lake and of the river when admitted, at most 41 of the river,
    and a state; later 79 of the lake, the 8 or 9 of the river that a window of 256 touches, and the
    state."""
    asked_for = 63 + 41 + 1
    least, most = (
        min(
            (BLOCKS - 1) // (-(-2499 // 32) + river + 1),
            1 + (BLOCKS - 1 - asked_for) // (-(-2001 // 32) + river + 1),
        )
        for river in (9, 8)
    )
    request = (Request(2500, 2000),)
    with_it = token_limit(
        report_on(tmp_path, vllm(), Rivulet(), config=model, request_tokens=request)
    )
    without = token_limit(report_on(tmp_path, vllm(), None, config=model, request_tokens=request))

    assert with_it["value"] == least == most == 22
    assert "config0:channels" in with_it["evidence"]
    assert without["value"] is None


def test_its_window_limits_sglangs_pool(tmp_path: Path, model: str) -> None:
    """1,000 tokens of the window's pool are three windows of 256 at most; the full pool alone would
    take 200,000 // 5,000 = 40."""
    lines = sglang_said(
        as_dict(),
        *weights(78.0, 10.0, "RivuletForCausalLM"),
        "Use sliding window memory pool. full_layer_tokens=200000, swa_layer_tokens=1000",
        pool(1000, 0.00),
        pool(200_000, 0.38),  # 2,048 B for the keys of the lake
        "SWAKVPool mem usage: 0.76 GB, swa size: 1000, full size: 200000",
        pools_end(59.00),
        limits(200_000),
        UP,
    )
    request = (Request(5000, 4500),)
    with_it = report_on(tmp_path, lines, Rivulet(), config=model, request_tokens=request)
    without = report_on(tmp_path, lines, None, config=model, request_tokens=request)

    assert token_limit(with_it)["at_most"] == min(200_000 // 5000, 1000 // 256) == 3
    assert token_limit(without)["at_most"] == 40


@pytest.mark.parametrize("broken", [Breaking(), BreakingClaim()], ids=["read", "claim"])
def test_a_layout_that_breaks_is_a_failed_plugin_and_no_crash(
    tmp_path: Path, model: str, broken: KVLayout
) -> None:
    report = report_on(tmp_path, vllm(), broken, config=model)
    bare = report_on(tmp_path, vllm(), None)

    (failed,) = [row for row in report["plugins"] if row["status"] == "failed"]
    assert (failed["name"], failed["distribution"]) == ("rivulet", "capacity-rivulet")
    assert failed["error"]
    assert len(found(report, "plugin-failed")) == 1
    assert report["kv_pool"]["layout"] is None
    assert report["kv_pool"]["tokens"] == bare["kv_pool"]["tokens"]
    assert report["concurrency"] == bare["concurrency"]


def test_a_layout_that_refuses_is_a_finding_and_no_failure(tmp_path: Path, model: str) -> None:
    report = report_on(tmp_path, vllm(), Refusing(), config=model)

    assert [row for row in report["plugins"] if row["status"] == "failed"] == []
    (refused,) = found(report, "layout-refused")
    assert "the reach is missing" in refused["message"]
    assert report["kv_pool"]["layout"]["bytes_per_token"]["value"] is None
    assert "the reach is missing" in report["kv_pool"]["layout"]["bytes_per_token"]["why"]

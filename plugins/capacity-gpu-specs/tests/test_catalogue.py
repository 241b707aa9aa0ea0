"""The catalogue: names that mean one device, sources of the vendor, and the traps of real names."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from urllib.parse import urlsplit

import pytest

from capacity_core.api.gpu_specs import GpuSpec
from capacity_core.units import Mib
from capacity_gpu_specs import capacity_device_readers, capacity_gpu_specs
from capacity_gpu_specs.catalogue import gpu_specs

SPECS = gpu_specs()
BY_WORD = {word: spec for spec in SPECS for word in (spec.name, *spec.aliases)}
OF_THE_VENDOR = (
    "docs.nvidia.com",
    "github.com/NVIDIA/",
    "github.com/ai-dynamo/",
    "raw.githubusercontent.com/mlcommons/",
    "github.com/ROCm/",
    "rocm.docs.amd.com",
    "docs.habana.ai",
    "docs.cloud.google.com",
    "cloud.google.com",
    "github.com/aws-neuron/",
)

all_specs = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


def normalised(printed: str) -> str:
    """A printed name as a typed one: without vendor and marks, lower case, joined with dashes."""
    bare = re.sub(r"\((?:R|TM|tm)\)", "", printed).replace("_", " ")
    return "-".join(bare.removeprefix("NVIDIA ").lower().split())


def test_every_word_means_one_device() -> None:
    words = Counter(word for spec in SPECS for word in (spec.name, *spec.aliases))
    assert [word for word, times in words.items() if times > 1] == []


@all_specs
def test_words_are_lower_case_joined_with_dashes(spec: GpuSpec) -> None:
    for word in (spec.name, *spec.aliases):
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", word)


def test_every_printed_name_means_one_device() -> None:
    names = Counter(normalised(name) for spec in SPECS for name in spec.printed_names)
    assert [name for name, times in names.items() if times > 1] == []


@all_specs
def test_a_printed_name_is_no_other_devices_word(spec: GpuSpec) -> None:
    for name in spec.printed_names:
        assert BY_WORD.get(normalised(name), spec) is spec


@all_specs
def test_every_device_has_sources_of_its_vendor(spec: GpuSpec) -> None:
    assert spec.sources
    for source in spec.sources:
        url = urlsplit(source.url)
        assert url.scheme == "https"
        assert (url.netloc + url.path).startswith(OF_THE_VENDOR)
        assert source.what


@all_specs
def test_figures_have_their_types(spec: GpuSpec) -> None:
    assert spec.nominal_gb is None or isinstance(spec.nominal_gb, Decimal)
    assert all(isinstance(total, Mib) for total in spec.seen_totals)
    assert list(spec.seen_totals) == sorted(set(spec.seen_totals))


@all_specs
def test_a_total_lies_near_the_label_but_is_not_made_from_it(spec: GpuSpec) -> None:
    """A typing error, a slice or a figure in bytes would lie far off.

    One GB of a label is 954 MiB when it is decimal, 1024 when it is GiB; ECC and firmware take
    up to a tenth of it.
    """
    if spec.nominal_gb is None:
        return
    for total in spec.seen_totals:
        assert Decimal(850) < total / spec.nominal_gb <= 1024 or spec.name == "h800-80gb"
        if spec.nominal_gb * 10**9 % 2**20 == 0:
            assert total != spec.nominal_gb * 10**9 / 2**20


@pytest.mark.parametrize(
    ("word", "gb", "printed"),
    [
        ("h20", 96, "NVIDIA H20"),
        ("h20-141gb", 141, "NVIDIA H20-3e"),
        ("h100", 80, "NVIDIA H100 80GB HBM3"),
        ("h100-nvl", 94, "NVIDIA H100 NVL"),
        ("h200", 141, "NVIDIA H200"),
        ("b200", 180, "NVIDIA B200"),
        ("gb200", 192, "NVIDIA GB200"),
        ("dgx-spark", 128, "NVIDIA GB10"),
        ("l20", 48, "NVIDIA L20"),
        ("a100-80gb", 80, "NVIDIA A100-SXM4-80GB"),
        ("rtx4090", 24, "NVIDIA GeForce RTX 4090"),
    ],
)
def test_what_users_type(word: str, gb: int, printed: str) -> None:
    assert BY_WORD[word].nominal_gb == gb
    assert printed in BY_WORD[word].printed_names


@pytest.mark.parametrize("word", ["a100", "a800", "v100", "gh200", "h800", "rtx-pro-5000"])
def test_a_family_of_several_capacities_is_no_alias_but_begins_its_members_names(word: str) -> None:
    assert word not in BY_WORD
    members = [spec for spec in SPECS if spec.name.startswith(f"{word}-")]
    assert len({spec.nominal_gb for spec in members}) == 2


@pytest.mark.parametrize("word", ["mi300", "rtx-pro-6000"])
def test_a_family_of_several_devices_is_no_alias(word: str) -> None:
    assert word not in BY_WORD
    assert len([spec for spec in SPECS if spec.name.startswith(word)]) > 1


@pytest.mark.parametrize("word", ["l20n", "l20x", "l20y", "l20a", "l20-n", "h20a", "h20b"])
def test_nothing_is_inferred_for_names_that_only_look_alike(word: str) -> None:
    assert word not in BY_WORD
    assert word not in {normalised(name) for spec in SPECS for name in spec.printed_names}


def test_one_printed_name_may_have_two_capacities() -> None:
    assert {81559, 143771} <= set(BY_WORD["h800-80gb"].seen_totals)
    assert {256703, 284208} <= set(BY_WORD["gb300"].seen_totals)
    assert "easure" in BY_WORD["h800-80gb"].note
    assert "easure" in BY_WORD["gb300"].note


def test_the_number_in_a_superchips_name_is_not_its_gpus_memory() -> None:
    spec = BY_WORD["gh200-96gb"]
    assert "NVIDIA GH200 480GB" in spec.printed_names
    assert (spec.nominal_gb, spec.seen_totals) == (96, (97871,))


def test_devices_that_share_the_hosts_memory() -> None:
    assert {spec.name for spec in SPECS if spec.unified} == {"gb10", "thor", "mi300a"}


def test_what_the_vendor_does_not_state_is_not_filled_in() -> None:
    assert BY_WORD["b100"].nominal_gb is None
    assert BY_WORD["thor"].nominal_gb is None


def test_the_hooks_give_devices_and_a_reader() -> None:
    assert capacity_gpu_specs() == SPECS
    assert [reader.name for reader in capacity_device_readers()] == ["nvidia-smi-csv"]
    assert [spec.name for spec in SPECS] == sorted(spec.name for spec in SPECS)

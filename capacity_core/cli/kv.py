"""`capacity kv`: what a model's KV costs, from its config.json."""

from __future__ import annotations

from typing import Any

import click

from capacity_core.cli.options import (
    exit_code,
    load_plugins,
    plugin_options,
    request_tokens,
    write_result,
)

_SIZE = click.IntRange(min=1)


@click.command("kv")
@click.argument("config", metavar="CONFIG")
@click.option(
    "--framework",
    metavar="NAME[==VERSION]",
    help="Whose rules: engines differ in windows, shared layers, states and stages.",
)
@click.option("--tp", "tensor", type=_SIZE, default=1, show_default=True, help="Tensor parallel.")
@click.option("--pp", "pipeline", type=_SIZE, default=1, show_default=True, help="Pipeline stages.")
@click.option(
    "--attention-dp",
    type=_SIZE,
    default=1,
    show_default=True,
    help="Data-parallel groups that share --tp's ranks for attention.",
)
@click.option(
    "--context-parallel",
    type=_SIZE,
    default=1,
    show_default=True,
    help="Ranks of --tp that share a request's tokens.",
)
@click.option(
    "--kv-dtype",
    "dtype",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="The stored type, as the engine's option names it: auto, bf16, fp8_e4m3, nvfp4, …",
)
@click.option("--page-size", type=_SIZE, metavar="N", help="Tokens of a page or block.")
@click.option(
    "--draft-layers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Layers of the same kind that speculative decoding adds (MTP, EAGLE).",
)
@click.option(
    "--layout",
    metavar="NAME",
    help="Use this KV layout, or variant of one; an unknown name lists them.",
)
@request_tokens("Lengths of requests: 8192, 128k, or prompt:output.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Text for reading, JSON for programs.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the result to a file.")
@plugin_options
def command(
    config: str,
    output_format: str,
    output: str | None,
    disable_plugins: tuple[tuple[str, ...], ...],
    only_plugins: tuple[str, ...] | None,
    strict_plugins: bool,
    attention_dp: int,
    context_parallel: int,
    **options: Any,
) -> int:
    """What a token and a request of the model whose config.json is CONFIG cost on one GPU.

    \b
    Examples:
      capacity kv config.json --framework sglang --tp 8
      capacity kv config.json --framework vllm --tp 4 --kv-dtype fp8_e4m3 --format json

    \b
    Exit codes: 0 done · 1 the file cannot be used, or lacks a field · 2 wrong usage · 3 done, but a
    plugin failed
    """
    from capacity_core.kv import KvOptions, size_kv
    from capacity_core.rendering.kv import kv_json, kv_text

    plugins = load_plugins(disable_plugins, only_plugins, strict_plugins)
    asked = KvOptions(attention_data=attention_dp, context=context_parallel, **options)
    report = size_kv(config, asked, plugins)
    write_result(kv_json(report) if output_format == "json" else kv_text(report), output)
    return exit_code(report.plugins, plugins)

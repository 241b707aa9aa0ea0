"""`capacity analyze`: one report from a server's log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from capacity_core.cli.options import (
    exit_code,
    load_plugins,
    plugin_options,
    request_tokens,
    write_result,
)
from capacity_core.errors import PluginError, UsageError

if TYPE_CHECKING:
    from capacity_core.api.admission import Request


@click.command("analyze")
@click.argument("logs", nargs=-1, metavar="[LOG]…")
@click.option(
    "--log-file", "log_files", multiple=True, metavar="LOG", help="Another way to name a log."
)
@click.option(
    "--smi",
    "--nvidia-smi-file",
    "smi",
    multiple=True,
    metavar="FILE",
    help="Output of the device tool, one row for each GPU (README tells the command). May repeat: "
    "the k-th belongs to the k-th log.",
)
@click.option(
    "--smi-map",
    metavar="N=RANK,…",
    help="Which device is which rank: 4=TP0,5=TP1; with several --smi, smi1:4=TP8.",
)
@click.option(
    "--config", "--config-json", "config", metavar="FILE", help="The model's config.json."
)
@click.option(
    "--metrics",
    metavar="FILE",
    help="A saved metrics page of the server (curl -s HOST:PORT/metrics): supplies what logs omit.",
)
@click.option("--gpu", metavar="NAME", help="The device, as `capacity gpus` lists them.")
@click.option(
    "--rank", "--target-rank", "rank", metavar="SPEC", help="The rank to show: 3, TP3, DP1/PP0/TP3."
)
@request_tokens("Lengths of requests, prompt and output together: 8192, 128k, or prompt:output.")
@click.option("--run", type=click.IntRange(min=0), help="Report this server start, counted from 0.")
@click.option("--layout", metavar="NAME", help="Use this KV layout, or variant, for --config.")
@click.option(
    "--unmatched", is_flag=True, help="Also list lines that speak of memory and nobody recognised."
)
@click.option(
    "--format",
    "output_format",
    default="text",
    show_default=True,
    metavar="NAME",
    help="text or json.",
)
@click.option("-o", "--output", metavar="FILE", help="Write the report to a file.")
@plugin_options
def command(
    logs: tuple[str, ...],
    log_files: tuple[str, ...],
    smi: tuple[str, ...],
    smi_map: str | None,
    config: str | None,
    metrics: str | None,
    gpu: str | None,
    rank: str | None,
    requests: tuple[Request, ...],
    run: int | None,
    layout: str | None,
    unmatched: bool,
    output_format: str,
    output: str | None,
    disable_plugins: tuple[tuple[str, ...], ...],
    only_plugins: tuple[str, ...] | None,
    strict_plugins: bool,
) -> int:
    """Explain the GPU memory and the capacity of the server that wrote LOG.

    LOG is a file, a .gz file or - for stdin; several logs are the nodes of one deployment. The last
    server start that says anything is reported.

    \b
    Examples:
      capacity analyze server.log --smi smi.txt --config config.json
      docker logs my-server 2>&1 | capacity analyze - --format json
      capacity analyze node0.log node1.log --smi smi0.txt --smi smi1.txt

    \b
    Exit codes: 0 report made · 1 input unusable · 2 wrong usage · 3 report made, but a plugin
    failed
    """
    from capacity_core.analysis import Options, analyse

    paths = (*logs, *log_files)
    if not paths:
        raise UsageError("no log was named. Try: capacity analyze server.log (or - for stdin)")
    if paths.count("-") > 1:
        raise UsageError("stdin (-) can be named only once")
    plugins = load_plugins(disable_plugins, only_plugins, strict_plugins)
    renderers = {renderer.name: renderer for renderer in plugins.renderers}
    if output_format not in renderers:
        raise UsageError(
            f"--format {output_format}: unknown; there are: {', '.join(sorted(renderers))}"
        )
    options = Options(
        smi=smi,
        smi_map=smi_map,
        config=config,
        metrics=metrics,
        gpu=gpu,
        rank=rank,
        request_tokens=requests,
        run=run,
        layout=layout,
        unmatched=unmatched,
    )
    report = analyse(paths, options, plugins)
    try:
        result = renderers[output_format].render(report)
    # The border of a plugin: without its view there is nothing to show.
    except Exception as error:
        raise PluginError(
            f"--format {output_format} failed: {type(error).__name__}: {error}"
        ) from error
    write_result(result, output)
    return exit_code(report.plugins, plugins)

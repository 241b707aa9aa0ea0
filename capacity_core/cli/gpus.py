"""`capacity gpus`: the accelerator catalogue, and what a name resolves to."""

from __future__ import annotations

import click

from capacity_core.cli.options import load_plugins, plugin_options, write_result
from capacity_core.errors import ExitCode


@click.command("gpus")
@click.argument("name", required=False)
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
@click.option("-o", "--output", metavar="FILE", help="Write the result to a file.")
@plugin_options
def command(
    name: str | None,
    output_format: str,
    output: str | None,
    disable_plugins: tuple[tuple[str, ...], ...],
    only_plugins: tuple[str, ...] | None,
    strict_plugins: bool,
) -> int:
    """List the accelerators that are known, or show what NAME may mean.

    Capacities are the vendors' labels: they are shown, never computed with.

    \b
    Example:
      capacity gpus b200
    """
    from capacity_core.accounting.gpus import resolved
    from capacity_core.rendering.catalogue import catalogue_json, catalogue_table, details

    plugins = load_plugins(disable_plugins, only_plugins, strict_plugins)
    specs = resolved(name, plugins.gpu_specs) if name else plugins.gpu_specs
    if output_format == "json":
        result = catalogue_json(specs)
    else:
        result = details(specs) if name else catalogue_table(specs)
    write_result(result, output)
    return ExitCode.PLUGIN_FAILED if plugins.failed else ExitCode.OK

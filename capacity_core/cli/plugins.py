"""`capacity plugins`: what was found, and whether it takes part."""

from __future__ import annotations

import click

from capacity_core.cli.options import load_plugins, plugin_options, write_result
from capacity_core.errors import ExitCode


@click.group("plugins")
def command() -> None:
    """Plugins that are installed.

    \b
    Example:
      capacity plugins list
    """


@command.command("list")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
@click.option("-o", "--output", metavar="FILE", help="Write the result to a file.")
@plugin_options
def list_command(
    output_format: str,
    output: str | None,
    disable_plugins: tuple[tuple[str, ...], ...],
    only_plugins: tuple[str, ...] | None,
    strict_plugins: bool,
) -> int:
    """Every plugin found, with its distribution, version, module, status and error.

    \b
    Example:
      capacity plugins list --format json
    """
    from capacity_core.rendering.catalogue import plugins_json, plugins_table

    plugins = load_plugins(disable_plugins, only_plugins, strict_plugins)
    shown = plugins_json(plugins.rows) if output_format == "json" else plugins_table(plugins.rows)
    write_result(shown, output)
    return ExitCode.PLUGIN_FAILED if plugins.failed else ExitCode.OK

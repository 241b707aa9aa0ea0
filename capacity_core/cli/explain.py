"""`capacity explain`: what a line was read as, and what a value rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from capacity_core.cli.options import load_plugins, plugin_options, request_tokens, write_result
from capacity_core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from capacity_core.api.admission import Request


@click.command("explain")
@click.argument("logs", nargs=-1, required=True, metavar="LOG…")
@click.option("--line", metavar="N", help="A line: 15, or log1:15 for the second log.")
@click.option(
    "--value", "path", metavar="PATH", help="A value of the report: ranks[tp=0].memory.weights."
)
@click.option("--smi", multiple=True, metavar="FILE", help="Device readings, as for analyze.")
@click.option("--config", metavar="FILE", help="The model's config.json, as for analyze.")
@click.option("--metrics", metavar="FILE", help="A saved metrics page, as for analyze.")
@click.option("--layout", metavar="NAME", help="A KV layout or variant, as for analyze.")
@request_tokens("Lengths of requests, as for analyze.")
@click.option("--run", type=click.IntRange(min=0), help="The server start, counted from 0.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
)
@click.option("-o", "--output", metavar="FILE", help="Write the explanation to a file.")
@plugin_options
def command(
    logs: tuple[str, ...],
    line: str | None,
    path: str | None,
    smi: tuple[str, ...],
    config: str | None,
    metrics: str | None,
    layout: str | None,
    requests: tuple[Request, ...],
    run: int | None,
    output_format: str,
    output: str | None,
    disable_plugins: tuple[tuple[str, ...], ...],
    only_plugins: tuple[str, ...] | None,
    strict_plugins: bool,
) -> int:
    """Explain which matchers saw a line of LOG, or what a value of its report rests on.

    A near miss tells how far its pattern got. Paths are those of the JSON report.

    \b
    Examples:
      capacity explain server.log --line 15
      capacity explain server.log --value 'ranks[tp=0].memory.kv_pool'
    """
    from capacity_core.analysis import Options
    from capacity_core.explanation import explain_line, explain_value
    from capacity_core.rendering.explanation import line_json, line_text, value_json, value_text

    if (line is None) == (path is None):
        raise UsageError("give --line N or --value PATH, one of the two")
    plugins = load_plugins(disable_plugins, only_plugins, strict_plugins)
    as_json = output_format == "json"
    if line is not None:
        story = explain_line(logs, line, plugins)
        result = line_json(story) if as_json else line_text(story)
    else:
        options = Options(
            smi=smi,
            config=config,
            metrics=metrics,
            layout=layout,
            request_tokens=requests,
            run=run,
        )
        tree = explain_value(logs, path or "", options, plugins)
        result = value_json(tree) if as_json else value_text(tree)
    write_result(result, output)
    return ExitCode.PLUGIN_FAILED if plugins.failed else ExitCode.OK

"""The command `capacity`: parse, call, print, exit. Nothing here computes.

`--help` and `--version` load no plugin; modules that do work are imported by the commands that need
them.
"""

from __future__ import annotations

import os
import sys

import click

from capacity_core.errors import CapacityError, ExitCode

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called or listed."""

    def __init__(self, *args: object, commands_in: dict[str, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # handed on as they came
        self._modules = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        from importlib import import_module

        command = import_module(self._modules[cmd_name]).command
        assert isinstance(command, click.Command)  # noqa: S101  # our own table above
        return command


@click.group(
    cls=LazyGroup,
    commands_in={
        "analyze": "capacity_core.cli.analyze",
        "explain": "capacity_core.cli.explain",
        "gpus": "capacity_core.cli.gpus",
        "kv": "capacity_core.cli.kv",
        "plugins": "capacity_core.cli.plugins",
    },
    context_settings=CONTEXT,
)
@click.version_option(package_name="capacity-core", prog_name="capacity")
def cli() -> None:
    """Where an LLM server's GPU memory went, and how many requests fit: read from its own log.

    \b
    Example:
      capacity analyze server.log --smi smi.txt --config config.json
    """


def main() -> None:
    """The console script. Every expected error is one line on stderr and its exit code."""
    try:
        status = cli.main(standalone_mode=False)
    except CapacityError as error:
        click.echo(f"capacity: {error}", err=True)
        status = error.exit_code
    except click.ClickException as error:
        error.show()
        status = ExitCode.USAGE
    except click.Abort:
        status = 130
    # The last border: our own fault is told from a bad input by its exit code.
    except Exception as error:
        click.echo(
            f"capacity: a bug of this tool: {type(error).__name__}: {error}. Please report it with "
            "the command and the log; CAPACITY_TRACEBACK=1 shows where it happened.",
            err=True,
        )
        if os.environ.get("CAPACITY_TRACEBACK"):
            raise
        status = ExitCode.BUG
    sys.exit(int(status or 0))

"""Option types and the plugin options that commands share."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from capacity_core.errors import ExitCode, UnusableInput

if TYPE_CHECKING:
    from capacity_core.api.admission import Request
    from capacity_core.api.report import PluginRow
    from capacity_core.loader import Plugins

Command = TypeVar("Command", bound=Callable[..., Any])


class RequestLengths(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """`4096,128k,4096:512`: positive whole numbers, where k means 1024, and prompt:output."""

    name = "N[,N…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Request, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(self._request(part.strip(), param, ctx) for part in str(value).split(","))

    def _request(
        self, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> Request:
        from capacity_core.api.admission import Request  # not for --help

        counts = [_count(each) for each in part.split(":")]
        if None in counts or len(counts) > 2:
            self.fail(
                f"{part[:40]!r} is no positive number of tokens; write 4096,8k,128k or "
                "prompt:output, as in 4096:512",
                param,
                ctx,
            )
        sizes = [count for count in counts if count is not None]
        return Request(sum(sizes), sizes[0] if len(sizes) > 1 else None)


def _count(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,12})(k?)", text.strip(), re.IGNORECASE)
    count = int(match[1]) * (1024 if match[2] else 1) if match else 0
    return count if count > 0 else None


class Names(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Names separated by commas; an empty text is the empty set."""

    name = "NAME[,NAME…]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


def request_tokens(text: str) -> Callable[[Command], Command]:
    """The lengths of requests that a command answers for; `text` is its help."""
    return click.option(
        "--request-tokens",
        "requests",
        type=RequestLengths(),
        default="4096,6144,8192",
        show_default=True,
        help=text,
    )


def plugin_options(command: Command) -> Command:
    """Which plugins take part; each option has its environment variable."""
    for option in (
        click.option(
            "--strict-plugins",
            is_flag=True,
            envvar="CAPACITY_STRICT_PLUGINS",
            help="End with exit 3 at the first plugin that cannot be used.",
        ),
        click.option(
            "--only-plugins",
            type=Names(),
            envvar="CAPACITY_ONLY_PLUGINS",
            help="Use exactly these plugins.",
        ),
        click.option(
            "--disable-plugin",
            "disable_plugins",
            type=Names(),
            multiple=True,
            envvar="CAPACITY_DISABLE_PLUGINS",
            help="Leave a plugin out, decided before it is imported. May repeat.",
        ),
    ):
        command = option(command)
    return command


def load_plugins(
    disable_plugins: tuple[tuple[str, ...], ...],
    only_plugins: tuple[str, ...] | None,
    strict_plugins: bool,
) -> Plugins:
    """The plugins that the options leave; those that failed are named on stderr."""
    from capacity_core.loader import load  # not for --help

    disabled = [name for names in disable_plugins for name in names]
    plugins = load(disable=disabled, only=only_plugins, strict=strict_plugins)
    for row in plugins.failed:
        owner = f"{row.distribution} {row.version}" if row.distribution else row.module
        click.echo(f"capacity: plugin {row.name!r} ({owner}) not used: {row.error}", err=True)
    return plugins


def exit_code(rows: Iterable[PluginRow], plugins: Plugins) -> ExitCode:
    """How the command ends: plugins that failed while reading are named on stderr, as those that
    failed to load were."""
    failed = [row for row in rows if row.status == "failed"]
    named = {row.name for row in plugins.failed}
    for row in failed:
        if row.name not in named:
            click.echo(f"capacity: plugin {row.name!r} failed: {row.error}", err=True)
    return ExitCode.PLUGIN_FAILED if failed else ExitCode.OK


def write_result(result: str, output: str | None) -> None:
    """Print a result, or write it to a file that is replaced only once it is complete."""
    if output is None:
        _print(result)
        return
    folder = os.path.dirname(os.path.abspath(output))
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".capacity-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(result)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, output)
        temporary = None
    except OSError as error:
        raise UnusableInput(f"{output}: cannot be written: {error.strerror}.") from None
    finally:
        if temporary is not None:  # not replaced: failed, or interrupted
            os.unlink(temporary)


def _print(result: str) -> None:
    if sys.stdout is None:
        raise UnusableInput("stdout is closed; use --output FILE.")
    try:
        click.echo(result, nl=False)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer must not be written again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader has gone (`| head`)
            raise SystemExit(ExitCode.OK) from None
        raise UnusableInput(f"stdout cannot be written: {error.strerror}.") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

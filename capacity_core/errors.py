"""Every exception a user can cause, each with the exit code the command line ends with; and the
callback for failures that do not end the run."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

OnFailure = Callable[[str, str], None]
"""Takes the name of a plugin's item that failed (a matcher, a layout, a framework), and why."""


class ExitCode(IntEnum):
    """What the exit status of the command says."""

    OK = 0  # a report was made
    UNUSABLE_INPUT = 1  # an input is missing, unreadable, malformed, or says nothing we know
    USAGE = 2  # the command was called wrongly
    PLUGIN_FAILED = 3  # a report was made, but a plugin failed
    BUG = 70  # our own fault


class CapacityError(Exception):
    """An error that a user can cause; its text says what is wrong, where, and what to do."""

    exit_code = ExitCode.UNUSABLE_INPUT


class UnusableInput(CapacityError):
    """A file that is missing, unreadable, binary, empty or malformed."""


class NothingRecognised(CapacityError):
    """No plugin recognised a single line of the logs."""

    def __init__(self, paths: tuple[str, ...], frameworks: tuple[str, ...]) -> None:
        known = " or ".join(frameworks) or "any framework (no framework plugin is active)"
        super().__init__(
            f"{', '.join(paths)}: no start-up line of {known} found. "
            "Is this the server's own output (stdout and stderr), from its start?"
        )


class UsageError(CapacityError):
    """Options that contradict each other, or that name something that does not exist."""

    exit_code = ExitCode.USAGE


class PluginError(CapacityError):
    """A plugin that cannot be used; raised only when the caller asked for strictness."""

    exit_code = ExitCode.PLUGIN_FAILED


class UnitError(TypeError):
    """Two quantities whose units do not go together: a mistake in a formula, hence our bug."""


class LayoutError(CapacityError):
    """A model configuration from which a KV layout cannot compute what it was asked for.

    A layout raises it with the reason; the report then shows the figure as unknown with that
    reason.
    """

"""All that a plugin imports: the hook marker, and the classes that its hooks return."""

from __future__ import annotations

from capacity_core.api.arguments import Arguments
from capacity_core.api.hookspecs import hookimpl
from capacity_core.api.matchers import INTEGER, NUMBER, Matcher, Sample
from capacity_core.api.prefixes import Prefix, Speaker

__all__ = ["INTEGER", "NUMBER", "Arguments", "Matcher", "Prefix", "Sample", "Speaker", "hookimpl"]

"""Views of the report; they register through the same hook as a plugin's."""

from __future__ import annotations

from capacity_core.api import hookimpl
from capacity_core.api.renderers import Renderer
from capacity_core.rendering.json import JsonRenderer
from capacity_core.rendering.text import TextRenderer


@hookimpl
def capacity_renderers() -> tuple[Renderer, ...]:
    return (JsonRenderer(), TextRenderer())

"""Reads a model's config.json and brings a nested text model's keys to the top."""

from __future__ import annotations

import json

from capacity_core.api.kv_layouts import ModelConfig
from capacity_core.errors import UnusableInput

_NESTED = ("thinker_config", "llm_config", "language_config", "text_config")
"""In the order in which servers look for the text model."""


def read_model_config(content: bytes, path: str) -> ModelConfig:
    """The configuration as one flat mapping; where a text model is nested, its keys win over the
    wrapper's.

    Raises UnusableInput, naming the path, when the content is no JSON, or no JSON object.
    """
    try:
        config = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UnusableInput(
            f"{path}: is no JSON ({error}). Give the model's config.json."
        ) from None
    if not isinstance(config, dict):
        raise UnusableInput(
            f"{path}: holds a JSON {type(config).__name__}, not an object. Give the model's "
            f"config.json."
        )
    return _flat(config)


def _flat(config: dict[str, object]) -> dict[str, object]:
    """The wrapper's keys under those of its text model, which may be a wrapper itself."""
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, dict):
            inner = _flat(nested)
            if config.get("architectures") is not None:  # the wrapper's say what is served
                inner["architectures"] = config["architectures"]
            return {**config, **inner}
    return config

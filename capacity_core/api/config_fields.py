"""Fields of a config.json as counts that cite where they come from: what a KV layout reads."""

from __future__ import annotations

from collections.abc import Mapping

from capacity_core.api.kv_layouts import ModelConfig
from capacity_core.errors import LayoutError
from capacity_core.units import COUNT, Unit
from capacity_core.values import Known, Origin, known


class Completed(dict[str, object]):
    """A configuration with fields that its file leaves out: `defaults` are their names, `said` who
    says so, and `by` the field that names them. Figures that rest on a default assume it."""

    def __init__(
        self, config: ModelConfig, defaults: Mapping[str, object], *, said: str, by: str
    ) -> None:
        super().__init__({**config, **defaults})
        self.defaults = frozenset(defaults)
        self.said = said
        self.by = by

    def why(self, name: str) -> str:
        """What using a default assumes."""
        return f"{name} is {self[name]}, as in {self.said}"


def given(config: ModelConfig, *names: str) -> bool:
    """Whether one of `names` stands in the configuration and is not null."""
    return any(config.get(name) is not None for name in names)


_MOST_LAYERS = 10_000
_MOST = 10**9


def layer_count(config: ModelConfig, *names: str) -> Known:
    """The number of layers.

    Raises LayoutError as `count` does, and for a number that no model has.
    """
    layers = count(config, *names)
    if layers.number > _MOST_LAYERS:
        raise LayoutError(f"{layers.name} is {layers.number}, more layers than a model has")
    return layers


def section(config: ModelConfig, name: str) -> Mapping[str, object]:
    """A nested part of the configuration. Raises LayoutError when it is absent or no mapping."""
    nested = config.get(name)
    if not isinstance(nested, dict):
        raise LayoutError(f"the configuration has no {name}")
    return nested


def count(config: ModelConfig, *names: str, inside: str | None = None, unit: Unit = COUNT) -> Known:
    """The first of `names`, which mean the same, that is given: a whole number of at least 1.
    `inside` is the section that `config` is, `unit` what is counted (a window is in tokens).

    Raises LayoutError, naming the field, when all are absent or null, or when it is no such number.
    """
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        null = next((name for name in names if name in config), None)
        raise LayoutError(
            f"{null} is null in the configuration"
            if null
            else f"the configuration has no {' or '.join(names)}"
        )
    number = config[name]
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise LayoutError(
            f"{name} is {repr(number)[:60]} in the configuration, "
            "which is not a whole number of at least 1"
        )
    if number > _MOST:
        raise LayoutError(f"{name} is {str(number)[:20]}…, more than a model has of anything")
    if isinstance(config, Completed) and name in config.defaults:
        default = known(number, unit, Origin.ASSUMED, name=name, evidence=(f"config0:{config.by}",))
        return default.assume(config.why(name))
    path = name if inside is None else f"{inside}.{name}"
    how = f"{path} in config.json"
    evidence = (f"config0:{path}",)
    return known(number, unit, Origin.THEORETICAL, how=how, name=name, evidence=evidence)


def counts(config: ModelConfig, name: str) -> tuple[int, ...]:
    """A list of whole numbers, one for each layer or the like.

    Raises LayoutError, naming the field, when it is absent or no such list.
    """
    listed = config.get(name)
    if not isinstance(listed, list) or any(
        not isinstance(each, int) or isinstance(each, bool) for each in listed
    ):
        raise LayoutError(f"the configuration has no {name}, a list of whole numbers")
    return tuple(listed)


def as_int(value: Known) -> int:
    """A count as an int."""
    return int(value.number)


def cited(*values: Known) -> tuple[str, ...]:
    """The fields that `values` rest on, each once."""
    return tuple(dict.fromkeys(field for value in values for field in value.evidence))

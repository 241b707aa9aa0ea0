"""How a model stores KV: from its configuration to the bytes that a request's tokens cost on one
device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from capacity_core.errors import LayoutError
from capacity_core.units import BYTES_PER_TOKEN
from capacity_core.values import Unknown, Value

_NOT_COMPUTED = Unknown(why="not computed", unit=BYTES_PER_TOKEN)

ModelConfig = Mapping[str, object]
"""A model's config.json, with the text model's own keys on top where it nests them (see
`model_config`)."""


@attrs.frozen(kw_only=True)
class Placement:
    """Where the layers and heads of one rank lie.

    `attention_tensor` is the tensor-parallel size that divides KV heads (tp // attention-DP //
    context-parallel);
    `pipeline` the number of stages and `stage` this rank's, of which the layers are a contiguous
    slice.
    """

    attention_tensor: int = 1
    pipeline: int = 1
    stage: int = 0

    def layers(self, count: int) -> range:
        """This stage's slice of `count` layers, in equal shares.

        Raises LayoutError when stages differ: engines give the remainder to different stages.
        """
        if count % self.pipeline:
            raise LayoutError(
                f"{count} layers do not divide into {self.pipeline} pipeline stages; "
                "how the engine splits them is not in the configuration"
            )
        share = count // self.pipeline
        return range(self.stage * share, (self.stage + 1) * share)


@attrs.frozen(kw_only=True)
class CacheTerm:
    """One kind of cache that a request pays for, on one device.

    A request of n tokens costs `bytes_per_token` · min(n, `window_tokens`) +
    `fixed_bytes_per_request`; a window of None does not end. `layers` is how many of this rank's
    layers hold it. `slot` is the size of one stored slot of one layer where that is all that the
    configuration decides.
    """

    name: str
    layers: int | None = None
    bytes_per_token: Value = _NOT_COMPUTED
    window_tokens: Value | None = None
    fixed_bytes_per_request: Value | None = None
    slot: Value | None = None


@attrs.frozen(kw_only=True)
class LayoutReading:
    """What a layout says of one model, placement and dtype, for one device.

    `replication` is how many of the ranks that share a KV head's tokens hold the same copy of it
    (1: each its own).
    """

    family: str
    terms: tuple[CacheTerm, ...]
    replication: Value
    bytes_per_token: Value
    formula: str
    source: str


class KVLayout(Protocol):
    """How one family of models stores KV."""

    @property
    def name(self) -> str: ...

    def applies(self, config: ModelConfig) -> bool:
        """Whether this layout knows every layer of such a model. A layout never claims what it
        would miscount."""
        ...

    def read(
        self, config: ModelConfig, placement: Placement, dtype_bytes: int | None
    ) -> LayoutReading:
        """The caches of one rank; `dtype_bytes` is the size of a stored element, None when not
        known.

        Raises LayoutError when the configuration lacks a field or contradicts the placement.
        """
        ...

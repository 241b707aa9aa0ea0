"""The server_args line: what the server was started with, after SGLang resolved it."""

from __future__ import annotations

from typing import Any

import attrs

from capacity_core.api import Arguments, Matcher, Sample
from capacity_core.api.arguments import plausible_number
from capacity_core.api.extractors import Sighting
from capacity_core.api.ledger import Parallel
from capacity_core.units import COUNT, TOKENS, Unit
from capacity_core.values import Known, Origin, Unknown, Value, known, text


@attrs.frozen(kw_only=True)
class ServerArgs:
    """The resolved launch arguments, printed by every node's launcher before its schedulers
    start."""

    arguments: Arguments


# A line of 4 to 12 kB, in builds with many fields more; it may be wrapped or cut.
_WINDOW = 65536

# Another rank's line may come between: such long lines are not written in one piece.
_TO_NEXT_LINE = r"(?:(?!\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d).)*"

SERVER_ARGS_REPR = Matcher(
    name="sglang.server_args_repr",
    anchor="server_args=ServerArgs(",
    pattern=rf"server_args=ServerArgs\((?P<arguments>{_TO_NEXT_LINE})",
    event=ServerArgs,
    means="Launch arguments as a dataclass repr, resolved.",
    seen_in="0.2.15 … 0.5.18",
    samples=(
        Sample(
            "server_args=ServerArgs(model_path='/m', tp_size=8, x=<Mode.A: 'a'>)",
            ServerArgs(arguments=Arguments("model_path='/m', tp_size=8, x=<Mode.A: 'a'>)")),
        ),
    ),
    window=_WINDOW,
)

SERVER_ARGS_DICT = Matcher(
    name="sglang.server_args_dict",
    anchor="server_args={",
    pattern=rf"server_args=\{{(?P<arguments>{_TO_NEXT_LINE})",
    event=ServerArgs,
    means="Launch arguments as a dict, resolved.",
    seen_in="0.5.19 … 0.5.23",
    samples=(
        Sample(
            "server_args={'model_path': '/m', 'tp_size': 8}",
            ServerArgs(arguments=Arguments("'model_path': '/m', 'tp_size': 8}")),
        ),
    ),
    window=_WINDOW,
)

MATCHERS = (SERVER_ARGS_REPR, SERVER_ARGS_DICT)


class Settings:
    """The arguments of a run, as values that cite their line."""

    def __init__(self, sighting: Sighting[Any] | None) -> None:
        self._line = (sighting.line,) if sighting else ()
        event = sighting.event if sighting else None
        self.arguments = event.arguments if isinstance(event, ServerArgs) else Arguments("")

    def text(self, *keys: str, none: tuple[str, ...] = ()) -> Value:
        """A text or flag; unknown when absent, printed as None, or one of the words in `none`."""
        said = self.arguments.said(*keys)
        if said is None or said in none:
            return self._unknown(keys, None)
        return text(said, Origin.CONFIGURED, how=keys[0], evidence=self._line)

    def number(self, unit: Unit, *keys: str) -> Value:
        said = self.arguments.said(*keys)
        amount = plausible_number(said, unit)
        if amount is None:
            return self._unknown(keys, unit)
        return known(amount, unit, Origin.CONFIGURED, how=keys[0], evidence=self._line)

    def flag(self, key: str) -> bool | None:
        """True or False as printed; None when the arguments do not say."""
        return {"True": True, "False": False}.get(self.arguments.get(key, ""))

    def whole(self, key: str) -> int | None:
        value = self.number(COUNT, key)
        return int(value.number) if isinstance(value, Known) else None

    def _unknown(self, keys: tuple[str, ...], unit: Unit | None) -> Unknown:
        whole = "" if self.arguments.complete else ", as far as printed,"
        why = f"server_args{whole} has no {keys[0]}" if self._line else "no server_args line"
        if keys[0] in self.arguments:
            why = f"server_args says {keys[0]}={self.arguments[keys[0]][:40]}"
        return Unknown(why=why, unit=unit, evidence=self._line)

    @property
    def shards(self) -> int:
        """The ranks of decode context parallel, which share out a request's tokens; 1 where the
        arguments do not name them."""
        return self.whole("dcp_size") or 1

    @property
    def parallel(self) -> Parallel:
        """The sizes as printed. Attention-DP is `dp_size` under enable_dp_attention, `attn_dp_size`
        from 0.5.22."""
        attention = self.number(COUNT, "attn_dp_size")
        if self.flag("enable_dp_attention"):
            attention = attention | self.number(COUNT, "dp_size")
        return Parallel(
            tensor=self.number(COUNT, "tp_size"),
            pipeline=self.number(COUNT, "pp_size"),
            data=self.number(COUNT, "dp_size"),
            expert=self.number(COUNT, "ep_size"),
            attention_data=attention,
            attention_tensor=self._attention_tensor(attention),
            context=self.number(COUNT, "attn_cp_size"),
            nodes=self.number(COUNT, "nnodes"),
        )

    def _attention_tensor(self, attention: Value) -> Value:
        """tp_size // attention-DP // context parallel (0.5.23 srt/layers/dp_attention.py
        `compute_dp_attention_world_info`); the ranks of decode context parallel have the same heads
        (srt/configs/model_config.py:1710)."""
        if self.flag("enable_dp_attention") is False:
            attention = attention | self._one("enable_dp_attention=False")
        sizes = (
            self.number(COUNT, "tp_size"),
            attention | self._absent("enable_dp_attention"),
            self.number(COUNT, "attn_cp_size") | self._absent("attn_cp_size"),
        )
        known_sizes = [size for size in sizes if isinstance(size, Known) and size.number >= 1]
        if len(known_sizes) < len(sizes):
            why = next((size.why for size in sizes if isinstance(size, Unknown)), "a size is 0")
            return Unknown(why=why, unit=COUNT, evidence=self._line)
        tensor, data, context = (int(size.number) for size in known_sizes)
        how = "tp_size // attention-DP // context parallel"
        count = max(1, tensor // data // context // self.shards)
        if self.shards > 1:
            how += f" // {self.shards} of decode context parallel"
        return known(count, COUNT, Origin.DERIVED, how=how, evidence=self._line)

    def _absent(self, key: str, unit: Unit = COUNT) -> Value:
        """One, when all arguments are shown and this release has no such argument."""
        if self.arguments.complete and key not in self.arguments:
            return self._one(f"no {key} in this release", unit)
        return self._unknown((key,), unit)

    @property
    def page_size(self) -> Value:
        """As printed; releases without the argument pad by one slot (mem_cache/memory_pool.py of
        0.4.3:216)."""
        return self.number(TOKENS, "page_size") | self._absent("page_size", TOKENS)

    def _one(self, how: str, unit: Unit = COUNT) -> Known:
        return known(1, unit, Origin.CONFIGURED, how=how, evidence=self._line)

    @property
    def workers(self) -> Value:
        """How many schedulers have a pool of their own.

        dp_size; from 0.5.22 `--dp-size N --enable-dp-attention` is printed as dp_size=1,
        attn_dp_size=N (arg_groups/parallel_hook.py of 0.5.22), so both multiply.
        """
        data = self.number(COUNT, "dp_size")
        split = self.number(COUNT, "attn_dp_size")
        if self.flag("enable_dp_attention") and isinstance(split, Known):
            return (
                (data.named("dp_size") * split.named("attn_dp_size"))
                if isinstance(data, Known)
                else split
            )
        return data

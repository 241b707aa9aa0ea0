"""What each engine of a run says of its size: tokens or blocks, and the concurrency with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import attrs

from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import Reported
from capacity_core.units import TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known
from capacity_vllm.blocks import GpuBlocks
from capacity_vllm.pools import KvSize, MaxConcurrency
from capacity_vllm.ranks import is_actor, process_of


@attrs.frozen(kw_only=True)
class Size:
    """One statement of an engine: tokens, and the concurrency printed with it."""

    dp: int
    tokens: Value
    reported: Reported | None
    block: Value | None = None


def sizes_of(run: Run, block: Value) -> Iterator[Size]:
    """Each size line with its concurrency, which up to 0.27 follows on a line of its own.

    Up to 0.7.3 blocks are printed instead of tokens: they are as large as the arguments or the
    concurrency say.
    """
    pending: dict[int, Sighting[Any]] = {}
    numbers = engine_numbers(run)
    sizes = KvSize if run.has(KvSize) else GpuBlocks
    sightings: list[Sighting[Any]] = run.of(sizes, MaxConcurrency)
    for sighting in sightings:
        dp = numbers[engine_of(sighting)]
        event = sighting.event
        if isinstance(event, MaxConcurrency):
            yield _size(dp, pending.pop(dp, None), sighting, block)
            continue
        if dp in pending:
            yield _size(dp, pending.pop(dp), None, block)
        if isinstance(event, KvSize) and event.concurrency is not None:
            yield _size(dp, sighting, sighting, block)
        else:
            pending[dp] = sighting
    for dp, sighting in pending.items():
        yield _size(dp, sighting, None, block)


def engine_of(sighting: Sighting[Any]) -> tuple[object, ...]:
    """What tells the engine that speaks from the others."""
    speaker = sighting.speaker
    return ("actor", *process_of(sighting)) if is_actor(sighting) else ("dp", speaker.dp or 0)


def engine_numbers(run: Run) -> dict[tuple[object, ...], int]:
    """Data-parallel ranks of engines; actors print none and are numbered as they come."""
    said = run.of(KvSize, MaxConcurrency, GpuBlocks)
    engines = list(dict.fromkeys(engine_of(s) for s in said))
    numbers = {e: int(str(e[1])) for e in engines if e[0] == "dp"}
    free = (n for n in range(len(engines) + max(numbers.values(), default=0) + 1))
    unused = (n for n in free if n not in numbers.values())
    return numbers | {e: next(unused) for e in engines if e[0] == "actor"}


def _size(
    dp: int, size: Sighting[Any] | None, concurrency: Sighting[Any] | None, block: Value
) -> Size:
    tokens: Value = Unknown(why="no 'KV cache size' line", unit=TOKENS)
    reported = None
    if concurrency is not None:
        reported = Reported(
            request_tokens=concurrency.event.request_tokens,
            value=concurrency.value("concurrency"),
        )
    name = f"tokens[DP{dp}]"
    if size is not None and isinstance(size.event, GpuBlocks):
        block = block | _block_of(size, reported)
        tokens = _tokens_of(size, block).named(name)
    elif size is not None:
        tokens = size.value("tokens", name)
    return Size(dp=dp, tokens=tokens, reported=reported, block=block)


def _tokens_of(blocks: Sighting[GpuBlocks], size: Value) -> Value:
    """blocks · block size; no block holds nothing, whatever its size."""
    count = blocks.event.blocks
    if count == 0:
        how = "no block"
        return known(0, TOKENS, Origin.DERIVED, how=how, evidence=(blocks.line,))
    return (size.named("block size") * count).cite(blocks.line)


def _block_of(blocks: Sighting[GpuBlocks], reported: Reported | None) -> Value:
    """The one whole block size for which blocks · size / longest length rounds to what is printed
    (executor/executor_base.py of 0.7.3:121, v1/core/kv_cache_utils.py of 0.7.3:525)."""
    why = "the block size is not printed"
    if reported is not None and isinstance(reported.value, Known) and blocks.event.blocks > 0:
        low, high = (
            bound * reported.request_tokens / blocks.event.blocks
            for bound in reported.value.interval
            if bound is not None
        )
        sizes = range(math.ceil(low), math.floor(high) + 1)
        if len(sizes) == 1:
            how = "the only block size that gives the printed concurrency"
            lines = (blocks.line, *reported.value.evidence)
            return known(sizes[0], TOKENS, Origin.DERIVED, how=how, evidence=lines)
        why = f"{why}, and several give the printed concurrency"
    return Unknown(why=why, unit=TOKENS, evidence=(blocks.line,))

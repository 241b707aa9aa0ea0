"""What the engines of a run say of their KV caches, and what their tokens mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

import attrs

from capacity_core.api.arguments import plausible_number
from capacity_core.api.extractors import Run, Sighting
from capacity_core.api.ledger import (
    Deployment,
    KvFacts,
    Reported,
    TokenUse,
    WorkerFacts,
    least_reported,
)
from capacity_core.api.versions import release_key
from capacity_core.units import BYTES, BYTES_PER_TOKEN, COUNT, GIB, REQUESTS, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known, least
from capacity_vllm.admission import FormerAdmission, VllmAdmission
from capacity_vllm.args import EngineConfig, NonDefaultArgs, Settings
from capacity_vllm.blocks import (
    BlockCount,
    BlocksOverridden,
    GpuBlocks,
    HybridDisabled,
    HybridSign,
    StateMode,
)
from capacity_vllm.candidates import Printed
from capacity_vllm.deployment import block_size_of, kv_dtype, span_of, version_of
from capacity_vllm.failures import ContextExceedsPool
from capacity_vllm.groups import MOST_GROUPS
from capacity_vllm.limits import EngineReady
from capacity_vllm.pools import ContextParallel, KvReserved, KvSize
from capacity_vllm.ranks import (
    WorkerReading,
)
from capacity_vllm.sizes import Size, engine_numbers, engine_of, sizes_of

# From here on the printed tokens are int(concurrency · longest length) for every model
# (v1/core/kv_cache_utils.py of 0.20.0:1679 and 0.21.0:1686).
_TOKENS_DERIVED_SINCE = (0, 21)


_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
_CHOSEN_SIZES = (16, 32, 64, 128, 256)
"""What back-ends choose by themselves where the arguments ask for none (0.33.0
vllm/v1/attention/backends)."""


class KvReading:
    """What the engines of a run say of their KV caches."""

    def __init__(self, run: Run, readings: Sequence[WorkerReading], settings: Settings) -> None:
        self._run = run
        self._readings = readings
        self._settings = settings
        self._former = run.has(GpuBlocks) and not run.has(KvSize)
        self._ranks = _ranks_of_engine(settings)
        self._one_prints = _one_worker_prints(run)
        self.sizes_of = list(sizes_of(run, block_size_of(run, settings)))
        self._blocks = self._plain_blocks()

    # A worker here is one engine with its own pool: a data-parallel rank.
    def workers(self, deployment: Deployment) -> tuple[WorkerFacts, ...]:
        count = deployment.workers
        named = set(range(int(count.number))) if isinstance(count, Known) else set()
        shown = {size.dp for size in self.sizes_of} | {r.rank.dp or 0 for r in self._readings}
        return tuple(self._worker(dp) for dp in sorted(named | shown))

    def _worker(self, dp: int) -> WorkerFacts:
        sizes = [size for size in self.sizes_of if size.dp == dp]
        tokens = [size.tokens for size in sizes if isinstance(size.tokens, Known)]
        budgets = [
            reading.kv_budget
            for reading in self._readings
            if self._engine_of_rank(reading) == dp and isinstance(reading.kv_budget, Known)
        ]
        budget = least(budgets) if budgets else Unknown(why="no KV budget is printed", unit=GIB)
        size = self._size_of(dp, budgets)
        limit = self._settings.number(REQUESTS, "max_num_seqs")
        if isinstance(limit, Unknown):
            why = "max_num_seqs is not printed, and its default depends on release and device"
            limit = Unknown(why=why, unit=REQUESTS)
        return WorkerFacts(
            dp=dp,
            # Up to 0.11.0 each worker's own count is printed before the engine takes the minimum.
            tokens=self._least_tokens(tokens) if tokens else self._unsaid_tokens(sizes),
            request_limit=limit,
            size=self._size_left(size, dp),
            # From 0.11.1 on one worker of a node prints it for all.
            budget=budget if self._one_prints and not self._staged() else size,
            reported=self._least_reported(sizes),
        )

    def _size_of(self, dp: int, budgets: Sequence[Value]) -> Value:
        """The least over all workers of an engine: a bound while one of them shows none."""
        if not budgets:
            return Unknown(why="no KV budget is printed", unit=GIB)
        missing = max(self._ranks or 0, self._shown(dp)) - len(budgets)
        why = "not every worker's KV budget is in the log"
        return least([*budgets, *([Unknown(why=why, unit=GIB)] if missing > 0 else [])])

    def _staged(self) -> bool:
        """Whether pipeline stages have budgets of their own."""
        return (self._settings.whole("pipeline_parallel_size") or 1) > 1

    def _size_left(self, size: Value, dp: int) -> Value:
        """What the pool is made of, where later lines change it: less than the budget that was
        printed, or as many blocks as were asked for."""
        numbers = engine_numbers(self._run)
        mine = [s for s in self._run.of(KvReserved) if numbers.get(engine_of(s), 0) == dp]
        override = override_of(self._run)
        if override is not None:
            why = "another number of blocks was asked for than the budget makes"
            return Unknown(why=why, unit=GIB, evidence=(override.line,))
        if mine and isinstance(size, Known):
            return mine[-1].value("left", "kv_pool")
        return size

    def _shown(self, dp: int) -> int:
        return sum(self._engine_of_rank(reading) == dp for reading in self._readings)

    def _least_tokens(self, tokens: Sequence[Value]) -> Value:
        why = "not every worker's tokens are in the log"
        return least([*tokens, *([Unknown(why=why, unit=TOKENS)] if self._lacks(tokens) else [])])

    def _least_reported(self, sizes: Sequence[Size]) -> Reported | None:
        said = [size.reported for size in sizes if size.reported is not None]
        return least_reported([*said, *([None] if said and self._lacks(said) else [])])

    def _lacks(self, said: Sequence[object]) -> bool:
        """Whether lines that each worker's configuration gets are missing."""
        return not (self._one_prints or self._former) and len(said) < (self._ranks or 0)

    def _unsaid_tokens(self, sizes: Sequence[Size]) -> Value:
        """What a refused start says, when no size line does: the tokens of all blocks."""
        refused = self._run.last_of(ContextExceedsPool)
        if refused is not None and refused.event.held is not None:
            return refused.value("held")
        if sizes:
            return sizes[0].tokens
        return Unknown(why="no 'KV cache size' line", unit=TOKENS)

    def _engine_of_rank(self, reading: WorkerReading) -> int | None:
        """The engine that a worker belongs to; a worker known by its pid alone may be any's."""
        if reading.rank.dp is not None:
            return reading.rank.dp
        return 0 if len({size.dp for size in self.sizes_of}) < 2 else None

    def facts(self) -> KvFacts:
        use, why = self._token_use()
        return KvFacts(
            token_use=use,
            token_use_why=why,
            blocks=tuple(self._blocks) if use is TokenUse.ANY_LENGTH else self._possible_blocks(),
            share_bounds=self._share_bounds(),
            unusable=self._null_block(),
            bytes_per_token=self._bytes_per_token(),
            bytes_per_full_token=Unknown(why="not a figure of vLLM", unit=BYTES_PER_TOKEN),
            sizing_mode=Unknown(why="not a setting of vLLM"),
            dtype=kv_dtype(self._run),
            if_plain=self._size_over_tokens(),
            assumes=self._unproven(),
        )

    def admission(self, deployment: Deployment) -> VllmAdmission | FormerAdmission | None:
        """What the run says of its blocks."""
        if self._former:
            return FormerAdmission(block=self._blocks[0]) if len(self._blocks) == 1 else None
        signs = self._run.of(HybridSign)
        sizes = {s.event.sizes for s in signs if s.event.sizes}
        context = deployment.context_length
        modes = {s.event.mode for s in self._run.of(StateMode)}
        lines = [s.line for s in (*signs, *self._run.of(StateMode, HybridDisabled))]
        device = self._settings.text("device_config")
        printed = Printed(
            length=int(context.number) if isinstance(context, Known) else None,
            block=block_size_of(self._run, self._settings),
            sizes=tuple(int(n) for n in sizes.pop().split(", ")) if len(sizes) == 1 else (),
            possible=_CHOSEN_SIZES if self._run.has(NonDefaultArgs) else _BLOCK_SIZES,
            plain=not signs and not modes and self._one_group(),
            has_states=bool(modes) or any(s.event.states for s in signs),
            as_full=self._run.has(HybridDisabled),
            mode=modes.pop() if len(modes) == 1 else None,
            batched=deployment.chunked_prefill_size | self._largest_step(),
            async_known=False if isinstance(device, Known) and device.amount == "cpu" else None,
            derived=self._derived_tokens(),
            drafts=self._drafts(deployment),
            unproven=self._unproven(),
            blocks=self._blocks_said(),
            stages=self._settings.whole("pipeline_parallel_size") or 1,
            shards=self._settings.whole("decode_context_parallel_size") or 1,
            preallocates=self._preallocates(),
        )
        return VllmAdmission(
            printed=printed,
            context_parallel=self._run.has(ContextParallel),
            lines=tuple(dict.fromkeys((*context.evidence, *lines))),
        )

    def _largest_step(self) -> Value:
        """Tokens of a step: the upper end of what is compiled for (0.33.0 vllm/config/vllm.py:2664,
        0.12.0 `compile_ranges_split_points`)."""
        for name in ("compile_ranges_endpoints", "compile_ranges_split_points"):
            said = self._settings.nested("compilation_config", name)
            ends = re.findall(r"\d+", str(said.amount)) if isinstance(said, Known) else []
            steps = [n for end in ends if (n := plausible_number(end, TOKENS)) is not None]
            if steps:
                lines = said.evidence
                return known(max(steps), TOKENS, Origin.CONFIGURED, how=name, evidence=lines)
        return Unknown(why="max_num_batched_tokens is not printed", unit=TOKENS)

    def _preallocates(self) -> bool:
        """Whether this may be a release that gives requests blocks ahead (gone in 0.8.5)."""
        span = span_of(self._run)
        return span is not None and release_key(span[0]) < (0, 8, 5)

    def _unproven(self) -> tuple[str, ...]:
        """What calling a model plain rests on where its lines fit windows as well: a lone group of
        windows is named nowhere, and where a whole prompt is in flight several of them round to
        the same concurrency."""
        if self._run.has(HybridDisabled) or self._former:
            return ()
        proven = self._derived_tokens() is False and self._blocks
        if proven and not any(_fits_others(size) for size in self.sizes_of):
            return ()
        return ("no layer keeps a sliding window or a state, which no line tells",)

    def _blocks_said(self) -> dict[int, Known]:
        """The blocks that lines say outright, the same for all engines."""
        override = override_of(self._run)
        said = [override.value("used")] if override is not None else []
        said = said or [sighting.value("blocks") for sighting in self._run.of(BlockCount)]
        counts = {value.number: value for value in said if isinstance(value, Known)}
        if len(counts) != 1:
            return {}
        (count,) = counts.values()
        return {size.dp: count for size in self.sizes_of}

    def _drafts(self, deployment: Deployment) -> Value | None:
        """Tokens that speculative decoding proposes in a step."""
        if not isinstance(deployment.speculative, Known):
            return None
        for name in ("num_spec_tokens", "num_speculative_tokens"):
            said = self._settings.nested("speculative_config", name)
            count = plausible_number(str(said.amount), TOKENS) if isinstance(said, Known) else None
            if count is not None:
                lines = said.evidence
                return known(count, TOKENS, Origin.CONFIGURED, how=name, evidence=lines)
        return Unknown(why="the tokens of a draft are not printed", unit=TOKENS)

    def _one_group(self) -> bool:
        """Whether a model of several groups would have said so: in its tokens up to 0.20, by a line
        behind them from 0.30 on."""
        if self._derived_tokens() is False:
            return bool(self._blocks)
        span = span_of(self._run)
        says_groups = span is not None and release_key(span[0])[:2] >= (0, 30)
        return says_groups and self._run.has(EngineConfig) and self._run.has(EngineReady)

    def _token_use(self) -> tuple[TokenUse, str]:
        """What the printed tokens mean for other lengths; see KvSize."""
        if self._former:
            return TokenUse.ANY_LENGTH, ""  # engines that print blocks keep every token
        longest = (
            "these tokens are concurrency · max_model_len: they hold at that length, shorter "
            "requests cost more than their share wherever a model keeps more than full-length KV"
        )
        derived = self._derived_tokens()
        if derived:
            return TokenUse.LONGEST_ONLY, longest
        if self._blocks:
            if derived is False:
                return TokenUse.ANY_LENGTH, ""
            use = TokenUse.LONGEST_ONLY if self._whole_longest else TokenUse.UPPER_LIMIT
            return use, f"the release is not known; {longest}"
        if self._run.has(ContextParallel):
            return TokenUse.UNCLEAR, "the tokens are of all context-parallel ranks together"
        if any(size.reported is not None for size in self.sizes_of):
            return TokenUse.UNCLEAR, "tokens and concurrency do not agree on one kind of KV cache"
        return TokenUse.UNCLEAR, "no concurrency line tells whether all layers keep full-length KV"

    @property
    def _whole_longest(self) -> bool:
        """Whether the longest request is whole blocks: then both meanings of tokens agree on it."""
        lengths = {size.reported.request_tokens for size in self.sizes_of if size.reported}
        return not any(length % block for length in lengths for block in self._blocks)

    def _derived_tokens(self) -> bool | None:
        """Whether tokens are derived from the concurrency, as from 0.21.0 on; None when the release
        is not known: builds from source call themselves 0.1.dev, builds towards 0.21 0.20.x."""
        if any(isinstance(s.event, KvSize) and s.event.concurrency for s in self._run.of(KvSize)):
            return True  # one line: 0.28.0 and later
        version = version_of(self._run)
        if isinstance(version, Known):
            release = release_key(str(version.amount))[:2]
            built = re.search(r"dev|rc", str(version.amount)) is not None
            if release > (0, 1) and not (built and release == (0, 20)):
                return release >= _TOKENS_DERIVED_SINCE
        span = self._run.version_range
        if span is None:
            return None
        if release_key(span[0])[:2] >= _TOKENS_DERIVED_SINCE:
            return True
        return False if release_key(span[1])[:2] < _TOKENS_DERIVED_SINCE else None

    def _plain_blocks(self) -> list[int]:
        """The block sizes for which tokens are blocks · size and the concurrency follows from them.

        concurrency = blocks / ceil(longest / size) holds for models with one kind of KV cache alone
        (v1/core/kv_cache_utils.py of 0.9.2:740 … 0.20.0:872); two decimals are printed. Where the
        tokens are whole longest requests, state-space models with one block a request fit, too:
        `_unproven`.
        """
        hybrid = self._run.has(HybridSign) and not self._run.has(HybridDisabled)
        if hybrid or self._run.has(ContextParallel):
            return []
        if self._former:
            said = [size.block for size in self.sizes_of if isinstance(size.block, Known)]
            return sorted({int(block.number) for block in said})
        sizes = [s for s in self.sizes_of if isinstance(s.tokens, Known) and s.reported is not None]
        fitting = set(_BLOCK_SIZES) if sizes else set()
        for size in sizes:
            fitting &= set(_blocks_that_fit(size))
        printed = block_size_of(self._run, self._settings)
        if isinstance(printed, Known):
            fitting &= {int(printed.number)}
        return sorted(fitting)

    def _possible_blocks(self) -> tuple[int, ...]:
        """The block sizes that this cache may have: the printed one, the usual ones for a log that
        shows its start, and none when a hybrid model's own may be missing."""
        said = block_size_of(self._run, self._settings)
        if isinstance(said, Known):
            return (int(said.number),)
        started = self._run.has(EngineConfig) and not self._run.has(HybridSign)
        return _BLOCK_SIZES if started else ()

    def _share_bounds(self) -> bool:
        """Whether sliding windows are excluded: they pay for a whole chunk of a prefill in the
        engine's formula and for their window alone afterwards, so that more requests run than the
        longest one's share allows. From 0.30 on models with several groups say so; before that,
        only tokens that follow from blocks show that there is one.
        """
        if self._run.has(HybridSign):
            return False
        span = span_of(self._run)
        says_groups = span is not None and release_key(span[0])[:2] >= (0, 30)
        return says_groups or self._derived_tokens() is False

    def _null_block(self) -> Value | None:
        """One block is never given to a request (v1/core/block_pool.py of 0.10.2:315); engines that
        print blocks have none such."""
        if self._former:
            return None
        said = block_size_of(self._run, self._settings)
        if isinstance(said, Known):
            return said
        largest = self._blocks[-1] if self._blocks else _BLOCK_SIZES[-1]
        half = Decimal(1 + largest) / 2
        return Known(
            amount=half,
            unit=TOKENS,
            error=half - 1,
            origin=Origin.ASSUMED,
            how="one block of an unprinted size",
        )

    def _bytes_per_token(self) -> Value:
        """budget / tokens, too high by less than one block: floor(budget / block bytes) blocks are
        made."""
        unit = BYTES_PER_TOKEN
        derived = self._derived_tokens()
        if derived is not False:
            why = "the release is not known, and with it what the printed tokens are"
            if derived:
                why = (
                    "the printed tokens are concurrency times context length, not what blocks hold"
                )
            return Unknown(why=why, unit=unit)
        if not self._blocks:
            return Unknown(why="the model may keep more than one kind of KV cache", unit=unit)
        return self._size_over_tokens().assume(*self._unproven())

    def _size_over_tokens(self) -> Value:
        """budget / tokens, whatever the model keeps."""
        unit = BYTES_PER_TOKEN
        if self._run.has(KvReserved) or override_of(self._run) is not None:
            return Unknown(why="the pool is not made of the whole printed budget", unit=unit)
        if any(reading.rank.pp for reading in self._readings):
            return Unknown(why="pipeline stages may hold different layers", unit=unit)
        budgets = [r.kv_budget for r in self._readings if isinstance(r.kv_budget, Known)]
        if not self._one_prints and isinstance(self._size_of(0, budgets), Unknown):
            return Unknown(why="not every worker's KV budget is in the log", unit=unit)
        said = [size.tokens for size in self.sizes_of if isinstance(size.tokens, Known)]
        if self._lacks(said):
            return Unknown(why="not every worker's tokens are in the log", unit=unit)
        if not budgets or not said:
            return Unknown(why="no KV budget or no tokens are printed", unit=unit)
        tokens = least(said).named("tokens")
        per_token = least(budgets).named("kv_budget").to(BYTES) / tokens
        if isinstance(per_token, Known) and isinstance(tokens, Known):
            largest = self._blocks[-1] if self._blocks else _BLOCK_SIZES[-1]
            share = largest / tokens.number  # the last block of the budget
            if self._derived_tokens() is not False:  # and the last one of the longest request
                lengths = [s.reported.request_tokens for s in self.sizes_of if s.reported]
                largest = max(self._possible_blocks(), default=_BLOCK_SIZES[-1])
                share = largest / tokens.number + Decimal(largest) / min(lengths, default=largest)
            slack = per_token.number * share
            per_token = attrs.evolve(per_token, error=per_token.error + slack)
        return per_token


def _ranks_of_engine(settings: Settings) -> int | None:
    """How many workers share one engine's blocks: tensor · pipeline, as far as told."""
    sizes = [settings.number(COUNT, f"{kind}_parallel_size") for kind in ("tensor", "pipeline")]
    if not isinstance(sizes[0], Known):
        return None
    return int(sizes[0].number) * (int(sizes[1].number) if isinstance(sizes[1], Known) else 1)


def _one_worker_prints(run: Run) -> bool:
    """Whether one worker of a node surely prints budget, tokens and concurrency for all: up to
    0.11.0 each does, before the minimum is taken (v1/core/kv_cache_utils.py of 0.11.0:1080)."""
    span = span_of(run)
    return span is not None and release_key(span[0]) >= (0, 11, 1)


def _blocks_that_fit(size: Size) -> list[int]:
    if not isinstance(size.tokens, Known) or size.reported is None:
        return []
    printed = size.reported.value
    if not isinstance(printed, Known) or size.reported.request_tokens <= 0:
        return []
    tokens = int(size.tokens.number)
    if not tokens:
        return []
    found = []
    for block in _BLOCK_SIZES:
        whole = -(-size.reported.request_tokens // block) * block
        off = abs(Decimal(tokens) / whole - printed.number)
        if tokens % block == 0 and off <= printed.error:
            found.append(block)
    return found


def _fits_others(size: Size) -> bool:
    """Whether a block for the state of each request gives the printed figures as well, or groups of
    which some or all keep windows, with a whole prompt in flight: ceil(length / block) blocks in
    each, and one more in those."""
    said = size.reported
    if said is None or not isinstance(said.value, Known) or not isinstance(size.tokens, Known):
        return False
    tokens, printed = int(size.tokens.number), said.value
    if tokens % said.request_tokens == 0:
        return True
    for block in (block for block in _BLOCK_SIZES if tokens % block == 0):
        longest = -(-said.request_tokens // block)
        for groups in range(1, MOST_GROUPS + 1):
            fewest = groups * (tokens // block)
            for windows in range(1, groups + 1):
                reckoned = groups * longest + windows
                low, high = (Decimal(n) / reckoned for n in (fewest, fewest + groups - 1))
                if low <= printed.number + printed.error and high >= printed.number - printed.error:
                    return True
    return False


def override_of(run: Run) -> Sighting[BlocksOverridden] | None:
    """The override of the block count; graph profiling prints one of 0 blocks for itself."""
    real = [s for s in run.of(BlocksOverridden) if s.event.profiled > 0]
    return real[-1] if real else None

"""One rank's accounting: its lines in order become loads, pool groups and captures, and these
become memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from capacity_core.api.extractors import Sighting
from capacity_core.api.ledger import (
    Category,
    Checkpoint,
    Part,
    Pool,
    RankFacts,
    RankId,
    Role,
    Stage,
    sum_of,
)
from capacity_core.units import GIB, TOKENS
from capacity_core.values import Known, Origin, Unknown, Value, known, total
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.limits import Limits
from capacity_sglang.pools import (
    CompressedBudget,
    CompressedPools,
    KvBudget,
    PoolAllocated,
    PoolsReady,
    PostCapturePool,
    SlidingWindowTokens,
    SlidingWindowTotal,
    StatePool,
    StateSlots,
)
from capacity_sglang.weights import (
    DistributedReady,
    WeightsBegin,
    WeightsLoaded,
    is_draft_class,
)

NO_KV_LINE = "no line tells the KV pool's size"


@attrs.define
class Load:
    """The loading of one model: its first and its last line, as far as printed."""

    role: Role
    begin: Sighting[Any] | None = None
    end: Sighting[Any] | None = None

    @property
    def done(self) -> bool:
        return self.end is not None


@attrs.define
class PoolGroup:
    """The pools that one model's configurator allocated, up to its `Memory pool end`."""

    role: Role
    pools: list[Sighting[Any]] = attrs.field(factory=list)
    window_total: Sighting[Any] | None = None
    window_tokens: Sighting[Any] | None = None
    ready: Sighting[Any] | None = None

    @property
    def reserved(self) -> bool:
        """Whether only addresses were set aside."""
        events = [s.event for s in (*self.pools, self.window_total) if s is not None]
        return any(getattr(event, "reserved", None) for event in events)


class RankReading:
    """What one rank printed, sorted by what it belongs to.

    A draft model repeats the lines of its target without saying so (up to 0.5.12 after the target's
    graphs, from 0.5.15 its weights before the target's pool): the second load, the second pool
    group and every class that only serves as a draft are the draft's.
    """

    def __init__(self, rank: RankId, label: str, sightings: Iterable[Sighting[Any]]) -> None:
        self.rank = rank
        self.label = label
        self.distributed: list[Sighting[Any]] = []
        self.loads: list[Load] = []
        self.groups: list[PoolGroup] = []
        self.states: list[Sighting[Any]] = []
        self.slots: Sighting[Any] | None = None
        self.budget: Sighting[Any] | None = None
        self.compressed: Sighting[Any] | None = None
        self.compressed_pools: Sighting[Any] | None = None
        self.post_capture: list[Sighting[Any]] = []
        self.begins: list[Sighting[Any]] = []
        self.ends: list[Sighting[Any]] = []
        self.limits: Sighting[Any] | None = None
        for sighting in sightings:
            self._take(sighting)

    def _take(self, sighting: Sighting[Any]) -> None:
        event = sighting.event
        if isinstance(event, WeightsBegin):
            drafts = any(load.done for load in self.loads)
            self.loads.append(Load(Role.DRAFT if drafts else Role.TARGET, begin=sighting))
        elif isinstance(event, WeightsLoaded):
            self._loaded(sighting, event)
        elif isinstance(
            event, PoolAllocated | SlidingWindowTotal | SlidingWindowTokens | PoolsReady
        ):
            self._pool(sighting)
        elif isinstance(event, CaptureBegin):
            self.begins.append(sighting)
        elif isinstance(event, CaptureEnd):
            self.ends.append(sighting)
        elif isinstance(event, PostCapturePool):
            self.post_capture.append(sighting)
        elif isinstance(event, DistributedReady):
            self.distributed.append(sighting)
        elif isinstance(event, StatePool):
            self.states.append(sighting)
        elif isinstance(event, StateSlots):
            self.slots = self.slots or sighting
        elif isinstance(event, KvBudget):
            self.budget = self.budget or sighting  # the target's comes first
        elif isinstance(event, CompressedBudget):
            self.compressed = sighting
        elif isinstance(event, CompressedPools):
            self.compressed_pools = sighting
        elif isinstance(event, Limits):
            self.limits = sighting

    def _loaded(self, sighting: Sighting[Any], event: WeightsLoaded) -> None:
        draft = is_draft_class(event.model_class)
        if self.loads and not self.loads[-1].done:
            load = self.loads[-1]
            load.end = sighting
        else:
            before = any(load.done for load in self.loads)
            load = Load(Role.DRAFT if before else Role.TARGET, end=sighting)
            self.loads.append(load)
        if draft:
            load.role = Role.DRAFT

    def _pool(self, sighting: Sighting[Any]) -> None:
        if not self.groups or self.groups[-1].ready is not None:
            self.groups.append(PoolGroup(Role.DRAFT if self.groups else Role.TARGET))
        group = self.groups[-1]
        event = sighting.event
        if isinstance(event, PoolAllocated):
            group.pools.append(sighting)
        elif isinstance(event, SlidingWindowTotal):
            group.window_total = sighting
        elif isinstance(event, SlidingWindowTokens):
            group.window_tokens = sighting
        else:
            group.ready = sighting

    # --- free memory --------------------------------------------------

    def free(self, stage: Stage, role: Role = Role.TARGET) -> Value:
        """Free memory at a stage: the first reading before something starts, the last one after it
        ended."""
        sighting = self._checkpoint(stage, role)
        name = f"free[{stage.value}]" if role is Role.TARGET else f"free[{stage.value},draft]"
        if sighting is None:
            return Unknown(
                why=f"{self.label} prints no free memory at {stage.value}", unit=GIB, name=name
            )
        return sighting.value("free", name)

    def _checkpoint(self, stage: Stage, role: Role) -> Sighting[Any] | None:
        loads = [load for load in self.loads if load.role is role]
        groups = [group for group in self.groups if group.role is role]
        found: Sequence[Sighting[Any] | None]
        if stage is Stage.BEFORE_WEIGHTS:
            found = [load.begin for load in loads[:1]]
        elif stage is Stage.AFTER_WEIGHTS:
            found = [load.end for load in loads[-1:]]
        elif stage is Stage.AFTER_POOLS:
            found = [group.ready for group in groups[-1:]]
        elif stage is Stage.BEFORE_GRAPHS:
            found = [s for s in self.begins if _graph_role(s) is role][:1]
        elif stage is Stage.AFTER_GRAPHS:
            found = [s for s in self.ends if _graph_role(s) is role][-1:]
        else:
            found = [self.limits] if stage is Stage.READY and role is Role.TARGET else []
        return next((s for s in found if s is not None and s.event.free is not None), None)

    @property
    def timeline(self) -> tuple[Checkpoint, ...]:
        return tuple(
            Checkpoint(stage=stage, role=role, free=self.free(stage, role))
            for stage in Stage
            for role in Role
            if self._checkpoint(stage, role) is not None
        )

    # --- memory -------------------------------------------------------

    def facts(self, graphs_off: Known | None, other_phases: frozenset[str]) -> RankFacts:
        """This rank's memory. `graphs_off` is the argument that switched captures off, if it did;
        `other_phases` are draft captures that other ranks of the run printed."""
        pools = self.kv_pools
        parts = (
            *self._framework_parts(),
            *self._weight_parts(),
            *self._kv_parts(pools),
            *self._state_parts(),
            *self._graph_parts(graphs_off, other_phases),
        )
        return RankFacts(
            id=self.rank,
            label=self.label,
            parts=parts,
            timeline=self.timeline,
            memory={
                Category.FRAMEWORK: Unknown(why="SGLang prints no device total", unit=GIB),
                Category.WEIGHTS: self._weights(parts),
                Category.KV_POOL: sum_of(parts, Category.KV_POOL, NO_KV_LINE),
                Category.STATE_POOL: sum_of(parts, Category.STATE_POOL, "no state pool line"),
                Category.CUDA_GRAPH: sum_of(
                    parts, Category.CUDA_GRAPH, f"{self.label} prints no graph capture"
                ),
                Category.ACTIVATION: Unknown(why="SGLang does not print it", unit=GIB),
            },
        )

    def _framework_parts(self) -> Iterable[Part]:
        for sighting in self.distributed[:1]:
            yield Part(
                category=Category.FRAMEWORK,
                role=Role.TARGET,
                label="process group",
                size=sighting.value("used", "process_group"),
            )

    def _weight_parts(self) -> Iterable[Part]:
        for load in self.loads:
            if load.end is None:
                why = f"{self.label}: loading began, no end line"
                size: Value = Unknown(why=why, unit=GIB)
            else:
                before = (
                    load.begin.value("free")
                    if load.begin
                    else Unknown(
                        why=f"no 'Load weight end' mem usage and no begin line for {self.label}",
                        unit=GIB,
                    )
                )
                role = "" if load.role is Role.TARGET else ",draft"
                size = load.end.value("used") | (
                    before.named(f"free[before_weights{role}]")
                    - load.end.value("free", f"free[after_weights{role}]")
                )
            event = load.end.event if load.end else None
            label = event.model_class if isinstance(event, WeightsLoaded) else None
            yield Part(
                category=Category.WEIGHTS,
                role=load.role,
                label=label or "weights",
                size=size.named(f"weights[{load.role.value}]"),
            )

    def _weights(self, parts: Iterable[Part]) -> Value:
        """Target and draft weights; unknown when the target's own were not printed."""
        parts = tuple(parts)
        if any(load.role is Role.TARGET for load in self.loads):
            return sum_of(parts, Category.WEIGHTS, "")
        return Unknown(
            why=f"no 'Load weight end' line for {self.label}'s served model",
            unit=GIB,
            name="weights",
        )

    @property
    def kv_pools(self) -> tuple[Pool, ...]:
        """Every KV pool of this rank that was allocated, target's first, with its role and
        label."""
        return tuple(pool for group in self.groups for pool in _pools_of(group))

    def _kv_parts(self, pools: Sequence[Pool]) -> Iterable[Part]:
        if self.post_capture:
            for sighting in self.post_capture:
                draft = getattr(sighting.event, "draft", None)
                role = Role.DRAFT if draft else Role.TARGET
                yield Part(
                    category=Category.KV_POOL,
                    role=role,
                    label="sized after capture",
                    size=sighting.value("size", f"kv_pool[{role.value}]"),
                    tokens=sighting.value("tokens"),
                )
            return
        if any(group.reserved for group in self.groups):
            why = "only address space was reserved; no post-capture sizing line follows"
            yield Part(
                category=Category.KV_POOL,
                role=Role.TARGET,
                label="reserved",
                size=Unknown(why=why, unit=GIB),
            )
            return
        for group in self.groups:
            mine = [pool for pool in pools if pool.role is group.role]
            if group.window_total is not None:
                name = f"kv_pool[{group.role.value}]"
                yield Part(
                    category=Category.KV_POOL,
                    role=group.role,
                    label="full + swa",
                    size=group.window_total.value("size", name),
                )
            elif mine:
                for pool in mine:
                    yield Part(
                        category=Category.KV_POOL,
                        role=pool.role,
                        label=pool.label,
                        size=pool.size,
                        tokens=pool.tokens,
                    )
            elif self._unprinted_pool:
                yield Part(
                    category=Category.KV_POOL,
                    role=group.role,
                    label="by difference",
                    size=self._pool_by_difference(group),
                )

    @property
    def _unprinted_pool(self) -> bool:
        """Whether this release and pool print no allocation line: compressed pools, and all up to
        0.4.0.

        Elsewhere a missing line is missing from the log, and a difference would hold what else it
        does not show.
        """
        old = any(load.end is not None and _is_old(load.end.event) for load in self.loads)
        return self.compressed is not None or self.compressed_pools is not None or old

    def _pool_by_difference(self, group: PoolGroup) -> Value:
        if group.role is Role.DRAFT:
            before = self.free(Stage.AFTER_POOLS)
        else:
            done = [load for load in self.loads if load.end is not None]
            # From 0.5.15 the draft's weights stand between the target's and its pool.
            before = (
                self.free(Stage.AFTER_WEIGHTS, done[-1].role)
                if done
                else Unknown(why=f"no 'Load weight end' line for {self.label}", unit=GIB)
            )
            if (
                done
                and len(self.groups) > 1
                and done[-1].role is Role.DRAFT
                and not self._draft_first
            ):
                before = self.free(Stage.AFTER_WEIGHTS)
        after = self.free(Stage.AFTER_POOLS, group.role)
        return (before - after).named(f"kv_pool[{group.role.value}]")

    @property
    def _draft_first(self) -> bool:
        """Whether the draft's weights were loaded before the target's pool."""
        drafts = [load.end for load in self.loads if load.role is Role.DRAFT and load.end]
        ready = self.groups[0].ready if self.groups else None
        return bool(drafts and ready and _line_number(drafts[0]) < _line_number(ready))

    def _state_parts(self) -> Iterable[Part]:
        for number, sighting in enumerate(self.states):
            pieces = ("conv", "ssm", "intermediate_ssm", "intermediate_conv")
            sizes = [
                sighting.value(piece, piece)
                for piece in pieces
                if getattr(sighting.event, piece) is not None
            ]
            role = Role.TARGET if number == 0 else Role.DRAFT
            yield Part(
                category=Category.STATE_POOL,
                role=role,
                label="state",
                size=total(sizes, f"state_pool[{role.value}]"),
            )

    def _graph_parts(
        self, graphs_off: Known | None, other_phases: frozenset[str]
    ) -> Iterable[Part]:
        open_phases = [_phase(sighting) for sighting in self.begins]
        for sighting in self.ends:
            phase = _phase(sighting)
            if phase in open_phases:
                open_phases.remove(phase)
            yield Part(
                category=Category.CUDA_GRAPH,
                role=_graph_role(sighting),
                label=phase,
                size=sighting.value("used", f"graph[{phase}]"),
            )
        mine = {_phase(sighting) for sighting in (*self.begins, *self.ends)}
        for phase, why in (
            *(
                (phase, f"{self.label}: the {phase} capture began, no end line")
                for phase in open_phases
            ),
            *(
                (phase, f"the {phase} capture is printed by another rank alone")
                for phase in sorted(other_phases - mine)
                if self.ends
            ),
        ):
            role = Role.DRAFT if "draft" in phase else Role.TARGET
            yield Part(
                category=Category.CUDA_GRAPH,
                role=role,
                label=phase,
                size=Unknown(why=why, unit=GIB),
            )
        if graphs_off is not None and not mine:
            off = known(0, GIB, Origin.CONFIGURED, how=graphs_off.how, evidence=graphs_off.evidence)
            yield Part(
                category=Category.CUDA_GRAPH, role=Role.TARGET, label="switched off", size=off
            )

    # --- what the pool holds ------------------------------------------

    @property
    def draft_phases(self) -> frozenset[str]:
        return frozenset(_phase(s) for s in self.ends if _graph_role(s) is Role.DRAFT)

    @property
    def is_hybrid_window(self) -> bool:
        """Whether sliding-window layers have a pool of their own."""
        return any(
            group.window_total is not None or group.window_tokens is not None or _labels(group) > 1
            for group in self.groups
        )

    @property
    def target_tokens(self) -> Value:
        """Tokens of the served model's full-length pool, as this rank's pool lines say them."""
        final = [s for s in self.post_capture if getattr(s.event, "draft", None) is None]
        if final:
            return final[-1].value("tokens", f"tokens[{self.label}]")
        if self.compressed_pools is not None:
            return self.compressed_pools.value("full", f"tokens[{self.label}]")
        if self.compressed is not None:
            return self.compressed.value("full_tokens", f"tokens[{self.label}]")
        for group in self.groups[:1]:
            if group.reserved:
                break
            split = group.window_total or group.window_tokens
            if split is not None and getattr(split.event, "full_tokens", None) is not None:
                return split.value("full_tokens", f"tokens[{self.label}]")
            if group.pools:
                largest = max(group.pools, key=lambda s: int(s.event.tokens))
                return largest.value("tokens", f"tokens[{self.label}]")
        return Unknown(why=f"{self.label} prints no KV pool tokens", unit=TOKENS)

    @property
    def kv_budget(self) -> Value:
        if self.compressed is not None:
            return self.compressed.value("budget", "budget")
        if self.budget is not None:
            return self.budget.value("budget", "budget")
        return Unknown(why="the budget before allocation is not printed", unit=GIB)

    @property
    def state_slots(self) -> Value | None:
        return self.slots.value("slots") if self.slots is not None else None


def _pools_of(group: PoolGroup) -> Iterable[Pool]:
    split = group.window_total or group.window_tokens
    for sighting in group.pools:
        event = sighting.event
        assert isinstance(event, PoolAllocated)  # noqa: S101  # what `_pool` puts there
        label = event.label.lower() if event.label else "full"
        if event.label is None and split is not None:
            swa = getattr(split.event, "swa_tokens", None)
            full = getattr(split.event, "full_tokens", None)
            label = "swa" if event.tokens == swa and event.tokens != full else "full"
        name = (
            f"kv_pool[{group.role.value}]"
            if label == "full"
            else f"kv_pool[{group.role.value},{label}]"
        )
        k_size = sighting.value("k_size", "K") if event.k_size is not None else None
        v_size = sighting.value("v_size", "V") if event.v_size is not None else None
        size = sighting.value("size")
        if k_size is not None and v_size is not None:
            size = k_size + v_size
        yield Pool(
            role=group.role,
            label=label,
            tokens=sighting.value("tokens"),
            size=size.named(name),
            k_size=k_size,
            v_size=v_size,
        )


def _labels(group: PoolGroup) -> int:
    return len({sighting.event.label for sighting in group.pools} - {None})


def _phase(sighting: Sighting[Any]) -> str:
    return sighting.event.phase or "target"


def _graph_role(sighting: Sighting[Any]) -> Role:
    return Role.DRAFT if "draft" in _phase(sighting) else Role.TARGET


def _is_old(event: object) -> bool:
    return isinstance(event, WeightsLoaded) and event.used is None and event.model_class is not None


def _line_number(sighting: Sighting[Any]) -> int:
    return int(sighting.line.rpartition(":")[2])

"""One rank's lines sorted by what they belong to: loads, pool groups, captures; target or draft."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from capacity_core.api.extractors import Sighting
from capacity_core.api.ledger import Checkpoint, Pool, RankId, Role, Stage
from capacity_core.units import GIB, TOKENS
from capacity_core.values import Unknown, Value
from capacity_sglang.compressed import CompressedBudget, CompressedPools
from capacity_sglang.graphs import CaptureBegin, CaptureEnd
from capacity_sglang.host import HostPoolAllocated
from capacity_sglang.limits import Limits
from capacity_sglang.pools import (
    KvBudget,
    PoolAllocated,
    PoolSkipped,
    PoolsReady,
    SlidingWindowTokens,
    SlidingWindowTotal,
    UnifiedPool,
)
from capacity_sglang.post_capture import PostCapturePool, PostCaptureSplit
from capacity_sglang.states import StateCheckpoints, StatePool, StateRings, StateSlots
from capacity_sglang.weights import (
    DistributedReady,
    WeightsBegin,
    WeightsLoaded,
    is_draft_class,
)


@attrs.define
class Load:
    """The loading of one model: its first and its last line, as far as printed."""

    role: Role
    begin: Sighting[WeightsBegin] | None = None
    end: Sighting[WeightsLoaded] | None = None


@attrs.frozen
class Capture:
    """One line of a graph capture, with the role it belongs to; `phase` is what is captured."""

    role: Role
    phase: str
    sighting: Sighting[Any]


@attrs.define
class PoolGroup:
    """The pools that one model's configurator allocated, up to its `Memory pool end`."""

    role: Role
    allocated: list[Sighting[PoolAllocated]] = attrs.field(factory=list)
    total: Sighting[SlidingWindowTotal] | None = None
    split: Sighting[SlidingWindowTokens] | None = None
    ready: Sighting[PoolsReady] | None = None

    @property
    def reserved(self) -> bool:
        """Whether only addresses were set aside."""
        events = [s.event for s in (*self.allocated, self.total) if s is not None]
        return any(event.reserved for event in events)

    def holds(self, event: PoolAllocated) -> bool:
        """Whether a pool of this kind and size was allocated before, in a model that has one."""
        hybrid = self.total is not None or self.split is not None
        return not hybrid and any(
            (s.event.tokens, s.event.label) == (event.tokens, event.label) for s in self.allocated
        )

    @property
    def window_tokens(self) -> tuple[int | None, int | None]:
        """Tokens of the full and of the sliding-window pool, where a line tells them apart."""
        split = self.total or self.split
        if split is None:
            return None, None
        return split.event.full_tokens or None, split.event.swa_tokens

    def pools(self, drafts: bool) -> Iterator[Pool]:
        """The pools with their labels. Up to 0.5.17 none is printed: the sliding-window pool comes
        first and is the smaller one; a count that comes again is a draft model's, if there is
        one."""
        _, swa = self.window_tokens
        counts = [s.event.tokens for s in self.allocated]
        if swa is None and len(set(counts)) > 1:
            swa = min(counts)
        taken: set[str] = set()
        for sighting in self.allocated:
            event = sighting.event
            label, role = "full", self.role
            if event.label is not None:
                label = event.label.lower()
            elif event.tokens == swa and "swa" not in taken:
                label = "swa"
            elif "full" in taken and drafts:
                role = Role.DRAFT
            taken.add(label)
            yield _pool(sighting, role, label)

    @property
    def cut(self) -> bool:
        """Whether the log ends between the pools of a hybrid model."""
        hybrid = None not in self.window_tokens
        unfinished = self.ready is None and self.total is None
        return hybrid and unfinished and len(self.allocated) < 2


def _pool(sighting: Sighting[PoolAllocated], role: Role, label: str) -> Pool:
    event = sighting.event
    name = f"kv_pool[{role.value}]" if label == "full" else f"kv_pool[{role.value},{label}]"
    k_size = sighting.value("k_size", "K") if event.k_size is not None else None
    v_size = sighting.value("v_size", "V") if event.v_size is not None else None
    size = sighting.value("size")
    if k_size is not None and v_size is not None:
        size = k_size + v_size
    return Pool(
        role=role,
        label=label,
        tokens=sighting.value("tokens"),
        size=size.named(name),
        k_size=k_size,
        v_size=v_size,
    )


class RankReading:
    """What one rank printed.

    A draft model repeats its target's lines without saying so: up to 0.5.13 after the target's
    graphs, from 0.5.14 its weights before the target's pool (managers/scheduler.py of 0.5.14:834).
    So a second load, a load after pools or captures, a second pool group, and every class that
    serves as a draft alone are the draft's. `old_order` is None when the release is not known.
    """

    def __init__(
        self,
        rank: RankId,
        label: str,
        sightings: Iterable[Sighting[Any]],
        *,
        old_order: bool | None = None,
        speculative: bool = False,
    ) -> None:
        self.rank = rank
        self.label = label
        self.old_order = old_order
        self.speculative = speculative
        self.distributed: list[Sighting[DistributedReady]] = []
        self.loads: list[Load] = []
        self.groups: list[PoolGroup] = []
        self.states: list[Sighting[Any]] = []
        self.slots: Sighting[StateSlots] | None = None
        self.budget: Sighting[KvBudget] | None = None
        self.compressed: Sighting[CompressedBudget] | None = None
        self.compressed_pools: Sighting[CompressedPools] | None = None
        self.post_capture: dict[Role, Sighting[PostCapturePool]] = {}
        self.post_split: Sighting[PostCaptureSplit] | None = None
        self.skipped: Sighting[PoolSkipped] | None = None
        self.unified: Sighting[UnifiedPool] | None = None
        self.host: list[Sighting[HostPoolAllocated]] = []
        self._order: dict[int, int] = {}
        self.begins: list[Capture] = []
        self.ends: list[Capture] = []
        self.limits: Sighting[Limits] | None = None
        self._past_pools = False
        for number, sighting in enumerate(sightings):
            self._order[id(sighting)] = number
            self._take(sighting)

    def order_of(self, sighting: Sighting[Any]) -> int:
        """At which place a sighting of this rank came: several may stand in one physical line."""
        return self._order[id(sighting)]

    def _take(self, sighting: Sighting[Any]) -> None:
        event = sighting.event
        if isinstance(event, WeightsBegin):
            self.loads.append(Load(self._next_role, begin=sighting))
        elif isinstance(event, WeightsLoaded):
            self._loaded(sighting)
        elif isinstance(
            event, PoolAllocated | SlidingWindowTotal | SlidingWindowTokens | PoolsReady
        ):
            self._pool(sighting)
        elif isinstance(event, CaptureBegin | CaptureEnd):
            self._capture(sighting)
        elif isinstance(event, PostCapturePool):
            self.post_capture[Role.DRAFT if event.draft else Role.TARGET] = sighting
        elif isinstance(event, DistributedReady):
            if not self.loads:  # behind a load it is the draft worker's own
                self.distributed.append(sighting)
        elif isinstance(event, PostCaptureSplit):
            self.post_split = sighting
        elif isinstance(event, PoolSkipped):
            self.skipped = sighting
        elif isinstance(event, UnifiedPool):
            self.unified = self.unified or sighting
        elif isinstance(event, HostPoolAllocated):
            self.host.append(sighting)
        elif isinstance(event, StatePool | StateRings | StateCheckpoints):
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
            self._past_pools = True

    @property
    def _next_role(self) -> Role:
        before = any(load.end for load in self.loads) or self.begins or self.ends
        pooled = any(group.ready for group in self.groups)
        return Role.DRAFT if before or pooled else Role.TARGET

    def _loaded(self, sighting: Sighting[WeightsLoaded]) -> None:
        if self.loads and self.loads[-1].end is None:
            load = self.loads[-1]
            load.end = sighting
        else:
            load = Load(self._next_role, end=sighting)
            self.loads.append(load)
        if is_draft_class(sighting.event.model_class):
            load.role = Role.DRAFT

    def _pool(self, sighting: Sighting[Any]) -> None:
        if not self.groups or self.groups[-1].ready is not None:
            drafts = bool(self.groups) or self.begins_with_draft
            self.groups.append(PoolGroup(Role.DRAFT if drafts else Role.TARGET))
        group = self.groups[-1]
        event = sighting.event
        if isinstance(event, PoolAllocated) and self.drafts and group.holds(event):
            group = PoolGroup(Role.DRAFT)  # the end line of the first one is not in the log
            self.groups.append(group)
        if isinstance(event, PoolAllocated):
            group.allocated.append(sighting)
        elif isinstance(event, SlidingWindowTotal):
            group.total = sighting
        elif isinstance(event, SlidingWindowTokens):
            group.split = sighting
        else:
            group.ready = sighting

    def _capture(self, sighting: Sighting[Any]) -> None:
        if self.limits is not None:
            return  # a capture of a running server, after its weights were changed
        # The draft's pool precedes every capture that follows its weights, in either order.
        self._past_pools = self._past_pools or self.has_draft_weights
        phase = sighting.event.phase
        # Without a role in its words a capture belongs to the model that was loaded last.
        drafts = "draft" in phase or (not phase and self.has_draft_load)
        role = Role.DRAFT if drafts else Role.TARGET
        capture = Capture(role, phase or role.value, sighting)
        (self.begins if isinstance(sighting.event, CaptureBegin) else self.ends).append(capture)

    # --- what there is ------------------------------------------------

    @property
    def has_draft_load(self) -> bool:
        return any(load.role is Role.DRAFT for load in self.loads)

    @property
    def has_draft_weights(self) -> bool:
        return any(load.role is Role.DRAFT and load.end for load in self.loads)

    @property
    def drafts(self) -> bool:
        return self.speculative or self.has_draft_load

    @property
    def begins_with_draft(self) -> bool:
        """Whether the log begins after the target's own lines, so that the draft's come first."""
        only_drafts = bool(self.loads) and all(load.role is Role.DRAFT for load in self.loads)
        return only_drafts and (self.old_order is True or bool(self.begins or self.ends))

    @property
    def doubled(self) -> tuple[Load, ...]:
        """Loads of the served model when there are several: two servers in one log."""
        targets = tuple(load for load in self.loads if load.role is Role.TARGET)
        return targets if len(targets) > 1 else ()

    @property
    def draft_phases(self) -> frozenset[str]:
        captures = (*self.begins, *self.ends)
        return frozenset(c.phase for c in captures if c.role is Role.DRAFT)

    # --- free memory --------------------------------------------------

    def free(self, stage: Stage, role: Role = Role.TARGET) -> Value:
        """Free memory at a stage: the first reading before something starts, the last one after
        it ended."""
        sighting = self._checkpoint(stage, role)
        name = f"free[{stage.value}]" if role is Role.TARGET else f"free[{stage.value},draft]"
        if sighting is None:
            why = f"{self.label} prints no free memory at {stage.value}"
            return Unknown(why=why, unit=GIB, name=name)
        return sighting.value("free", name)

    def _checkpoint(self, stage: Stage, role: Role) -> Sighting[Any] | None:
        loads = [load for load in self.loads if load.role is role]
        groups = [group for group in self.groups if group.role is role]
        found: Sequence[Sighting[Any] | None] = ()
        if stage is Stage.BEFORE_WEIGHTS:
            found = [load.begin for load in loads[:1]]
        elif stage is Stage.AFTER_WEIGHTS:
            found = [load.end for load in loads[-1:]]
        elif stage is Stage.AFTER_POOLS:
            found = [group.ready for group in groups[-1:]]
        elif stage in (Stage.BEFORE_GRAPHS, Stage.AFTER_GRAPHS):
            found = [self._capture_edge(stage, role)]
        elif stage is Stage.READY and role is Role.TARGET:
            found = [self.limits]
        return next((s for s in found if s is not None and s.event.free is not None), None)

    def _capture_edge(self, stage: Stage, role: Role) -> Sighting[Any] | None:
        """The first line of a role's captures when it is a begin, the last one when it is an end:
        else the log lacks the one that counts."""
        captures = [c.sighting for c in (*self.begins, *self.ends) if c.role is role]
        captures.sort(key=self.order_of)
        if not captures:
            return None
        edge, event = (
            (captures[0], CaptureBegin)
            if stage is Stage.BEFORE_GRAPHS
            else (captures[-1], CaptureEnd)
        )
        return edge if isinstance(edge.event, event) else None

    @property
    def timeline(self) -> tuple[Checkpoint, ...]:
        """Every reading of free memory that a stage stands for, in the order of the log."""
        found = [
            (self.order_of(sighting), stage, role)
            for stage in Stage
            for role in Role
            if (sighting := self._checkpoint(stage, role)) is not None
        ]
        return tuple(
            Checkpoint(stage=stage, role=role, free=self.free(stage, role))
            for _, stage, role in sorted(found, key=lambda place: place[0])
        )

    # --- what the pool holds ------------------------------------------

    @property
    def kv_pools(self) -> tuple[Pool, ...]:
        """Every KV pool of this rank that was allocated, target's first, with role and label."""
        sized = [
            Pool(
                role=role,
                label="full",
                tokens=sighting.value("tokens"),
                size=sighting.value("size", f"kv_pool[{role.value}]"),
            )
            for role, sighting in self.post_capture.items()
        ]
        groups = [group for group in self.allocated_groups if not group.reserved]
        return (*sized, *(pool for group in groups for pool in group.pools(self.drafts)))

    @property
    def allocated_groups(self) -> tuple[PoolGroup, ...]:
        """The groups whose own lines count: a model's pool that was sized after capture is told by
        that line alone. Up to 0.5.21 a draft's pool is allocated all the same (mem_cache/
        kv_pool_runtime.py of 0.5.18:24)."""
        if not self.post_capture:
            return tuple(self.groups)
        sized = {Role.TARGET, *self.post_capture}
        return tuple(g for g in self.groups if g.role not in sized and not g.reserved)

    @property
    def lacks_a_group(self) -> bool:
        """Whether pools of two models were made and those of one alone are in the log."""
        one = len(self.groups) == 1 and not self.begins_with_draft
        return one and self._past_pools and self.has_draft_weights

    @property
    def is_hybrid_window(self) -> bool:
        """Whether sliding-window layers have a pool of their own."""
        return self.post_split is not None or any(
            group.total or group.split or any(p.label == "swa" for p in group.pools(self.drafts))
            for group in self.groups
        )

    @property
    def target_tokens(self) -> Value:
        """Tokens of the served model's full-length pool, as this rank's pool lines say them."""
        name = f"tokens[{self.label}]"
        if self.post_split is not None:
            return self.post_split.value("full_tokens", name)
        if self.skipped is not None:
            return self.skipped.value("tokens", name)
        if Role.TARGET in self.post_capture:
            return self.post_capture[Role.TARGET].value("tokens", name)
        if self.compressed_pools is not None:
            return self.compressed_pools.value("full", name)
        if self.compressed is not None:
            return self.compressed.value("full_tokens", name)
        for group in self.groups[:1]:
            split = group.total or group.split
            if group.reserved or group.role is Role.DRAFT:
                break
            if split is not None and group.window_tokens[0] is not None:
                return split.value("full_tokens", name)
            full = [p for p in group.pools(self.drafts) if p.label == "full"]
            if full and split is None:
                return full[0].tokens.named(name)
        return Unknown(why=f"{self.label} prints no KV pool tokens", unit=TOKENS)

    @property
    def kv_budget(self) -> Value:
        if self.compressed is not None:
            return self.compressed.value("budget", "budget")
        if self.budget is not None:
            return self.budget.value("budget", "budget")
        return Unknown(why="the budget before allocation is not printed", unit=GIB)

    @property
    def state_size(self) -> Value:
        """What the states of requests take, where nothing else is allocated with them."""
        pools = [sighting for sighting in self.states if isinstance(sighting.event, StatePool)]
        if len(pools) != 1 or len(self.states) != 1:
            return Unknown(why="no single pool of states", unit=GIB)
        return pools[0].value("conv") + pools[0].value("ssm")

    @property
    def state_slots(self) -> Value | None:
        return self.slots.value("slots") if self.slots is not None else None

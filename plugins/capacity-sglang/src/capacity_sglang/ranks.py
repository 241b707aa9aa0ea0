"""One rank's accounting: from its loads, pools and captures to memory by category."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from capacity_core.api.ledger import Category, Part, RankFacts, Role, Stage, sum_of
from capacity_core.units import GIB
from capacity_core.values import Known, Origin, Unknown, Value, known, total
from capacity_sglang.host import host_pools
from capacity_sglang.reading import Load, PoolGroup, RankReading
from capacity_sglang.weights import WEIGHTS_LOADED_OLD

_STATE_PIECES = (
    "size",
    "conv",
    "ssm",
    "intermediate_ssm",
    "intermediate_conv",
    "d",
    "k",
    "g",
    "rawv",
    "rawk",
    "beta",
)


def rank_facts(
    reading: RankReading,
    graphs_off: Known | None,
    other_phases: frozenset[str],
    device_total: Value,
) -> RankFacts:
    """A rank's memory. `graphs_off` is the argument that switched captures off, if one did;
    `other_phases` are draft captures that other ranks of the run printed; `device_total` what a
    failed allocation said of the device."""
    label = reading.label
    parts = (
        *_framework_parts(reading),
        *_weight_parts(reading),
        *_kv_parts(reading),
        *_state_parts(reading),
        *_graph_parts(reading, graphs_off, other_phases),
    )
    memory: dict[Category, Value] = {
        Category.FRAMEWORK: Unknown(why="SGLang prints no device total", unit=GIB),
        Category.WEIGHTS: _weights(reading, parts),
        Category.KV_POOL: sum_of(parts, Category.KV_POOL, "no line tells the KV pool's size"),
        Category.STATE_POOL: sum_of(parts, Category.STATE_POOL, "no state pool line"),
        Category.CUDA_GRAPH: sum_of(parts, Category.CUDA_GRAPH, f"{label} prints no graph capture"),
        Category.ACTIVATION: Unknown(why="SGLang does not print it", unit=GIB),
    }
    if reading.doubled:
        why = f"{label} loads the served model twice: two servers in one log"
        memory = {category: Unknown(why=why, unit=GIB) for category in memory}
    shared = reading.unified is not None and not reading.states
    return RankFacts(
        id=reading.rank,
        label=label,
        parts=parts,
        timeline=reading.timeline,
        memory=memory,
        inside={Category.STATE_POOL: Category.KV_POOL} if shared else {},
        host_pools=tuple(host_pools(reading.host)),
        device_total=device_total,
    )


def kv_pool(reading: RankReading) -> Value:
    """The KV pools of a rank, target's and draft's together."""
    return sum_of(_kv_parts(reading), Category.KV_POOL, "no line tells the KV pool's size")


def _framework_parts(reading: RankReading) -> Iterator[Part]:
    for sighting in reading.distributed[:1]:
        yield Part(
            category=Category.FRAMEWORK,
            role=Role.TARGET,
            label="process group",
            size=sighting.value("used", "process_group"),
        )


def _weight_parts(reading: RankReading) -> Iterator[Part]:
    for load in reading.loads:
        label = load.end.event.model_class if load.end else None
        yield Part(
            category=Category.WEIGHTS,
            role=load.role,
            label=label or "weights",
            size=_load_size(reading, load).named(f"weights[{load.role.value}]"),
        )


def _load_size(reading: RankReading, load: Load) -> Value:
    """As printed, else free before minus free after."""
    if load.end is None:
        return Unknown(why=f"{reading.label}: loading began, no end line", unit=GIB)
    role = "" if load.role is Role.TARGET else ",draft"
    if load.begin is None:
        why = f"no begin line and no mem usage in 'Load weight end' of {reading.label}"
        before: Value = Unknown(why=why, unit=GIB)
    else:
        before = load.begin.value("free", f"free[before_weights{role}]")
    after = load.end.value("free", f"free[after_weights{role}]")
    return load.end.value("used") | (before - after)


def _weights(reading: RankReading, parts: tuple[Part, ...]) -> Value:
    """Target and draft weights; unknown when the target's own were not printed."""
    if any(load.role is Role.TARGET for load in reading.loads):
        return sum_of(parts, Category.WEIGHTS, "")
    why = f"no 'Load weight end' line for {reading.label}'s served model"
    return Unknown(why=why, unit=GIB, name="weights")


# --- pools ------------------------------------------------------------


def _kv_parts(reading: RankReading) -> Iterator[Part]:
    for role, sighting in reading.post_capture.items():
        size = sighting.value("size", f"kv_pool[{role.value}]")
        part = _kv_part(role, "sized after capture", size, sighting.value("tokens"))
        yield attrs.evolve(part, since=Stage.READY)
    if reading.begins_with_draft:
        why = "the log begins after the served model's own pool"
        yield _kv_part(Role.TARGET, "not in the log", Unknown(why=why, unit=GIB))
    if reading.unified is not None:
        shared: Value = reading.unified.value("size", "kv_pool[unified]").to(GIB)
        if reading.unified.event.reserved:
            shared = Unknown(why="only address space was reserved for the shared buffer", unit=GIB)
        yield _kv_part(Role.TARGET, "one buffer for KV and states", shared)
    if reading.skipped is not None:
        nothing = reading.skipped.value("size", "kv_pool[placeholder]").to(GIB)
        yield _kv_part(Role.TARGET, "placeholder", nothing)
    stands_in = reading.unified is not None or reading.skipped is not None
    for group in reading.allocated_groups:
        if group.allocated or group.total or not stands_in:
            yield from _group_parts(reading, group)
    if reading.lacks_a_group:
        why = "two models were loaded, the pools of one alone are in the log"
        yield _kv_part(Role.DRAFT, "not in the log", Unknown(why=why, unit=GIB))


def _kv_part(role: Role, label: str, size: Value, tokens: Value | None = None) -> Part:
    return Part(category=Category.KV_POOL, role=role, label=label, size=size, tokens=tokens)


def _group_parts(reading: RankReading, group: PoolGroup) -> Iterator[Part]:
    pools = list(group.pools(reading.drafts))
    if group.cut:
        why = "the log ends between the pools of a hybrid model"
        yield _kv_part(group.role, "cut off", Unknown(why=why, unit=GIB))
    elif group.reserved:
        why = "only address space was reserved; no post-capture sizing line follows"
        part = _kv_part(group.role, "reserved", Unknown(why=why, unit=GIB))
        yield attrs.evolve(part, since=Stage.READY)
        return
    elif group.total is not None:
        size = group.total.value("size", f"kv_pool[{group.role.value}]")
        yield _kv_part(group.role, "full + swa", size)
        pools = [pool for pool in pools if pool.role is not group.role]
    elif not pools and _unprinted_pool(reading):
        yield _kv_part(group.role, "by difference", _pool_by_difference(reading, group))
    elif not pools:
        why = "the allocation line before 'Memory pool end' is not in the log"
        yield _kv_part(group.role, "not in the log", Unknown(why=why, unit=GIB))
    if not group.cut:
        for pool in pools:
            yield _kv_part(pool.role, pool.label, pool.size, pool.tokens)


def _unprinted_pool(reading: RankReading) -> bool:
    """Whether this release and pool print no allocation line: compressed pools, and all to 0.4.0.

    Elsewhere a missing line is missing from the log, and a difference would hold what else it does
    not show.
    """
    old = any(load.end and load.end.matcher == WEIGHTS_LOADED_OLD.name for load in reading.loads)
    return reading.compressed is not None or reading.compressed_pools is not None or old


def _pool_by_difference(reading: RankReading, group: PoolGroup) -> Value:
    """Free memory after the last weights before the pool, minus free memory after the pool."""
    after = reading.free(Stage.AFTER_POOLS, group.role)
    before: Value
    if group.role is Role.TARGET and reading.drafts and not reading.has_draft_weights:
        why = "the draft's weights, which the log does not show, may lie in the difference"
        before = Unknown(why=why, unit=GIB)
    elif _draft_weights_first(reading):
        first = group.role is Role.TARGET
        before = (
            reading.free(Stage.AFTER_WEIGHTS, Role.DRAFT)
            if first
            else reading.free(Stage.AFTER_POOLS)
        )
    else:
        before = reading.free(Stage.AFTER_WEIGHTS, group.role)
    return (before - after).named(f"kv_pool[{group.role.value}]")


def _draft_weights_first(reading: RankReading) -> bool:
    """Whether the draft's weights were loaded before the target's pool (0.5.14 and later)."""
    drafts = [load.end for load in reading.loads if load.role is Role.DRAFT and load.end]
    ready = reading.groups[0].ready if reading.groups else None
    return bool(drafts and ready and reading.order_of(drafts[0]) < reading.order_of(ready))


def _state_parts(reading: RankReading) -> Iterator[Part]:
    kinds: dict[type, int] = {}
    for sighting in reading.states:
        seen = kinds.get(type(sighting.event), 0)
        kinds[type(sighting.event)] = seen + 1
        role = Role.DRAFT if seen else Role.TARGET
        sizes = [
            sighting.value(piece, piece)
            for piece in _STATE_PIECES
            if getattr(sighting.event, piece, None) is not None
        ]
        label = sighting.matcher.partition(".")[2].replace("_", " ")
        size = total(sizes, f"{label.replace(' ', '_')}[{role.value}]")
        yield Part(category=Category.STATE_POOL, role=role, label=label, size=size)


# --- graphs -----------------------------------------------------------


def _graph_parts(
    reading: RankReading, graphs_off: Known | None, other_phases: frozenset[str]
) -> Iterator[Part]:
    open_phases = [(c.phase, c.role) for c in reading.begins]
    for capture in reading.ends:
        if (capture.phase, capture.role) in open_phases:
            open_phases.remove((capture.phase, capture.role))
        size = capture.sighting.value("used", f"graph[{capture.phase}]")
        yield _graph_part(capture.role, capture.phase, size)
    for phase, role in open_phases:
        why = f"{reading.label}: the {phase} capture began, no end line"
        yield _graph_part(role, phase, Unknown(why=why, unit=GIB))
    mine = {c.phase for c in (*reading.begins, *reading.ends)}
    for phase in sorted(other_phases - mine) if reading.ends else ():
        why = f"the {phase} capture is printed by another rank alone"
        yield _graph_part(Role.DRAFT, phase, Unknown(why=why, unit=GIB))
    if mine and all(c.role is Role.DRAFT for c in (*reading.begins, *reading.ends)):
        why = "the log does not show the served model's capture"
        yield _graph_part(Role.TARGET, "not in the log", Unknown(why=why, unit=GIB))
    if graphs_off is not None and not mine:
        off = known(0, GIB, Origin.CONFIGURED, how=graphs_off.how, evidence=graphs_off.evidence)
        yield _graph_part(Role.TARGET, "switched off", off)


def _graph_part(role: Role, phase: str, size: Value) -> Part:
    return Part(category=Category.CUDA_GRAPH, role=role, label=phase, size=size)

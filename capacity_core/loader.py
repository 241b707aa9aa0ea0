"""Finds plugins by entry point, isolates what fails, and collects what the others contribute.

find → block → import → validate → collect. pluggy registers and validates; a plugin that fails to
import, misspells a hook, raises, or returns nonsense becomes one `failed` row and contributes
nothing.
Results are sorted by name, so they never depend on the order in which plugins were found.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import attrs
import pluggy

from capacity_core.api.device_readers import DeviceReader
from capacity_core.api.extractors import Extractor
from capacity_core.api.gpu_specs import GpuSpec
from capacity_core.api.hookspecs import GROUP, CapacitySpecs
from capacity_core.api.kv_layouts import KVLayout
from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import Prefix
from capacity_core.api.renderers import Renderer
from capacity_core.api.report import PluginRow
from capacity_core.errors import PluginError, UsageError

Item = TypeVar("Item")

# What an item of a hook must have: the class it is an instance of, or the attributes of its
# protocol.
_ITEMS: dict[str, type | tuple[str, ...]] = {
    "capacity_matchers": Matcher,
    "capacity_prefixes": Prefix,
    "capacity_extractors": ("framework", "title", "events", "starts_run", "extract"),
    "capacity_kv_layouts": ("name", "applies", "read"),
    "capacity_gpu_specs": GpuSpec,
    "capacity_device_readers": ("name", "command", "recognises", "read"),
    "capacity_renderers": ("name", "render"),
}


@attrs.frozen(kw_only=True)
class Found:
    """A plugin that an entry point names, not imported yet."""

    name: str
    module: str
    load: Callable[[], Any]
    distribution: str | None = None
    version: str | None = None


@attrs.frozen(kw_only=True)
class Plugins:
    """What all active plugins contribute, sorted by name, and a row for every plugin that was
    found."""

    rows: tuple[PluginRow, ...]
    matchers: tuple[Matcher, ...] = ()
    prefixes: tuple[Prefix, ...] = ()
    extractors: tuple[Extractor, ...] = ()
    kv_layouts: tuple[KVLayout, ...] = ()
    gpu_specs: tuple[GpuSpec, ...] = ()
    device_readers: tuple[DeviceReader, ...] = ()
    renderers: tuple[Renderer, ...] = ()
    owners: Mapping[str, PluginRow] = attrs.field(factory=dict)

    def owner_of(self, item: str) -> PluginRow | None:
        """The row of the plugin that contributed a matcher, extractor (by framework), layout, … of
        this name."""
        return self.owners.get(item)

    def extractor_of(self, framework: str | None) -> Extractor | None:
        """The extractor of a framework's name, if its plugin is active."""
        return next((e for e in self.extractors if e.framework == framework), None)

    @property
    def failed(self) -> tuple[PluginRow, ...]:
        return tuple(row for row in self.rows if row.status == "failed")


def find() -> tuple[Found, ...]:
    """Every plugin that is installed, by name."""
    found = [
        Found(
            name=point.name,
            module=point.value,
            load=point.load,
            distribution=point.dist.name if point.dist else None,
            version=point.dist.version if point.dist else None,
        )
        for point in importlib.metadata.entry_points(group=GROUP)
    ]
    return tuple(sorted(found, key=lambda plugin: (plugin.name, plugin.distribution or "")))


def load(
    found: Sequence[Found] | None = None,
    *,
    disable: Iterable[str] = (),
    only: Iterable[str] | None = None,
    strict: bool = False,
) -> Plugins:
    """Import and collect plugins; names are of entry points or distributions.

    Raises UsageError for a name that no plugin has, PluginError at the first failure when `strict`.
    """
    found = find() if found is None else found
    blocked = _blocked(found, frozenset(disable), None if only is None else frozenset(only))
    state = _Loading(strict)
    for plugin in found:
        if plugin in blocked:
            state.rows[plugin] = _row(plugin, "disabled")
        else:
            state.take(plugin)
    state.settle_names()
    return state.plugins()


def _blocked(
    found: Sequence[Found], disable: frozenset[str], only: frozenset[str] | None
) -> set[Found]:
    names = {name for plugin in found for name in (plugin.name, plugin.distribution)}
    unknown = sorted((disable | (only or frozenset())) - names)
    if unknown:
        known = ", ".join(sorted(plugin.name for plugin in found))
        raise UsageError(f"no plugin is named {', '.join(unknown)}; installed are: {known}")
    blocked = set()
    for plugin in found:
        mine = {plugin.name, plugin.distribution}
        # The core's own views are no plugin that a user thinks of when naming an exact set.
        left_out = only is not None and not mine & only and plugin.distribution != "capacity-core"
        if mine & disable or left_out:
            blocked.add(plugin)
    return blocked


class _Loading:
    """What has been collected so far, by hook and plugin."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.rows: dict[Found, PluginRow] = {}
        self.items: dict[Found, dict[str, tuple[Any, ...]]] = {}

    def take(self, plugin: Found) -> None:
        try:
            self.items[plugin] = _contributions(plugin)
        # The border of the plugin: whatever it does, the others go on. SystemExit at import is a
        # failure, too.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.fail(plugin, f"{type(error).__name__}: {error}", error)
        else:
            self.rows[plugin] = _row(plugin, "active", hooks=tuple(sorted(self.items[plugin])))

    def fail(self, plugin: Found, why: str, cause: BaseException | None = None) -> None:
        if self.strict:
            raise PluginError(
                f"plugin {plugin.name!r} ({_whose(plugin)}) not used: {why}"
            ) from cause
        self.rows[plugin] = _row(plugin, "failed", error=why)
        self.items.pop(plugin, None)

    def settle_names(self) -> None:
        """Names are unique for each hook: both sides of a clash are named, neither is guessed to be
        right."""
        for hook in _ITEMS:
            owners: dict[str, list[Found]] = {}
            for plugin, items in self.items.items():
                for item in items.get(hook, ()):
                    owners.setdefault(_item_name(item), []).append(plugin)
            for name, plugins in sorted(owners.items()):
                if len(plugins) > 1:
                    both = " and ".join(dict.fromkeys(_whose(plugin) for plugin in plugins))
                    for plugin in dict.fromkeys(plugins):
                        self.fail(plugin, f"{hook}: the name {name!r} is used by {both}")

    def plugins(self) -> Plugins:
        collected = {
            hook: tuple(
                sorted(
                    (item for items in self.items.values() for item in items.get(hook, ())),
                    key=_item_name,
                )
            )
            for hook in _ITEMS
        }
        return Plugins(
            rows=tuple(
                sorted(self.rows.values(), key=lambda row: (row.name, row.distribution or ""))
            ),
            matchers=_without_replaced(collected["capacity_matchers"]),
            prefixes=collected["capacity_prefixes"],
            extractors=collected["capacity_extractors"],
            kv_layouts=collected["capacity_kv_layouts"],
            gpu_specs=collected["capacity_gpu_specs"],
            device_readers=collected["capacity_device_readers"],
            renderers=collected["capacity_renderers"],
            owners={
                _item_name(item): self.rows[plugin]
                for plugin, items in self.items.items()
                for group in items.values()
                for item in group
            },
        )


def _contributions(plugin: Found) -> dict[str, tuple[Any, ...]]:
    """What one plugin returns, hook by hook. Raises whatever is wrong with it."""
    module = plugin.load()
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(CapacitySpecs)
    manager.register(module, plugin.name)
    manager.check_pending()
    _refuse_unmarked(module)
    contributions: dict[str, tuple[Any, ...]] = {}
    for hook in _ITEMS:
        results = getattr(manager.hook, hook)()
        if results:
            contributions[hook] = _checked(hook, results[0])
    return contributions


def _refuse_unmarked(module: Any) -> None:
    """A function with a hook's name but without the marker would be ignored in silence."""
    if not isinstance(module, ModuleType):
        return
    for name, member in inspect.getmembers(module, inspect.isfunction):
        if name in _ITEMS and not hasattr(member, f"{GROUP}_impl"):
            raise PluginError(f"{name} is not marked with @hookimpl")


def _checked(hook: str, items: object) -> tuple[Any, ...]:
    if not isinstance(items, tuple):
        raise TypeError(f"{hook} returned a {type(items).__name__}, not a tuple")
    wanted = _ITEMS[hook]
    for item in items:
        if isinstance(wanted, type):
            if not isinstance(item, wanted):
                raise TypeError(f"{hook} returned a {type(item).__name__}, not a {wanted.__name__}")
        else:
            lacking = [name for name in wanted if not hasattr(item, name)]
            if lacking:
                raise TypeError(f"{hook}: a {type(item).__name__} lacks {', '.join(lacking)}")
        if not isinstance(_name_of(item), str):
            raise TypeError(f"{hook}: a {type(item).__name__} has no name")
        if hook == "capacity_extractors" and not isinstance(item.events, tuple):
            raise TypeError(f"{hook}: the events of {_item_name(item)} are no tuple")
        if hook == "capacity_kv_layouts":
            for name in ("replaces", "variants"):
                named = getattr(item, name, ())
                if not isinstance(named, tuple) or not all(isinstance(n, str) for n in named):
                    raise TypeError(f"{hook}: {name} of {_item_name(item)} is no tuple of names")
        if isinstance(item, Matcher | Prefix):
            problems = item.problems()
            if problems:
                raise ValueError(problems[0])
    return items


def _without_replaced(matchers: Iterable[Matcher]) -> tuple[Matcher, ...]:
    matchers = tuple(matchers)
    replaced = {name for matcher in matchers for name in matcher.replaces}
    return tuple(matcher for matcher in matchers if matcher.name not in replaced)


def _item_name(item: Any) -> str:
    return str(_name_of(item))


def _name_of(item: Any) -> object:
    return item.framework if not hasattr(item, "name") else item.name


def _whose(plugin: Found) -> str:
    return f"{plugin.distribution} {plugin.version}" if plugin.distribution else plugin.module


def _row(
    plugin: Found, status: str, error: str | None = None, hooks: tuple[str, ...] = ()
) -> PluginRow:
    return PluginRow(
        name=plugin.name,
        distribution=plugin.distribution,
        version=plugin.version,
        module=plugin.module,
        status=status,
        error=error,
        hooks=hooks,
    )


def tool_version() -> str:
    """The release of the core that is installed."""
    try:
        return importlib.metadata.version("capacity-core")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"

"""The hooks of contract version 1: what a plugin may contribute.

A plugin is a module that an entry point of the group `capacity_core.v1` names. Its hooks take no
arguments, are called once after import, and return tuples of frozen objects. A hook that raises, or
that returns anything else, makes its plugin fail as a whole: the plugin is named on stderr and in
the report, the others go on.

Within version 1 hooks, fields with defaults and enum members are added, nothing is removed or
renamed.
"""

from __future__ import annotations

import pluggy

from capacity_core.api.device_readers import DeviceReader
from capacity_core.api.extractors import Extractor
from capacity_core.api.gpu_specs import GpuSpec
from capacity_core.api.kv_layouts import KVLayout
from capacity_core.api.matchers import Matcher
from capacity_core.api.prefixes import Prefix
from capacity_core.api.renderers import Renderer

GROUP = "capacity_core.v1"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class CapacitySpecs:
    """Every hook of version 1; all are optional."""

    @hookspec
    def capacity_matchers(self) -> tuple[Matcher, ...]:
        """Messages that this plugin recognises. Since version 1.

        Names are unique over all plugins; a matcher that takes over another's wording says
        `replaces`. Example::

            @hookimpl
            def capacity_matchers() -> tuple[Matcher, ...]:
                return (POOL_READY,)
        """
        raise NotImplementedError

    @hookspec
    def capacity_prefixes(self) -> tuple[Prefix, ...]:
        """How log lines begin, and whom that names as their speaker. Since version 1. Example::

        @hookimpl
        def capacity_prefixes() -> tuple[Prefix, ...]:
            return (Prefix(name="acme.ranks", framework="acme", pattern=r"<gpu (?P<tp>[0-9]+)>"),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_extractors(self) -> tuple[Extractor, ...]:
        """What a framework's events add up to: one extractor for each framework. Since version 1.
        Example::

        @hookimpl
        def capacity_extractors() -> tuple[Extractor, ...]:
            return (AcmeExtractor(),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_kv_layouts(self) -> tuple[KVLayout, ...]:
        """How families of models store KV. Since version 1. Example::

        class Ring:
            name = "acme-ring"

            def applies(self, config: ModelConfig) -> bool:
                return config.get("model_type") == "acme_ring"

            def read(self, config: ModelConfig, serving: Serving) -> LayoutReading:
                layers = len(serving.placement.layers(config["num_hidden_layers"]))
                cost = known(
                    layers * 640,
                    BYTES_PER_TOKEN,
                    Origin.THEORETICAL,
                    how=f"{layers} layers * 640 B",
                    evidence=("config0:num_hidden_layers",),
                )
                ring = CacheTerm(
                    name="ring",
                    layers=layers,
                    keeps=Keeps.WINDOW,
                    bytes_per_token=cost,
                    window_tokens=known(512, TOKENS, Origin.THEORETICAL, how="ring of 512"),
                    source="acme 2.0 acme/ring.py",
                )
                copies = known(1, COUNT, Origin.THEORETICAL, how="each rank its own")
                return LayoutReading(
                    family="ring",
                    terms=(ring,),
                    replication=copies,
                    formula="layers * 640 B",
                    source="acme 2.0 acme/ring.py",
                )

        @hookimpl
        def capacity_kv_layouts() -> tuple[KVLayout, ...]:
            return (Ring(),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_gpu_specs(self) -> tuple[GpuSpec, ...]:
        """Devices of the catalogue. Since version 1. Example::

        @hookimpl
        def capacity_gpu_specs() -> tuple[GpuSpec, ...]:
            return (GpuSpec(name="acme-9", title="ACME 9", aliases=("acme9",)),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_device_readers(self) -> tuple[DeviceReader, ...]:
        """Readers of device tools' outputs. Since version 1. Example::

        @hookimpl
        def capacity_device_readers() -> tuple[DeviceReader, ...]:
            return (AcmeSmiCsv(),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_renderers(self) -> tuple[Renderer, ...]:
        """Output formats. Since version 1. Example::

        @hookimpl
        def capacity_renderers() -> tuple[Renderer, ...]:
            return (HtmlRenderer(),)
        """
        raise NotImplementedError

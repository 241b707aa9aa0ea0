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

            from capacity_core.api import INTEGER, Matcher, Sample, hookimpl
            from capacity_sglang.pools import PoolAllocated

            POOL_READY = Matcher(
                name="acmefork.pool_ready",
                anchor="pool ready:",
                pattern=rf"pool ready: (?P<tokens>{INTEGER}) tokens",
                event=PoolAllocated,
                samples=(Sample("pool ready: 4096 tokens", PoolAllocated(tokens=4096)),),
            )

            @hookimpl
            def capacity_matchers():
                return (POOL_READY,)
        """
        raise NotImplementedError

    @hookspec
    def capacity_prefixes(self) -> tuple[Prefix, ...]:
        """How log lines begin, and whom that names as their speaker. Since version 1. Example::

        from capacity_core.api import Prefix, hookimpl

        @hookimpl
        def capacity_prefixes():
            return (Prefix(
                    name="acme.ranks",
                    framework="acme",
                    pattern=r"<gpu (?P<tp>[0-9]+)>",
                    samples=("<gpu 3>",),
                ),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_extractors(self) -> tuple[Extractor, ...]:
        """What a framework's events add up to: one extractor for each framework. Since version 1.
        Example::

            import attrs

            from capacity_core.api import hookimpl
            from capacity_core.api.ledger import Deployment, Ledger, Status, WorkerFacts
            from capacity_core.units import Tokens

            @attrs.frozen(kw_only=True)
            class PoolReady:
                '''The tokens of a KV pool.'''

                tokens: Tokens

            class AcmeExtractor:
                framework = "acme"
                title = "ACME"
                events = (PoolReady,)

                def starts_run(self, run, sighting):
                    return run.has(PoolReady)  # printed once in a start

                def extract(self, run):
                    tokens = [pool.value("tokens") for pool in run.of(PoolReady)]
                    return Ledger(
                        framework=self.framework,
                        title=self.title,
                        status=Status.INCOMPLETE,
                        reached=None,
                        deployment=Deployment(),
                        workers=tuple(WorkerFacts(dp=0, tokens=pool) for pool in tokens),
                    )

            @hookimpl
            def capacity_extractors():
                return (AcmeExtractor(),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_kv_layouts(self) -> tuple[KVLayout, ...]:
        """How families of models store KV. Since version 1. Example::

        from capacity_core.api import hookimpl
        from capacity_core.api.config_fields import as_int, count, layer_count
        from capacity_core.api.kv_layouts import CacheTerm, Keeps, LayoutReading
        from capacity_core.units import BYTES_PER_TOKEN, COUNT, TOKENS
        from capacity_core.values import Origin, known

        SOURCE = "acme 2.0 acme/ring.py"

        class Ring:
            '''Every layer keeps 640 B of each of the last `ring_tokens`, on every rank.'''

            name = "acme-ring"
            replaces = ("grouped-query",)  # its files look like that family's

            def applies(self, config):
                return config.get("model_type") == "acme_ring"

            def read(self, config, serving):
                total = layer_count(config, "num_hidden_layers")  # or LayoutError
                layers = len(serving.placement.layers(as_int(total)))
                how = f"{layers} layers * 640 B"
                said = total.evidence
                cost = known(
                    layers * 640, BYTES_PER_TOKEN, Origin.THEORETICAL, how=how, evidence=said
                )
                ring = CacheTerm(
                    name="ring",
                    layers=layers,
                    keeps=Keeps.WINDOW,
                    bytes_per_token=cost,
                    window_tokens=count(config, "ring_tokens", unit=TOKENS),
                    source=SOURCE,
                )
                copies = serving.placement.attention_tensor
                return LayoutReading(
                    family="ring",
                    terms=(ring,),
                    replication=known(copies, COUNT, Origin.THEORETICAL, how="every rank has all"),
                    formula=how,
                    source=SOURCE,
                )

        @hookimpl
        def capacity_kv_layouts():
            return (Ring(),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_gpu_specs(self) -> tuple[GpuSpec, ...]:
        """Devices of the catalogue. Since version 1. Example::

        from capacity_core.api import hookimpl
        from capacity_core.api.gpu_specs import GpuSpec

        @hookimpl
        def capacity_gpu_specs():
            return (GpuSpec(name="acme-9", title="ACME 9", aliases=("acme9",)),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_device_readers(self) -> tuple[DeviceReader, ...]:
        """Readers of device tools' outputs. Since version 1. Example::

        from capacity_core.api import hookimpl
        from capacity_core.api.device_readers import DeviceReading
        from capacity_core.units import MIB
        from capacity_core.values import Origin, Unknown, known

        class AcmeSmi:
            '''`acme-smi --brief`: a line `ACME0 1024/16384 MiB` for each device.'''

            name = "acme-smi"
            command = "acme-smi --brief"

            def recognises(self, text):
                return text.startswith("ACME0 ")

            def read(self, text, source):
                return tuple(
                    self._device(line, f"{source}:{number}", number)
                    for number, line in enumerate(text.splitlines(), 1)
                )

            def _device(self, line, where, number):
                device, used_of_total, _ = line.split()
                used, total = (
                    known(int(mib), MIB, Origin.MEASURED, how=self.command, evidence=(where,))
                    for mib in used_of_total.split("/")
                )
                return DeviceReading(
                    index=int(device.removeprefix("ACME")),
                    name="ACME 9",
                    used=used,
                    free=total - used,
                    total=total,
                    reserved=Unknown(why="the tool does not print it", unit=MIB),
                    line=number,
                )

        @hookimpl
        def capacity_device_readers():
            return (AcmeSmi(),)
        """
        raise NotImplementedError

    @hookspec
    def capacity_renderers(self) -> tuple[Renderer, ...]:
        r"""Output formats. Since version 1. Example::

        from capacity_core.api import hookimpl

        class Title:
            '''`--format title`: the framework alone.'''

            name = "title"

            def render(self, report):
                return f"{report.title}\n"

        @hookimpl
        def capacity_renderers():
            return (Title(),)
        """
        raise NotImplementedError

"""What the server was started with: version, the arguments that differ from the defaults, the
engine's config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from capacity_core.api import INTEGER, Arguments, Matcher, Sample
from capacity_core.api.arguments import plausible_number
from capacity_core.api.extractors import Sighting
from capacity_core.units import COUNT, RATIO, Tokens, Unit
from capacity_core.values import Known, Origin, Unknown, Value, known, text


@attrs.frozen(kw_only=True)
class ServerVersion:
    """The release that the API server says it is."""

    version: str


@attrs.frozen(kw_only=True)
class NonDefaultArgs:
    """The arguments that differ from the defaults; an argument that is absent has its default."""

    arguments: Arguments


@attrs.frozen(kw_only=True)
class EngineConfig:
    """The engine's configuration as one line of `key=value`, with the release where printed."""

    version: str | None = None
    arguments: Arguments


@attrs.frozen(kw_only=True)
class ModelLength:
    """The resolved max_model_len; printed for target and draft, in several processes."""

    length: Tokens


@attrs.frozen(kw_only=True)
class ChunkedPrefill:
    """The token budget of one step, with which prefills are chunked."""

    batched: Tokens


_WINDOW = 65536
_VERSION = r"(?P<version>\d{1,4}\.\d{1,4}[\w.+\-]{0,60}|dev)"

SERVER_VERSION = Matcher(
    name="vllm.server_version",
    anchor="vLLM API server version",
    pattern=rf"vLLM API server version {_VERSION}",
    event=ServerVersion,
    means="The release, as the API server prints it.",
    seen_in="0.4.2 … 0.14.1",
    samples=(
        Sample("vLLM API server version 0.11.2", ServerVersion(version="0.11.2")),
        Sample(
            "vLLM API server version 0.13.0+faa43dbf.nv26.01",
            ServerVersion(version="0.13.0+faa43dbf.nv26.01"),
        ),
    ),
)

SERVER_VERSION_MODEL = Matcher(
    name="vllm.server_version_model",
    anchor="vLLM server version",
    pattern=rf"vLLM server version {_VERSION}, serving model",
    event=ServerVersion,
    means="The release, with the model, in newer words.",
    seen_in="0.16.0 … 0.33.0",
    samples=(
        Sample("vLLM server version 0.22.0, serving model /m", ServerVersion(version="0.22.0")),
    ),
)

SERVER_LOGO = Matcher(
    name="vllm.server_logo",
    anchor="  version ",
    pattern=rf"█\s+version {_VERSION}\s*$",
    event=ServerVersion,
    means="The release beside the logo.",
    seen_in="0.16.0 … 0.33.0",
    samples=(Sample("  █ █ █ █ ▀▄▀ █  version 0.20.0", ServerVersion(version="0.20.0")),),
)

NON_DEFAULT_ARGS = Matcher(
    name="vllm.non_default_args",
    anchor="non-default args: {",
    pattern=r"non-default args: \{(?P<arguments>.*)",
    event=NonDefaultArgs,
    means="Arguments that differ from their defaults, printed by every API-server process.",
    seen_in="0.9.0.1 … 0.33.0",
    samples=(
        Sample(
            "non-default args: {'model': '/m', 'max_model_len': 4096}",
            NonDefaultArgs(arguments=Arguments("'model': '/m', 'max_model_len': 4096}")),
        ),
    ),
    window=_WINDOW,
)

ALL_ARGS = Matcher(
    name="vllm.all_args",
    anchor="args: Namespace(",
    pattern=r"args: Namespace\((?P<arguments>.*)",
    event=NonDefaultArgs,
    means="All arguments, defaults included.",
    seen_in="0.4.2 … 0.8.5",
    samples=(
        Sample(
            "args: Namespace(host=None, model='/m', max_num_seqs=256)",
            NonDefaultArgs(arguments=Arguments("host=None, model='/m', max_num_seqs=256)")),
        ),
    ),
    window=_WINDOW,
)

ENGINE_CONFIG = Matcher(
    name="vllm.engine_config",
    anchor="Initializing a V1 LLM engine (v",
    pattern=rf"Initializing a V1 LLM engine \(v{_VERSION}\) with config: (?P<arguments>.*)",
    event=EngineConfig,
    means="The engine's configuration. Utilisation, block size and request limit are never in it.",
    seen_in="0.7.3 … 0.33.0",
    samples=(
        Sample(
            "Initializing a V1 LLM engine (v0.22.0) with config: model='/m', max_seq_len=4096, x=1",
            EngineConfig(
                version="0.22.0", arguments=Arguments("model='/m', max_seq_len=4096, x=1")
            ),
        ),
    ),
    window=_WINDOW,
)

ENGINE_CONFIG_FORMER = Matcher(
    name="vllm.engine_config_former",
    anchor="Initializing a V0 LLM engine (v",
    pattern=rf"Initializing a V0 LLM engine \(v{_VERSION}\) with config: (?P<arguments>.*)",
    event=EngineConfig,
    means="The configuration of the former engine, beside which the new one existed.",
    seen_in="0.7.3 … 0.10.2",
    samples=(
        Sample(
            "Initializing a V0 LLM engine (v0.7.3) with config: model='/m', max_seq_len=4096, x=1",
            EngineConfig(version="0.7.3", arguments=Arguments("model='/m', max_seq_len=4096, x=1")),
        ),
    ),
    window=_WINDOW,
)

ENGINE_CONFIG_OLD = Matcher(
    name="vllm.engine_config_old",
    anchor="Initializing an LLM engine (v",
    pattern=rf"Initializing an LLM engine \(v{_VERSION}\) with config: (?P<arguments>.*)",
    event=EngineConfig,
    means="The same when it was the only engine.",
    seen_in="0.4.2 … 0.6.6.post1",
    samples=(
        Sample(
            "Initializing an LLM engine (v0.5.3) with config: model='/m', max_seq_len=4096, x=1",
            EngineConfig(version="0.5.3", arguments=Arguments("model='/m', max_seq_len=4096, x=1")),
        ),
    ),
    window=_WINDOW,
)

ENGINE_CONFIG_OLDEST = Matcher(
    name="vllm.engine_config_oldest",
    anchor="Initializing an LLM engine with config: ",
    pattern=r"Initializing an LLM engine with config: (?P<arguments>.*)",
    event=EngineConfig,
    means="The same without the release.",
    seen_in="0.2.7 … 0.3.3",
    samples=(
        Sample(
            "Initializing an LLM engine with config: model='/m', max_seq_len=4096, seed=0)",
            EngineConfig(arguments=Arguments("model='/m', max_seq_len=4096, seed=0)")),
        ),
    ),
    window=_WINDOW,
)

MODEL_LENGTH = Matcher(
    name="vllm.model_length",
    anchor="Using max model len ",
    pattern=rf"Using max model len (?P<length>{INTEGER})",
    event=ModelLength,
    means="The resolved max_model_len of one model configuration, target or draft.",
    seen_in="0.9.2 … 0.33.0",
    samples=(Sample("Using max model len 4096", ModelLength(length=4096)),),
)

CHUNKED_PREFILL = Matcher(
    name="vllm.chunked_prefill",
    anchor="Chunked prefill is enabled with max_num_batched_tokens=",
    pattern=rf"Chunked prefill is enabled with max_num_batched_tokens=(?P<batched>{INTEGER})",
    event=ChunkedPrefill,
    means="The token budget of one step.",
    seen_in="0.5.3.post1 … 0.33.0",
    samples=(
        Sample(
            "Chunked prefill is enabled with max_num_batched_tokens=2048.",
            ChunkedPrefill(batched=2048),
        ),
    ),
)

MATCHERS = (
    SERVER_VERSION,
    SERVER_VERSION_MODEL,
    SERVER_LOGO,
    NON_DEFAULT_ARGS,
    ALL_ARGS,
    ENGINE_CONFIG,
    ENGINE_CONFIG_FORMER,
    ENGINE_CONFIG_OLD,
    ENGINE_CONFIG_OLDEST,
    MODEL_LENGTH,
    CHUNKED_PREFILL,
)


def _of_another_server(config: EngineConfig, args: NonDefaultArgs) -> bool:
    """Whether the arguments name another model than the engine has: logs mix servers.

    A hub that works offline, or another one, puts the folder of the same model in its place.
    """
    served = config.arguments.said("model")
    asked = [args.arguments.said(key) for key in ("model", "model_tag")]
    names = [name for name in asked if name is not None]
    return served is not None and bool(names) and not any(_same_model(served, n) for n in names)


def _same_model(served: str, asked: str) -> bool:
    folder = f"/{served.strip('/')}/"
    return served == asked or any(
        f"/{name}/" in folder for name in (asked.strip("/"), f"models--{asked.replace('/', '--')}")
    )


class Settings:
    """Arguments and engine configuration of a run, as values that cite their lines; the
    configuration first, because it is what the arguments became."""

    def __init__(self, sightings: Sequence[Sighting[Any]]) -> None:
        config = [s for s in sightings if isinstance(s.event, EngineConfig)][:1]
        args = [s for s in sightings if isinstance(s.event, NonDefaultArgs)][:1]
        if config and args and _of_another_server(config[0].event, args[0].event):
            args = []
        self._sources = [(s.event.arguments, (s.line,)) for s in (*config, *args)]
        self._args = self._sources[len(config) :]

    def text(self, *keys: str) -> Value:
        """The first of these keys that has a value, in the configuration or else in the
        arguments."""
        for arguments, line in self._sources:
            said = arguments.said(*keys)
            if said is not None:
                return text(said, Origin.CONFIGURED, how=keys[0], evidence=line)
        return self._unknown(keys, None)

    def number(self, unit: Unit, *keys: str) -> Value:
        value = self.text(*keys)
        amount = plausible_number(str(value.amount), unit) if isinstance(value, Known) else None
        if amount is None:
            return self._unknown(keys, unit)
        return known(amount, unit, Origin.CONFIGURED, how=keys[0], evidence=value.evidence)

    def whole(self, key: str) -> int | None:
        """A printed count, such as a parallel size; None where it is not printed."""
        value = self.number(COUNT, key)
        return int(value.number) if isinstance(value, Known) else None

    def asked(self, unit: Unit, key: str) -> Value:
        """A number in the arguments alone, where the configuration may have been rewritten."""
        for arguments, line in self._args:
            said = arguments.said(key)
            amount = plausible_number(said, unit)
            if amount is not None:
                return known(amount, unit, Origin.CONFIGURED, how=key, evidence=line)
        return self._unknown((key,), unit)

    def nested(self, key: str, inner: str) -> Value:
        """A value inside a nested one, such as the method inside speculative_config."""
        for arguments, line in self._sources:
            said = arguments.nested(key).said(inner) if arguments.said(key) else None
            if said is not None:
                return text(said, Origin.CONFIGURED, how=f"{key}.{inner}", evidence=line)
        return self._unknown((key,), None)

    def default(self, amount: int, unit: Unit, key: str) -> Value:
        """A default that no release changed, when the non-default arguments are shown whole and
        lack the key."""
        for arguments, line in self._args:
            if key not in arguments and arguments.complete:
                how = f"default of {key}, which is not among the non-default args"
                return known(amount, unit, Origin.CONFIGURED, how=how, evidence=line)
        return self._unknown((key,), unit)

    def left_out(self, key: str, default: str) -> Value:
        """Why a setting stays unknown that the arguments, shown whole, do not name."""
        for arguments, line in self._args:
            if arguments.complete and arguments.said(key) is None:
                why = f"{key} is not among the arguments; its default is {default}"
                return Unknown(why=why, unit=RATIO, evidence=line)
        return Unknown(why=f"{key} is not printed", unit=RATIO)

    def flag(self, key: str) -> Known | None:
        """The flag's value when it is printed as True."""
        value = self.text(key)
        return value if isinstance(value, Known) and value.amount == "True" else None

    def _unknown(self, keys: Sequence[str], unit: Unit | None) -> Unknown:
        lines = tuple(line for _, lines in self._sources for line in lines)
        why = f"{keys[0]} is not printed" if lines else f"no line of arguments, so no {keys[0]}"
        return Unknown(why=why, unit=unit, evidence=lines)

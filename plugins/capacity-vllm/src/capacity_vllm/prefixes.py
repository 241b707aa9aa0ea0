"""How vLLM's log lines begin: the process in parentheses, with its ranks where their sizes are
above one.

Built by `decorate_logs` and the process titles of v1/executor/multiproc_executor.py and
v1/engine/utils.py (0.6.6 … 0.33.0). A part of size one is left out. Ray puts its own prefix before;
the nearest one counts.
"""

from __future__ import annotations

from capacity_core.api import Prefix

_PID = r"(?: pid=(?P<pid>\d+)(?:, ip=(?P<node>[^)\s]+))?)?"

PREFIXES = (
    Prefix(
        name="vllm.worker",
        framework="vllm",
        # Longest names first: PCP and DCP are no PP and DP.
        pattern=(
            r"[(\[](?P<role>(?:Ray|Vllm)?Worker(?:Wrapper|Process|Proc)?(?:_PCP\d+)?)"
            r"(?:[ _-](?:PCP\d+|DCP\d+|DP(?P<dp>\d+)|PP(?P<pp>\d+)|TP(?P<tp>\d+)|EP\d+"
            r"|(?:rank=)?(?P<rank>\d+)))*" + _PID + r"[)\]]"
        ),
        samples=(
            "(Worker_DP1_PP0_TP3_EP7 pid=448) INFO",
            "(Worker pid=448) INFO",
            "(VllmWorker rank=7 pid=775165) INFO",
            "(VllmWorker PP0_TP1 pid=5) INFO",
            "(VllmWorker-3 pid=5) INFO",
            "(VllmWorkerProcess pid=64) INFO",
            "(RayWorkerWrapper pid=5, ip=10.0.0.2) INFO",
            "[Worker_TP1] [model_runner.py:411]",
        ),
    ),
    Prefix(
        name="vllm.engine",
        framework="vllm",
        pattern=(
            r"[(\[](?P<role>(?:DP(?:MoE)?)?EngineCore(?:Actor)?)(?:_(?:DP)?(?P<dp>\d+))?"
            + _PID
            + r"[)\]]"
        ),
        samples=(
            "(EngineCore_DP1 pid=420) INFO",
            "(EngineCore_0 pid=19) INFO",
            "(EngineCore pid=7) INFO",
            "(DPEngineCoreActor pid=5439, ip=10.0.0.2) INFO",
            "[EngineCore] [kv_cache_utils.py:2208]",
        ),
    ),
    Prefix(
        name="vllm.server",
        framework="vllm",
        pattern=(
            r"\((?P<role>APIServer|ApiServer_\d+|MainProcess|DPSupervisor)(?:_DP(?P<dp>\d+))?"
            + _PID
            + r"\)"
        ),
        samples=(
            "(APIServer pid=1) INFO",
            "(ApiServer_1 pid=12) INFO",
            "(APIServer_DP0 pid=12) INFO",
        ),
    ),
)

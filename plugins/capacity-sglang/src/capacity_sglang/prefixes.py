"""How SGLang's log lines begin: a time stamp and the ranks of the process, in brackets.

The order of the ranks changed three times, and a rank is printed only where its size is above one
(`configure_logger` and the callers of 0.2.15 … 0.5.23), so they are read by name, in any order.
"""

from __future__ import annotations

from capacity_core.api import Prefix

# Longest names first: MOE_DP contains DP. Other words (encode_server, a fork's mode) are passed
# over.
_RANK = (
    r"(?:ATTN_CP\d+|MOE_DP\d+|DP(?P<dp>\d+)|PP(?P<pp>\d+)|TP(?P<tp>\d+)|EP\d+"
    r"|[A-Za-z_][\w.]*(?:\[\d+\])?)"
)

PREFIXES = (
    Prefix(
        name="sglang.time",
        framework="sglang",
        pattern=rf"\[?(?:\d{{4}}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{{3}})?"
        rf"(?:(?= (?P<ranks>[^\]\n]{{1,120}})\])(?: {_RANK}){{1,10}})?\]",
        samples=(
            "[2026-01-02 03:04:05] server_args=",
            "[2026-01-02 03:04:05 DP1 PP0 ATTN_CP0 MOE_DP0 TP3 EP3] Load weight begin.",
            "[2026-01-02 03:04:05.678 TP3 EP3 PP1] Load weight begin.",
            "[03:04:05 TP0] Memory pool end.",
        ),
    ),
    Prefix(
        name="sglang.ranks",
        framework="sglang",
        pattern=(
            # The bracket, the date or a part of the time may have been cut off.
            r"(?:\[|^[\d:]{0,8} ?)(?: ?(?:ATTN_CP\d+|MOE_DP\d+|DP(?P<dp>\d+)|PP(?P<pp>\d+)"
            r"|TP(?P<tp>\d+)|EP\d+))+\]"
        ),
        samples=(
            "[TP1] Load weight begin.",
            "[DP1 TP3] Memory pool end.",
            "4:05 TP1] Load weight begin.",
            "TP1] Load weight begin.",
        ),
    ),
)

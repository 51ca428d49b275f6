"""What is believed of an engine's speed, whoever states it: beyond these a unit is wrong. Pure."""

from __future__ import annotations

STREAM_TOK_S = (0.1, 5000.0)
"""Least and most output tokens / s of one stream. A GB10 gives 10 to 100, an interpreted engine on
a CPU about one."""
MAX_TTFT_S = 600.0
"""Longest time to a first token, s."""

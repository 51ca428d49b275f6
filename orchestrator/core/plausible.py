"""What is believed of an engine and a machine, whoever states it: beyond, a unit is wrong. Pure."""

from __future__ import annotations

STREAM_TOK_S = (0.1, 5000.0)
"""Least and most output tokens / s of one stream. A GB10 gives 10 to 100, an interpreted engine on
a CPU about one."""
MAX_TTFT_S = 600.0
"""Longest time to a first token, s."""
MAX_GIB = 1_000_000
"""More memory than any machine has, GiB."""
MAX_PORT = 65_535
MAX_STREAMS = MAX_PORT
"""Requests under way at once that a study may ask for: one client has no more ports."""

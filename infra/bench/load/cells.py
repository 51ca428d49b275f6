"""What is asked of every client: the cells of the matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

MODEL = "replay"
"""Name that the server answers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One cell: what the client is to do and how the server answers."""

    streams: int
    tokens_per_chunk: int
    gap_s: float
    """Between chunks."""
    output_tokens: int
    num_requests: int
    ttft_s: float = 0.05
    """Shortest time to the first token."""

    @property
    def key(self) -> str:
        """Short name, for example ``16x4``."""
        return f"{self.streams}x{self.tokens_per_chunk}"

    @property
    def stagger_s(self) -> float:
        """Spread of the time to the first token: one gap, so that streams fall out of step."""
        return self.gap_s

    @property
    def chunks(self) -> int:
        """Chunks of one answer that carry tokens."""
        return math.ceil(self.output_tokens / self.tokens_per_chunk)

    @property
    def request_s(self) -> float:
        """How long one answer takes on average."""
        return self.ttft_s + self.stagger_s / 2 + (self.chunks - 1) * self.gap_s

    @property
    def expected_s(self) -> float:
        """How long all requests take."""
        return self.request_s * math.ceil(self.num_requests / self.streams)


def matrix(*, quick: bool = False) -> tuple[Load, ...]:
    """Return the cells: 1, 16 and 256 streams times 1 and 4 tokens a chunk.

    Gaps grow with the streams, so that neither the server nor a slow client fills a core: 100,
    400 and 640 chunks / s. There are at least 200 requests where quantiles matter.
    """
    cells = (
        Load(streams=1, tokens_per_chunk=1, gap_s=0.01, output_tokens=64, num_requests=8),
        Load(streams=1, tokens_per_chunk=4, gap_s=0.01, output_tokens=64, num_requests=24),
        Load(streams=16, tokens_per_chunk=1, gap_s=0.04, output_tokens=32, num_requests=208),
        Load(streams=16, tokens_per_chunk=4, gap_s=0.04, output_tokens=64, num_requests=208),
        Load(streams=256, tokens_per_chunk=1, gap_s=0.4, output_tokens=16, num_requests=512),
        Load(streams=256, tokens_per_chunk=4, gap_s=0.4, output_tokens=32, num_requests=512),
    )
    if not quick:
        return cells
    return tuple(
        replace(cell, output_tokens=8, num_requests=max(4, cell.streams)) for cell in cells
    )


def only_start(cell: Load) -> Load:
    """Return the least that a client can be asked for at the cell's streams: one request."""
    return replace(cell, num_requests=1, output_tokens=4)

"""From a place in the load (stream, turn) to the request that is made there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from orchestrator.load.call import Call, Sampling
from orchestrator.load.settings import LoadSettings
from orchestrator.load.workload import Workload, draw
from orchestrator.ports import LoadRequest

MIN_TOKENS = 2
"""Fewest tokens of a request: one token has no time per token."""


@dataclass(frozen=True, slots=True)
class CallSequence:
    """Makes the requests of one block: the same for every arm."""

    workload: Workload
    settings: LoadSettings
    request: LoadRequest

    def warm_up(self, stream: int, turn: int) -> Call:
        """Return a request of the warm-up; its prompt is never measured."""
        # Negative turns have salts of their own, so no measured prompt is warm.
        return self._call(stream, -1 - turn, max_tokens=self.settings.warmup_max_tokens)

    def measured(self, stream: int, turn: int, *, attempt: int = 0) -> Call:
        """Return a request of the loop.

        The first answers of a closed loop have lengths from short to full by stream. Streams that
        start together with answers of one length would end together for ever after, and every
        prefill would meet all the others.
        """
        full, streams = self.settings.max_tokens, self.request.cell.streams
        tokens = full
        if turn == 0 and not self.request.cell.is_open_loop:
            tokens = max(min(MIN_TOKENS, full), math.ceil(full * (stream + 1) / streams))
        return self._call(stream, turn, max_tokens=tokens, attempt=attempt)

    def _call(self, stream: int, turn: int, *, max_tokens: int, attempt: int = 0) -> Call:
        request, settings = self.request, self.settings
        cell = request.cell
        choice = draw(
            self.workload,
            seed=request.seed,
            cell_key=cell.key,
            # Arrivals of the open loop are one sequence.
            streams=1 if cell.is_open_loop else cell.streams,
            stream=stream,
            turn=turn,
            salt=settings.salt,
        )
        again = f"-{attempt}" if attempt else ""
        return Call(
            request_id=f"{cell.key}-{request.seed}-{stream}-{turn}{again}",
            prompt_id=choice.prompt_id,
            prompt=choice.text,
            messages=choice.messages,
            extra=choice.extra,
            endpoint=settings.endpoint,
            model=request.model,
            dialect=settings.dialect,
            sampling=Sampling(
                temperature=cell.temperature,
                shaping=settings.shaping,
                seed=choice.seed,
                max_tokens=max_tokens,
                ignore_eos=settings.ignore_eos,
            ),
        )

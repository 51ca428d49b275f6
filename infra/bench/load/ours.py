"""The project's own load, as trials and `orchestrator measure` run it, with its report.

    python -m infra.bench.load.ours --url URL --streams 16 --requests 208 --seconds 18 --out FILE

The load is the one of `orchestrator.load.streams`: ramp, window, drain. Its throughput is the
window's, so the truth is taken over the same stretch of the clock.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from infra.bench.load.bare import PROMPT, parser, write
from infra.bench.load.cells import MODEL
from infra.bench.load.reports import Figure, Report, ReportError
from orchestrator.core.requests import LoadResult, Moment
from orchestrator.core.sampling import Shaping
from orchestrator.core.types import Cell
from orchestrator.core.window import quantiles, started_within, tokens_between
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Workload, load_workload
from orchestrator.ports import LoadRequest

NUM_PROMPTS = 64


def measure(url: str, *, streams: int, output_tokens: int, window_s: float) -> Report:
    """Run the load and return what it saw."""
    settings = LoadSettings(
        shaping=Shaping(),
        endpoint="chat",
        max_tokens=output_tokens,
        ignore_eos=True,
        block_s=window_s,
        warmup_requests_per_stream=0,
        warmup_max_tokens=1,
        request_timeout_s=120.0,
    )
    load = HttpLoad(workload(), settings=settings)
    cell = Cell(streams=streams, temperature=1.0)
    request = LoadRequest(base_url=url, model=MODEL, cell=cell, seed=1)
    moments: dict[Moment, float] = {}

    def observe(moment: Moment) -> None:
        moments[moment] = time.monotonic()

    start_cpu_s = time.process_time()
    result = asyncio.run(load.measure(request, observe))
    return report_of(result, moments, loop_cpu_s=time.process_time() - start_cpu_s)


def workload() -> Workload:
    """Return prompts of the same length as everybody else's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.jsonl"
        rows = [{"prompt": f"Task {number}. {PROMPT}"} for number in range(NUM_PROMPTS)]
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
        return load_workload(path)


def report_of(result: LoadResult, moments: dict[Moment, float], *, loop_cpu_s: float) -> Report:
    """Return what the load's records say, by the functions that blocks are made with.

    Raises:
        ReportError: A request failed, or the window never opened.
    """
    errors = [record.error for record in result.records if record.error is not None]
    if errors:
        raise ReportError(f"{len(errors)} requests failed, the first: {errors[0]}")
    if result.window is None:
        raise ReportError("the window never opened")
    window, records = result.window, result.records
    started = started_within(records, window) or list(records)
    ttft = {r.request_id: r.ttft_s for r in started if r.ttft_s is not None}
    spread = quantiles(list(ttft.values()))
    gaps = [gap for record in records for gap in np.diff(record.chunk_times_s)]
    # Over all requests, like the known answer: those of the ramp are shorter.
    paces = [pace for record in records if (pace := record.tpot_s) is not None]
    if spread is None:
        raise ReportError("no answer had a token")
    return Report(
        num_requests=len(records),
        output_tokens=sum(record.output_tokens or 0 for record in records),
        output_throughput=tokens_between(records, window) / window.duration_s,
        ttft_p50_s=spread.p50,
        ttft_p99_s=spread.p99,
        ttft_by_id=ttft,
        chunk_gap=Figure(name="chunk_gap_s", value_s=float(np.mean(gaps))) if gaps else None,
        token_time=Figure(name="tpot_s", value_s=float(np.mean(paces))) if paces else None,
        window=(moments[Moment.OPEN], moments[Moment.CLOSE]),
        loop_cpu_s=loop_cpu_s,
    )


def main() -> None:
    """Run one load and write its report."""
    options = parser("python -m infra.bench.load.ours")
    options.add_argument("--seconds", type=float, required=True, help="length of the window")
    given = options.parse_args()
    report = measure(
        given.url,
        streams=given.streams,
        output_tokens=given.output_tokens,
        window_s=given.seconds,
    )
    write(report, given.out)


if __name__ == "__main__":
    main()

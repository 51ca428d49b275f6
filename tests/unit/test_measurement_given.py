"""One block from answers that came at given times: what it makes of them, and under which name."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from measure_scene import Scene, kinds

from orchestrator.block_report import Setting, derived, format_block
from orchestrator.core.requests import LoadResult, Moment, RequestRecord, Span, TokenSource
from orchestrator.core.types import Block, Cell, Invalid
from orchestrator.ports import LoadRequest, Observe

CHUNKS_CSV = Path(__file__).resolve().parents[3] / "shared/data/gb10_chunks_vs_tokens.csv"


def exposition(generated: float, **values: float) -> str:
    named = {"generation_tokens": generated, "prompt_tokens": 0.0} | values
    lines = []
    for name, value in named.items():
        is_gauge = name.startswith("num_requests")
        lines.append(f"# TYPE vllm:{name} {'gauge' if is_gauge else 'counter'}")
        lines.append(f'vllm:{name}{"" if is_gauge else "_total"}{{engine="0"}} {value}')
    return "\n".join(lines) + "\n"


@dataclass
class GivenLoad:
    """Returns what it is given, after showing every moment."""

    result: LoadResult

    def run(self, _request: LoadRequest, observe: Observe) -> LoadResult:
        for moment in Moment:
            observe(moment)
        return self.result


def made_record(
    number: int, *, started_s: float, times: tuple[float, ...], counts: tuple[int, ...] | None
) -> RequestRecord:
    tokens = None if counts is None else counts[-1]
    return RequestRecord(
        request_id=f"r{number}",
        prompt_id="p",
        prompt_tokens=9,
        output_tokens=tokens,
        token_source=TokenSource.NONE if counts is None else TokenSource.USAGE,
        finish_reason="length",
        started_s=started_s,
        ttft_s=times[0],
        e2e_s=times[-1],
        chunk_times_s=times,
        chunk_tokens=counts,
        max_tokens=tokens or 100,
        text=f"these are the words of answer number {number}, all of them different",
    )


def given(records: list[RequestRecord], *, window: tuple[float, float]) -> GivenLoad:
    opening, closing = (Span(start_s=edge, end_s=edge) for edge in window)
    return GivenLoad(LoadResult(records=tuple(records), opening=opening, closing=closing))


def table(block: Block) -> dict[str, str]:
    setting = Setting(
        url="http://x",
        model="m",
        workload={"name": "w", "num_prompts": 1},
        sampling={},
        load={},
        acceptance_note=None,
    )
    rows = (line.split("  ", 1) for line in format_block(block, setting) if "  " in line)
    return {name: text.strip() for name, text in rows}


def test_measure_block_gap_between_chunks_and_time_per_token_have_two_names() -> None:
    """B03: a prefill's token, then ten chunks of four tokens every 40 ms: 40 ms and 10 ms."""
    times = tuple(0.5 + 0.04 * index for index in range(11))
    record = made_record(0, started_s=0.0, times=times, counts=tuple(range(1, 42, 4)))
    load = given([record], window=(0.1, 0.95))
    tokens = iter((0, 0, 20, 41, 41))

    block = (
        Scene(load, lambda: exposition(next(tokens)))
        .measure("http://x", arm=None, cell=Cell(streams=1, temperature=0.7))
        .block
    )

    assert block.invalid == ()
    assert block.chunk_gap_s is not None
    assert block.chunk_gap_s.p50 == pytest.approx(0.040)
    assert list(block.tpot_s) == pytest.approx([0.010])
    shown = table(block)
    assert shown["gap between chunks"].startswith("p50 40.0 ms")
    assert shown["tpot"].startswith("p50 10.0 ms")


def test_measure_block_acceptance_is_of_the_window_and_not_of_the_warm_up() -> None:
    """B13: (100, 60) before the warm-up, (200, 120) after it, (1200, 520) at the end."""
    counted = [(100.0, 60.0), (200.0, 120.0), (200.0, 120.0), (700.0, 300.0), (1200.0, 520.0)]
    texts = iter(
        exposition(
            drafted / 2,
            spec_decode_num_drafts=drafted / 5,
            spec_decode_num_draft_tokens=drafted,
            spec_decode_num_accepted_tokens=accepted,
        )
        for drafted, accepted in [*counted, counted[-1]]
    )
    next(texts)  # Nobody reads before the warm-up.
    times = tuple(0.01 * index for index in range(1, 501))
    record = made_record(0, started_s=0.0, times=times, counts=tuple(range(1, 501)))

    block = (
        Scene(given([record], window=(0.0, 6.0)), lambda: next(texts))
        .measure("http://x", arm=None, cell=Cell(streams=1, temperature=0.7))
        .block
    )

    assert block.counters.num_draft_tokens == 1000
    assert derived(block)["acceptance_rate"] == pytest.approx(400 / 1000)


def test_measure_block_eight_streams_in_a_queue_for_four_show_both_rates() -> None:
    """B14: 525 tokens/s by the time per token, 223 by wall; the wall is the throughput."""
    tpot_s, wait_s, tokens, streams = 8 / 525, 2.0787, 100, 8
    times = tuple(wait_s + tpot_s * index for index in range(tokens))
    cycle_s = times[-1]
    records = [
        made_record(
            10 * stream + turn,
            started_s=cycle_s * (turn + stream / streams),
            times=times,
            counts=tuple(range(1, tokens + 1)),
        )
        for stream in range(streams)
        for turn in range(4)
    ]
    load = given(records, window=(cycle_s, 3 * cycle_s))
    inside, whole = 2 * streams * tokens, 4 * streams * tokens
    counts = iter((0, 800, 1600, 800 + inside, whole))

    def text() -> str:
        return exposition(next(counts), num_requests_running=4, num_requests_waiting=4)

    cell = Cell(streams=streams, temperature=0.7)
    block = Scene(load, text).measure("http://x", arm=None, cell=cell).block

    values = derived(block)
    assert values["output_throughput"] == pytest.approx(223, rel=0.005)
    assert values["stream_throughput"] == pytest.approx(525 / streams, rel=0.005)
    shown = table(block)
    assert shown["output throughput"].endswith("tokens/s of all streams, by wall")
    assert shown["stream throughput"].endswith("tokens/s of one stream (1 / tpot)")
    assert kinds(block) == {Invalid.CONCURRENCY}
    assert (block.effective_concurrency, block.mean_waiting) == (4, 4)


@pytest.mark.parametrize(("uncounted", "is_valid"), [(0, True), (1, True), (2, False)])
def test_measure_block_answers_that_nobody_counted_lack_in_the_throughput(
    uncounted: int, is_valid: bool
) -> None:
    times = (0.1, 0.2)
    records = [
        made_record(
            index,
            started_s=0.2 * index,
            times=times,
            counts=None if index < uncounted else (1, 8),
        )
        for index in range(150)
    ]
    load = given(records, window=(0.0, 31.0))
    scene = Scene(load, lambda: "")

    block = scene.measure(
        "http://x", arm=None, cell=Cell(streams=1, temperature=0.7), needs_counters=False
    ).block

    assert kinds(block) == (set() if is_valid else {Invalid.TOKENS})


def test_measure_block_no_answer_with_a_count_is_no_measurement() -> None:
    record = made_record(0, started_s=0.0, times=(0.1, 0.2), counts=None)

    block = (
        Scene(given([record], window=(0.0, 0.21)), lambda: "")
        .measure("http://x", arm=None, cell=Cell(streams=1, temperature=0.7), needs_counters=False)
        .block
    )

    assert [item.kind for item in block.invalid] == [Invalid.TOKENS]
    assert "the answers carry no usage" in block.invalid[0].detail
    assert derived(block)["output_throughput"] is None


@pytest.mark.parametrize("text", ["a " * 60, "", " \n ", "=" * 60])
def test_measure_block_garbage_of_any_form_is_named(text: str) -> None:
    """A12, A13: one token for ever, or none at all."""
    record = made_record(0, started_s=0.0, times=(0.1, 0.2), counts=(1, 60))
    load = given([replace(record, text=text)], window=(0.0, 0.21))

    block = (
        Scene(load, lambda: "")
        .measure("http://x", arm=None, cell=Cell(streams=1, temperature=0.7), needs_counters=False)
        .block
    )

    assert kinds(block) == {Invalid.GARBAGE}


def test_measure_block_answers_that_end_early_though_ends_are_ignored_are_truncated() -> None:
    """B06: the actual tokens and the reason are kept; a short answer wins nothing."""
    record = made_record(0, started_s=0.0, times=(0.1, 0.2), counts=(1, 37))
    short = replace(record, max_tokens=256, finish_reason="stop")
    scene = Scene(given([short], window=(0.0, 0.21)), lambda: "")
    cell = Cell(streams=1, temperature=0.7)

    block = scene.measure("http://x", arm=None, cell=cell, needs_counters=False).block
    natural = scene.measure(
        "http://x", arm=None, cell=cell, needs_counters=False, ignores_eos=False
    ).block

    assert kinds(block) == {Invalid.TRUNCATED}
    assert kinds(natural) == set()
    assert (natural.finish_reasons, natural.audit.client_total) == ({"stop": 1}, 37)


@pytest.mark.skipif(not CHUNKS_CSV.exists(), reason="shared/data is not beside the repository")
def test_measure_block_of_streams_from_a_gb10_has_their_tokens_and_not_their_chunks() -> None:
    """B01: a chunk carries several tokens, one, or none."""
    lines = CHUNKS_CSV.read_text(encoding="utf-8").splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    records = [
        replace(
            made_record(
                index,
                started_s=sum(float(earlier["total_s"]) for earlier in rows[:index]),
                times=tuple(
                    float(row["total_s"]) * (1 + chunk) / int(row["chunk_count"])
                    for chunk in range(int(row["chunk_count"]))
                ),
                counts=None,
            ),
            output_tokens=int(row["completion_tokens"]),
            max_tokens=int(row["completion_tokens"]),
            token_source=TokenSource.USAGE,
        )
        for index, row in enumerate(rows)
    ]
    load = given(records, window=(0.0, sum(float(row["total_s"]) for row in rows) + 0.1))

    block = (
        Scene(load, lambda: "")
        .measure(
            "http://x",
            arm=None,
            cell=Cell(streams=1, temperature=0.7),
            needs_counters=False,
            ignores_eos=False,
        )
        .block
    )

    assert block.is_valid
    assert block.output_tokens == sum(int(row["completion_tokens"]) for row in rows) == 4145

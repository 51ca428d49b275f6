"""One block from load to verdict, in virtual time: each reason arises from its cause alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from core_samples import BASELINE, make_arm

from orchestrator.block_report import Setting, derived, format_block
from orchestrator.core.checks import Expectations
from orchestrator.core.node_health import NodeNeeds
from orchestrator.core.types import (
    Arm,
    Block,
    Cell,
    Fitness,
    GpuProcess,
    Invalid,
    LoadResult,
    Moment,
    RequestRecord,
    Span,
    TokenSource,
)
from orchestrator.errors import TransientError
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.measurement import BlockOrder, Instruments, Measured, measure_block
from orchestrator.ports import LoadClient, LoadRequest, Observe

ARM = make_arm()
CELL = Cell(streams=4, temperature=0.7)
Rewrite = Callable[[str], str]


def untouched(text: str) -> str:
    return text


@dataclass
class Scene:
    """A load, and what happens to the engine's text and the node at each of its moments."""

    load: LoadClient
    read: Callable[[], str]
    rewrite: dict[Moment, Rewrite] = field(default_factory=dict)
    act: Mapping[Moment, Callable[[], None]] = field(default_factory=dict)
    node: FakeNode = field(default_factory=lambda: FakeNode("node-3"))
    moment: Moment = Moment.BEFORE

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        """Do what the load does, and note which moment it is."""

        def look(moment: Moment) -> None:
            self.moment = moment
            self.act.get(moment, lambda: None)()
            observe(moment)

        return self.load.run(request, look)

    def text(self) -> str:
        return self.rewrite.get(self.moment, untouched)(self.read())

    def measure(
        self,
        base_url: str,
        *,
        arm: Arm | None = ARM,
        cell: Cell = CELL,
        own_pids: Callable[[], frozenset[int]] | None = None,
        ignores_eos: bool = True,
        **expected: bool,
    ) -> Measured:
        order = BlockOrder(
            boot_id="boot-a",
            index=3,
            request=LoadRequest(base_url=base_url, model="m", cell=cell, seed=5),
            expected=Expectations(arm=arm, **expected),
            ignores_eos=ignores_eos,
        )
        instruments = Instruments(
            load=self,
            metrics_text=self.text,
            node=self.node,
            needs=NodeNeeds(),
            own_pids=own_pids,
        )
        return measure_block(order, instruments)


@dataclass
class Board:
    """An engine of one arm on a board of its own, with the scene that measures it."""

    faults: Faults = field(default_factory=Faults)
    arm: Arm = ARM

    def __post_init__(self) -> None:
        self.board = FakeBoard("node-3", faults={self.arm: self.faults})
        self.engine = FakeEngine(self.board)
        self.engine.start(self.arm, lambda _line: None)
        load = FakeLoad(self.board, block_s=8.0, max_tokens=64)
        self.scene = Scene(load, self.engine.metrics_text)

    def measure(self, **options: object) -> Block:
        given = {"arm": self.arm} | options
        return self.scene.measure(self.board.base_url, **given).block  # type: ignore[arg-type]  # by keyword


def kinds(block: Block) -> set[Invalid]:
    return {item.kind for item in block.invalid}


def test_measure_block_counts_every_token_on_both_sides() -> None:
    block = Board().measure()

    assert block.invalid == ()
    assert block.audit.engine_total == block.audit.client_total > block.output_tokens
    assert block.audit.engine_window == block.audit.client_window > 0
    assert block.audit.unknown_total == 0
    assert block.block_id == "boot-a/c4_t0.7/3"
    assert (block.effective_concurrency, block.most_running) == (4.0, 4.0)
    assert block.node is not None
    assert block.node.fitness is Fitness.FIT
    assert len(block.node_states) == 3
    assert block.finish_reasons == {"length": block.num_requests}
    assert block.cached_tokens == 0


def test_measure_block_of_a_baseline_has_no_drafts_and_is_valid() -> None:
    block = Board(arm=BASELINE).measure()

    assert block.invalid == ()
    assert block.counters.num_drafts is None
    assert derived(block)["acceptance_length"] is None


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (Faults(foreign_tokens=5000), {Invalid.CONTAMINATED}),
        (Faults(restart_in_block=0), {Invalid.RESTARTED}),
        (Faults(death_in_block=0), {Invalid.COUNTERS, Invalid.REQUESTS}),
        (Faults(reset_every=5), {Invalid.REQUESTS}),
        (Faults(reset_every=30), set()),
        # Both are seen, each by itself: the text, and that no draft is ever accepted.
        (Faults(is_garbage=True), {Invalid.GARBAGE, Invalid.ACCEPTANCE}),
    ],
)
def test_measure_block_fault_of_the_engine_gives_its_own_kind(
    faults: Faults, expected: set[Invalid]
) -> None:
    assert kinds(Board(faults).measure()) == expected


def test_measure_block_text_of_one_symbol_is_garbage_without_speculation_too() -> None:
    """A12: HTTP 200, fast, and the text is `a a a a`."""
    block = Board(Faults(is_garbage=True), arm=BASELINE).measure()

    assert kinds(block) == {Invalid.GARBAGE}
    assert "'a a a" in block.invalid[0].detail


def test_measure_block_engine_that_drafts_for_a_baseline_is_named() -> None:
    assert kinds(Board().measure(arm=BASELINE)) == {Invalid.ACCEPTANCE}


def test_measure_block_engine_that_does_not_draft_for_an_arm_is_named() -> None:
    assert kinds(Board(arm=BASELINE).measure(arm=ARM)) == {Invalid.ACCEPTANCE}


# The engine's text


def fail(_text: str) -> str:
    raise TransientError("http://127.0.0.1:1/metrics answers HTTP 500")


def cut_within_a_line(text: str) -> str:
    return text[: len(text) // 2].rstrip("\n")


def cut_between_lines(text: str) -> str:
    return (
        text[: text.index("vllm:spec_decode_num_accepted_tokens_per_pos") - 40].rpartition("\n")[0]
        + "\n"
    )


@pytest.mark.parametrize("moment", Moment)
@pytest.mark.parametrize("rewrite", [fail, cut_within_a_line, cut_between_lines])
def test_measure_block_text_that_fails_at_any_moment_is_a_lack_of_counters(
    moment: Moment, rewrite: Rewrite
) -> None:
    board = Board()
    board.scene.rewrite[moment] = rewrite

    block = board.measure()

    assert kinds(block) == {Invalid.COUNTERS}
    assert len(block.invalid) == 1
    assert block.counters.generation_tokens is None
    assert block.output_tokens > 0


def test_measure_block_without_counters_says_so_where_they_are_needed() -> None:
    board = Board()
    board.scene.rewrite = dict.fromkeys(Moment, lambda _text: "")

    assert kinds(board.measure()) == {Invalid.COUNTERS}
    assert kinds(board.measure(arm=None, needs_counters=False)) == set()


def test_measure_block_counters_of_another_engine_are_not_the_client_s_tokens() -> None:
    board = Board()
    text = board.engine.metrics_text()
    board.scene.rewrite = dict.fromkeys(Moment, lambda _text: text)

    block = board.measure(arm=None)

    # That one runs nothing, and both are told.
    assert kinds(block) == {Invalid.TOKENS, Invalid.CONCURRENCY}
    assert "another engine" in block.invalid[0].detail


def test_measure_block_restart_is_seen_though_the_counters_grew_past_the_old_ones() -> None:
    start = "process_start_time_seconds"

    def old(text: str) -> str:
        return f"{text}# TYPE {start} gauge\n{start} 1.7e+09\n"

    def new(text: str) -> str:
        return f"{text}# TYPE {start} gauge\n{start} 1.70000006e+09\n"

    board = Board()
    late = (Moment.CLOSE, Moment.AFTER)
    board.scene.rewrite = {moment: new if moment in late else old for moment in Moment}

    block = board.measure()

    assert kinds(block) == {Invalid.RESTARTED}
    assert start in block.invalid[0].detail


def test_measure_block_steps_that_do_not_make_the_tokens_are_named() -> None:
    def halve(text: str) -> str:
        return re.sub(
            r"(vllm:spec_decode_num_\w+_total\{.*\}) (.*)",
            lambda match: f"{match[1]} {float(match[2]) / 2}",
            text,
        )

    board = Board()
    board.scene.rewrite = dict.fromkeys(Moment, halve)

    assert kinds(board.measure()) == {Invalid.STEP_TIME}


def test_measure_block_prefix_cache_shows_in_the_engine_s_counters_too() -> None:
    """B09: by the engine, for a server whose usage does not tell."""
    name = "vllm:prefix_cache"

    def cached(text: str) -> str:
        generated = float(re.search(r"generation_tokens_total\{.*\} (.*)", text)[1])  # type: ignore[index]  # it is there
        rows = [(f"{name}_queries", generated), (f"{name}_hits", generated / 2)]
        return text + "".join(
            f'# TYPE {row} counter\n{row}_total{{engine="0",model_name="specpilot"}} {value}\n'
            for row, value in rows
        )

    board = Board()
    board.scene.rewrite = dict.fromkeys(Moment, cached)

    assert kinds(board.measure()) == {Invalid.CACHED}
    assert kinds(board.measure(allows_cache=True)) == set()


# The node


def test_measure_block_node_that_is_unfit_during_the_block_only_voids_it() -> None:
    """E07: 799 MHz at 96 % utilisation, without a throttle flag."""
    board = Board()
    good = fake_node_state("node-3", kind="gb10")
    stuck = replace(good, sm_clock_mhz=799.0, power_w=19.5)
    board.scene.node = FakeNode("node-3", script=[good, stuck, good])

    block = board.measure()

    assert kinds(block) == {Invalid.NODE}
    assert "799" in block.invalid[0].detail
    assert [state.sm_clock_mhz for state in block.node_states] == [2400.0, 799.0, 2400.0]


def test_measure_block_engine_that_died_is_not_taken_for_another_s_process() -> None:
    board = Board(Faults(death_in_block=0))
    (pid,) = board.engine.pids()
    own = GpuProcess(pid=pid, name="VLLM::EngineCore", memory_bytes=None)
    board.scene.node.state = replace(fake_node_state("node-3"), gpu_processes=(own,))

    block = board.measure(own_pids=board.engine.pids)

    assert board.engine.pids() == frozenset()
    assert block.node is not None
    assert block.node.fitness is Fitness.FIT


def test_measure_block_other_process_on_the_gpu_is_a_doubt() -> None:
    board = Board()
    other = GpuProcess(pid=4711, name="python", memory_bytes=None)
    board.scene.node.state = replace(fake_node_state("node-3"), gpu_processes=(other,))

    block = board.measure(own_pids=board.engine.pids)

    assert block.is_valid
    assert block.node is not None
    assert block.node.fitness is Fitness.DEGRADED


# Given answers at given times


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
    load = given([record], window=(0.1, 2.0))
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
        Scene(given([record], window=(0.0, 1.0)), lambda: "")
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
    load = given([replace(record, text=text)], window=(0.0, 1.0))

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
    scene = Scene(given([short], window=(0.0, 1.0)), lambda: "")
    cell = Cell(streams=1, temperature=0.7)

    block = scene.measure("http://x", arm=None, cell=cell, needs_counters=False).block
    natural = scene.measure(
        "http://x", arm=None, cell=cell, needs_counters=False, ignores_eos=False
    ).block

    assert kinds(block) == {Invalid.TRUNCATED}
    assert kinds(natural) == set()
    assert (natural.finish_reasons, natural.audit.client_total) == ({"stop": 1}, 37)

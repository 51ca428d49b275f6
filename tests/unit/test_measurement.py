"""One block from load to verdict, in virtual time: each reason arises from its cause alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

import pytest
from core_samples import BASELINE
from measure_scene import ARM, Rewrite, Scene, kinds

from orchestrator.block_report import derived
from orchestrator.core.node_state import Fitness, GpuProcess
from orchestrator.core.requests import Moment
from orchestrator.core.types import Arm, Block, Invalid
from orchestrator.errors import TransientError
from orchestrator.fakes.board import FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.world import FakeNode, fake_node_state


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

    def later(text: str) -> str:
        return re.sub(rf"^{start} .*$", f"{start} 1.80000006e+09", text, flags=re.MULTILINE)

    board = Board()
    board.scene.rewrite = dict.fromkeys((Moment.CLOSE, Moment.AFTER), later)

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
        rows = [(f"{name}_queries", generated), (f"{name}_hits", 0.9 * generated)]
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

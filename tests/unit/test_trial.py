from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from core_samples import BASELINE, make_arm, make_invalid

from orchestrator.core.node_health import GIB, NodeNeeds
from orchestrator.core.types import (
    Arm,
    Block,
    Boot,
    BootStatus,
    Cell,
    EngineFacts,
    Invalid,
    LoadResult,
    NodeState,
    Span,
)
from orchestrator.errors import TransientError
from orchestrator.fakes.board import BootFault, FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.tracker import FakeTracker
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.ports import LoadClient, LoadRequest, Node, Observe
from orchestrator.trial import (
    Trial,
    TrialPorts,
    TrialSpec,
    block_seed,
    plan_blocks,
    summarize,
    trial_params,
)

ARM = make_arm()
CELLS = tuple(Cell(streams=s, temperature=t) for s in (1, 2, 4) for t in (0.7, 1.0))


def make_spec(arm: Arm = ARM, *, replicate: int = 0, blocks_per_cell: int = 1) -> TrialSpec:
    return TrialSpec(
        trial_id="trial-a",
        study_run_id="run-0",
        arm=arm,
        replicate=replicate,
        cells=CELLS,
        blocks_per_cell=blocks_per_cell,
        model="specpilot",
        seed=7,
    )


@dataclass
class Stage:
    """One trial on a board of its own."""

    faults: Faults = field(default_factory=Faults)
    spec: TrialSpec = field(default_factory=make_spec)
    runs: FakeTracker = field(default_factory=FakeTracker)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board = FakeBoard("node-3", faults={self.spec.arm: self.faults})
        self.engine = FakeEngine(self.board)
        self.runs.open_study("study", "study", {})
        self.load: LoadClient = FakeLoad(self.board, block_s=8.0, max_tokens=64)
        self.node: Node = FakeNode("node-3")

    def trial(self) -> Trial:
        ports = TrialPorts(
            engine=self.engine,
            load=self.load,
            tracker=self.runs,
            node=self.node,
        )
        return Trial(self.spec, ports, self.said.append)

    def run(self) -> Boot:
        """Do what Tune does with a trial, to its end."""
        trial = self.trial()
        trial.setup()
        while not trial.ended:
            trial.step()
        boot = trial.finish()
        trial.cleanup()
        return boot


class DownTracker(FakeTracker):
    """A tracker whose server is gone from its ``num_calls``-th call of a trial on."""

    def __init__(self, num_calls: int) -> None:
        super().__init__()
        self._left = num_calls
        self.num_refused = 0

    def open_trial(self, study_run_id: str, trial_id: str, params: Mapping[str, object]) -> str:
        self._call()
        return super().open_trial(study_run_id, trial_id, params)

    def log_block(self, run_id: str, block: Block) -> None:
        self._call()
        super().log_block(run_id, block)

    def close_trial(self, run_id: str, boot: Boot, artifacts: Mapping[str, str]) -> None:
        self._call()
        super().close_trial(run_id, boot, artifacts)

    def _call(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.num_refused += 1
            raise TransientError("the tracking server does not answer")


class RecordingLoad:
    """Notes what was asked, and opens no window in the blocks whose numbers it is given."""

    def __init__(self, inner: LoadClient, *, lost: frozenset[int] = frozenset()) -> None:
        self._inner = inner
        self._lost = lost
        self.requests: list[LoadRequest] = []

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        self.requests.append(request)
        result = self._inner.run(request, observe)
        if len(self.requests) - 1 in self._lost:
            return replace(result, opening=None, closing=None)
        return result


def test_trial_that_goes_well_has_a_valid_block_in_every_cell() -> None:
    stage = Stage()

    boot = stage.run()

    assert (boot.status, boot.reason) == (BootStatus.OK, "")
    assert sorted(block.cell for block in boot.blocks) == sorted(CELLS)
    assert [block.index for block in boot.blocks] == list(range(6))
    assert all(block.invalid_reason is None for block in boot.blocks)
    assert len({block.block_id for block in boot.blocks}) == 6
    assert (boot.arm, boot.node_id, boot.replicate) == (ARM, "node-3", 0)
    assert boot.facts is not None
    assert boot.facts.rejection_sample_method == "block"
    assert any("ready" in line for line in stage.said)


def test_blocks_hold_counters_of_their_own_window_only() -> None:
    """B13: neither the warm-up nor an earlier block counts."""
    boot = Stage().run()

    for block in boot.blocks:
        assert block.counters.generation_tokens == block.output_tokens
        assert block.audit.engine_total == block.audit.client_total > block.output_tokens
        assert block.counters.num_drafts
        assert block.effective_concurrency == block.cell.streams
        assert 0 < len(block.ttft_s) <= block.num_requests
        assert sum(block.finish_reasons.values()) == block.num_requests
        assert [state.node_id for state in block.node_states] == ["node-3"] * 3


def test_trial_is_tracked_with_its_blocks_and_files() -> None:
    stage = Stage()
    boot = stage.run()
    assert boot.run_id is not None
    run = stage.runs.runs[boot.run_id]

    assert (run.status, run.parent_id) == ("FINISHED", "run-0")
    assert set(run.blocks) == {block.block_id for block in boot.blocks}
    assert run.params["arm"] == "probabilistic+block-7"
    assert "ready" in run.artifacts["engine_log_tail.txt"]
    assert json.loads(run.artifacts["resolved_config.json"]) == {}


def test_baseline_has_blocks_without_drafts() -> None:
    boot = Stage(spec=make_spec(BASELINE)).run()

    assert boot.status is BootStatus.OK
    assert {block.counters.num_drafts for block in boot.blocks} == {None}


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (BootFault.INFEASIBLE, BootStatus.INFEASIBLE, "out of memory"),
        (BootFault.TRANSIENT, BootStatus.FAILED, "ended with status 1"),
    ],
)
def test_boot_that_fails_ends_the_trial_with_its_kind(
    fault: BootFault, status: BootStatus, reason: str
) -> None:
    stage = Stage(Faults(boot=fault))

    boot = stage.run()

    assert boot.status is status
    assert reason in boot.reason
    assert (boot.facts, boot.blocks) == (None, ())
    assert boot.run_id is not None
    run = stage.runs.runs[boot.run_id]
    assert run.status == "FAILED"
    assert "boot failed" in run.artifacts["engine_log_tail.txt"]


@pytest.mark.parametrize("key", ["draft_sample_method", "rejection_sample_method"])
def test_ignored_key_is_not_in_force_and_nothing_is_measured(key: str) -> None:
    """A04, A05: what the engine took and ignored gets no score."""
    boot = Stage(Faults(ignored_keys=(key,))).run()

    assert boot.status is BootStatus.NOT_IN_FORCE
    assert boot.blocks == ()
    for word in (key, "v2", "0.32.0"):
        assert word in boot.reason


def test_engine_that_restarts_inside_a_block_fails_the_boot_and_keeps_earlier_blocks() -> None:
    """A17, F11: the block of the restart is kept and says so, those before it stand."""
    stage = Stage(Faults(restart_in_block=2))

    boot = stage.run()

    order = plan_blocks(stage.spec)
    assert boot.status is BootStatus.FAILED
    assert boot.reason.startswith(f"engine lost in cell {order[2].key}: ")
    assert "restarted" in boot.reason
    assert [block.cell for block in boot.blocks] == list(order[:3])
    assert [block.is_valid for block in boot.blocks] == [True, True, False]
    assert boot.blocks[2].invalid[0].kind is Invalid.RESTARTED
    assert boot.run_id is not None
    run = stage.runs.runs[boot.run_id]
    assert (run.status, len(run.blocks)) == ("FAILED", 3)


def test_engine_that_dies_under_load_fails_the_boot_and_keeps_earlier_blocks() -> None:
    stage = Stage(Faults(death_in_block=4))

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert "engine lost in cell" in boot.reason
    assert [block.is_valid for block in boot.blocks] == [True] * 4 + [False]
    assert "connection reset" in (boot.blocks[4].invalid_reason or "")


@pytest.mark.parametrize("lost", [0, 3, 5])
def test_window_that_cannot_be_trusted_costs_its_block_only(lost: int) -> None:
    stage = Stage()
    stage.load = RecordingLoad(stage.load, lost=frozenset({lost}))

    boot = stage.run()

    order = plan_blocks(stage.spec)
    assert boot.status is BootStatus.OK
    assert [block.is_valid for block in boot.blocks] == [i != lost for i in range(6)]
    assert boot.reason.startswith(f"{order[lost].key}: requests: the window never opened")


def test_lost_window_is_told_when_it_happens() -> None:
    stage = Stage()
    stage.load = RecordingLoad(stage.load, lost=frozenset({0}))
    trial = stage.trial()
    trial.setup()

    told = [trial.step() for _ in range(2)]

    assert ": not valid, requests: the window never opened" in told[0]
    assert told[1].endswith(" tokens a step")


def test_trial_without_any_window_to_trust_is_a_failed_boot() -> None:
    stage = Stage()
    stage.load = RecordingLoad(stage.load, lost=frozenset(range(6)))

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert boot.reason.startswith("no valid block; ")
    assert not any(block.is_valid for block in boot.blocks)


def stuck_clock() -> NodeState:
    """E07: a board at 799 MHz that reports neither a throttle reason nor another P-state."""
    return replace(
        fake_node_state("node-3"),
        kind="gb10",
        sm_clock_mhz=799.0,
        sm_clock_max_mhz=3003.0,
        utilisation=0.96,
        power_w=19.5,
        throttle_reasons=(),
    )


def test_node_whose_clock_is_stuck_before_the_boot_is_not_booted_on() -> None:
    stage = Stage()
    stage.node = FakeNode("node-3", script=[stuck_clock()])

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert boot.reason.startswith("the node is unfit: the SM clock is stuck at 799")
    assert (boot.facts, boot.blocks) == (None, ())


def test_node_whose_clock_gets_stuck_under_load_voids_its_blocks() -> None:
    stage = Stage()
    node = FakeNode("node-3", script=[fake_node_state("node-3")])
    node.state = stuck_clock()
    stage.node = node

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert {block.invalid[0].kind for block in boot.blocks} == {Invalid.NODE}


class SlowedLoad:
    """A load whose blocks of one stream take three times as long as they did."""

    def __init__(self, inner: LoadClient) -> None:
        self._inner = inner

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        result = self._inner.run(request, observe)
        if request.cell.streams != 1:
            return result
        records = tuple(
            replace(
                record,
                started_s=3 * record.started_s,
                ttft_s=None if record.ttft_s is None else 3 * record.ttft_s,
                e2e_s=None if record.e2e_s is None else 3 * record.e2e_s,
                chunk_times_s=tuple(3 * time_s for time_s in record.chunk_times_s),
            )
            for record in result.records
        )
        return replace(
            result,
            records=records,
            opening=slowed(result.opening),
            closing=slowed(result.closing),
        )


def slowed(span: Span | None) -> Span | None:
    return None if span is None else Span(start_s=3 * span.start_s, end_s=3 * span.end_s)


def test_cells_that_contradict_each_other_are_both_void_where_time_counts() -> None:
    stage = Stage()
    stage.load = SlowedLoad(stage.load)

    boot = stage.run()

    void = {block.cell.streams for block in boot.blocks if not block.is_valid}
    assert void == {1, 2}
    assert "scaling" in boot.reason


def test_cells_that_contradict_each_other_keep_their_acceptance_under_a_board_model() -> None:
    stage = Stage(spec=replace(make_spec(), needs_timing=False))
    stage.load = SlowedLoad(stage.load)

    boot = stage.run()

    assert all(block.is_valid for block in boot.blocks)


def test_node_with_too_little_memory_fails_the_boot_before_it_starts() -> None:
    stage = Stage(spec=replace(make_spec(), needs=NodeNeeds(engine_memory_bytes=900 * GIB)))

    boot = stage.run()

    assert boot.status is BootStatus.FAILED
    assert "out of memory" in boot.reason


def test_capacity_that_gauge_and_log_tell_apart_is_noted() -> None:
    """C11: both figures are kept and compared."""

    class TwoFaced(FakeEngine):
        def facts(self) -> EngineFacts:
            return replace(super().facts(), kv_cache_tokens_log=1000)

        def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
            super().start(arm, on_progress)
            return self.facts()

    stage = Stage()
    stage.engine = TwoFaced(stage.board)

    boot = stage.run()

    assert boot.status is BootStatus.OK
    assert "1,000" in boot.reason or "1000" in boot.reason


def test_other_traffic_in_every_block_makes_a_failed_boot_that_keeps_them() -> None:
    """B12: somebody else's tokens are not ours."""
    boot = Stage(Faults(foreign_tokens=5000)).run()

    assert boot.status is BootStatus.FAILED
    assert "other traffic" in boot.reason
    assert len(boot.blocks) == 6
    assert all(block.invalid_reason for block in boot.blocks)


def test_garbage_never_scores() -> None:
    """A12: fast, HTTP 200, acceptance 0, the same token for ever."""
    boot = Stage(Faults(is_garbage=True)).run()

    assert boot.status is BootStatus.FAILED
    assert all("no accepted token" in (block.invalid_reason or "") for block in boot.blocks)


@pytest.mark.parametrize("num_calls", range(9))
def test_tracker_that_is_down_from_any_call_on_never_fails_the_trial(num_calls: int) -> None:
    """G01: a trial never fails because of logging."""
    tracker = DownTracker(num_calls)

    boot = Stage(runs=tracker).run()

    expected = Stage().run()
    run_id = "run-1" if num_calls else None
    assert boot == replace(expected, run_id=run_id)
    assert (tracker.num_refused > 0) == (num_calls < 8)


def test_trial_ended_early_is_a_failed_boot_with_what_it_has() -> None:
    trial = Stage().trial()
    trial.setup()
    trial.step()

    boot = trial.finish()

    assert (boot.status, len(boot.blocks)) == (BootStatus.FAILED, 1)
    assert boot.reason == "ended before all blocks were measured"


def test_cleanup_before_setup_after_a_failure_and_twice_leaves_no_engine() -> None:
    for faults in (Faults(), Faults(boot=BootFault.TRANSIENT), Faults(death_in_block=0)):
        stage = Stage(faults)
        trial = stage.trial()
        trial.cleanup()
        trial.setup()
        if not trial.ended:
            trial.step()
        trial.cleanup()
        trial.cleanup()
        with pytest.raises(TransientError):
            stage.engine.facts()


def test_block_order_is_the_same_for_all_arms_and_another_in_each_boot() -> None:
    orders = {
        arm: [plan_blocks(make_spec(arm, replicate=replicate)) for replicate in range(4)]
        for arm in (BASELINE, ARM, make_arm(3))
    }

    assert orders[BASELINE] == orders[ARM] == orders[make_arm(3)]
    assert len(set(orders[ARM])) > 1
    assert all(sorted(order) == sorted(CELLS) for order in orders[ARM])


def test_block_order_visits_every_cell_once_a_round() -> None:
    order = plan_blocks(make_spec(blocks_per_cell=3))

    for start in (0, 6, 12):
        assert sorted(order[start : start + 6]) == sorted(CELLS)


def test_block_seeds_pair_over_arms_and_never_repeat_in_an_arm() -> None:
    asked = {}
    for arm in (BASELINE, ARM):
        stage = Stage(spec=make_spec(arm, blocks_per_cell=2))
        recorder = stage.load = RecordingLoad(stage.load)
        stage.run()
        asked[arm] = [(request.cell, request.seed) for request in recorder.requests]

    assert asked[BASELINE] == asked[ARM]
    assert len({seed for _, seed in asked[ARM]}) == 12


def test_block_seed_changes_with_boot_cell_and_repeat() -> None:
    one, other = make_spec(), make_spec(replicate=1)

    seeds = {
        block_seed(spec, cell, repeat)
        for spec in (one, other)
        for cell in CELLS
        for repeat in range(2)
    }
    assert len(seeds) == 2 * 6 * 2
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_trial_params_say_the_order_of_the_cells() -> None:
    spec = make_spec()
    params = trial_params(spec, "node-3")

    assert params["cell_order"] == " ".join(cell.key for cell in plan_blocks(spec))
    assert (params["node"], params["num_speculative_tokens"]) == ("node-3", 7)
    assert trial_params(make_spec(BASELINE), "n")["draft_sample_method"] == "none"


def test_summarize_says_why_a_block_does_not_count() -> None:
    block = Stage().run().blocks[0]

    assert summarize(replace(block, invalid=make_invalid("other traffic"))) == (
        f"{block.cell.key}: not valid, contaminated: other traffic"
    )


def test_error_that_nobody_expects_reaches_the_caller() -> None:
    class BrokenLoad(FakeLoad):
        def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
            raise KeyError(request.seed, observe)

    stage = Stage()
    stage.load = BrokenLoad(stage.board)
    trial = stage.trial()
    trial.setup()

    with pytest.raises(KeyError):
        trial.step()

"""One trial from its boot to its record."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from core_samples import BASELINE, make_invalid
from trial_stage import ARM, CELLS, RecordingLoad, Stage, make_spec

from orchestrator.core.failures import Failure, FailureKind
from orchestrator.core.node_health import GIB, NodeNeeds
from orchestrator.core.requests import LoadResult
from orchestrator.core.types import Arm, BootStatus, EngineFacts, Invalid
from orchestrator.errors import TransientError
from orchestrator.fakes.board import BootFault, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.world import FakeNode, fake_node_state
from orchestrator.ports import LoadRequest, Observe
from orchestrator.trial import plan_blocks
from orchestrator.trial_text import summarize


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


def test_trial_tells_its_blocks_and_files() -> None:
    stage = Stage()
    boot = stage.run()
    begun, *blocks, ended = stage.log.take()

    assert begun.params is not None
    assert begun.params["arm"] == "probabilistic+block-7"
    assert [entry.block for entry in blocks] == list(boot.blocks)
    assert ended.boot == boot
    assert "ready" in ended.artifacts["engine_log_tail.txt"]
    assert json.loads(ended.artifacts["resolved_config.json"]) == {}


def test_baseline_has_blocks_without_drafts() -> None:
    boot = Stage(spec=make_spec(BASELINE)).run()

    assert boot.status is BootStatus.OK
    assert {block.counters.num_drafts for block in boot.blocks} == {None}


@pytest.mark.parametrize(
    ("fault", "status", "kind", "reason"),
    [
        (
            BootFault.INFEASIBLE, BootStatus.INFEASIBLE,
            FailureKind.OUT_OF_MEMORY, "CUDA out of memory at boot; it ran out of memory while",
        ),
        (
            BootFault.TRANSIENT, BootStatus.FAILED,
            FailureKind.EXITED, "the engine process ended with status 1",
        ),
        (
            BootFault.REFUSED, BootStatus.INFEASIBLE,
            FailureKind.BAD_ARGUMENTS, "unrecognized arguments: --nonsense",
        ),
        (
            BootFault.STARTUP_CHECK, BootStatus.FAILED,
            FailureKind.STARTUP_CHECK, "than engine.args.gpu_memory_utilization asks for",
        ),
    ],
)  # fmt: skip
def test_boot_that_fails_ends_the_trial_with_its_kind(
    fault: BootFault, status: BootStatus, kind: FailureKind, reason: str
) -> None:
    stage = Stage(Faults(boot=fault))

    boot = stage.run()

    assert (boot.status, boot.failure) == (status, kind)
    assert reason in boot.reason
    assert (boot.facts, boot.blocks) == (None, ())
    ended = stage.log.take()[-1]
    assert ended.boot == boot
    assert "boot failed" in ended.artifacts["engine_log_tail.txt"]
    assert "failed to start" in ended.artifacts["serve_message.txt"]


def test_check_that_the_page_cache_has_failed_says_to_drop_it() -> None:
    """E01: MemFree 40, MemAvailable 98, 85 wanted."""
    needs = NodeNeeds(engine_memory_bytes=85 * GIB, engine_counts_page_cache=True)
    stage = Stage(Faults(boot=BootFault.STARTUP_CHECK), spec=replace(make_spec(), needs=needs))
    full = replace(fake_node_state("node-3"), mem_free_bytes=40 * GIB, mem_available_bytes=98 * GIB)
    stage.node = FakeNode("node-3", script=[full])

    boot = stage.run()

    assert boot.failure is FailureKind.STARTUP_CHECK
    assert "reclaimable page cache: the engine's own check will fail" in boot.reason
    assert "gpu_memory_utilization asks for" not in boot.reason


def test_engine_of_another_build_is_told_from_one_that_ignores_a_key() -> None:
    class Older(FakeEngine):
        def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
            return replace(super().start(arm, on_progress), engine_version="0.28.0")

    stage = Stage()
    stage.engine = Older(stage.board)

    boot = stage.run()

    assert (boot.status, boot.failure) == (BootStatus.NOT_IN_FORCE, FailureKind.WRONG_BUILD)


def test_evidence_of_a_death_under_load_is_what_the_boot_keeps() -> None:
    """E14: out of memory under load only."""
    death = Failure(FailureKind.OOM_UNDER_LOAD, "the engine exited", "CUDA out of memory")
    stage = Stage(Faults(death_in_block=2, death=death))

    boot = stage.run()

    cell = plan_blocks(stage.spec)[2].key
    assert (boot.status, boot.failure) == (BootStatus.FAILED, FailureKind.OOM_UNDER_LOAD)
    assert boot.cause == "CUDA out of memory"
    assert boot.reason.startswith(f"engine lost in cell {cell}: the engine exited: CUDA out of")
    assert "could not serve it either" in boot.reason
    assert [block.is_valid for block in boot.blocks] == [True, True, False]


def test_engine_that_hangs_ends_its_block_and_the_boot() -> None:
    """E13: /health says 200 and every completion hangs."""
    stage = Stage(Faults(hang_in_block=1))

    boot = stage.run()

    assert boot.failure is FailureKind.ENGINE_HANGS
    assert "no completion came" in boot.reason
    assert [block.is_valid for block in boot.blocks] == [True, False]
    assert boot.blocks[1].invalid[0].kind is Invalid.SILENT


def test_engine_on_which_streams_give_up_has_to_give_a_completion() -> None:
    stage = Stage()

    class GivingUp(FakeLoad):
        def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
            result = super().run(request, observe)
            stage.board.engine().hangs = True
            return replace(result, num_lost_streams=1)

    stage.load = GivingUp(stage.board)

    boot = stage.run()

    assert boot.failure is FailureKind.ENGINE_HANGS
    assert len(boot.blocks) == 1


def test_silence_of_an_engine_that_answers_again_costs_its_block_only() -> None:
    class Recovering(FakeEngine):
        def probe(self) -> str | None:
            stage.board.engine().hangs = False
            return super().probe()

    stage = Stage(Faults(hang_in_block=1))
    stage.engine = Recovering(stage.board)

    boot = stage.run()

    assert (boot.status, boot.failure) == (BootStatus.OK, None)
    assert [block.is_valid for block in boot.blocks] == [True, False, True, True, True, True]


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
    told = stage.log.take()
    assert told[-1].boot == boot
    assert [entry.block for entry in told[1:-1]] == list(boot.blocks)


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


def test_trial_ended_early_is_a_failed_boot_with_what_it_has() -> None:
    trial = Stage().trial()
    trial.setup()
    trial.step()

    boot = trial.finish()

    assert (boot.status, len(boot.blocks)) == (BootStatus.FAILED, 1)
    assert boot.failure is FailureKind.CUT_SHORT
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

"""The engine contract on the fake, and each fault that it can play."""

from __future__ import annotations

import pytest

from orchestrator.core.exposition import parse_counters
from orchestrator.core.requests import LoadResult, Moment
from orchestrator.core.types import Arm, Cell
from orchestrator.core.window import tokens_between
from orchestrator.errors import InfeasibleArm, TransientError
from orchestrator.fakes.acceptance import AcceptanceModel
from orchestrator.fakes.board import BootFault, FakeBoard, Faults
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.ports import LoadRequest

BASELINE = Arm(engine_build="0.32.0")


def arm(depth: int = 7, draft: str = "probabilistic", rejection: str = "block") -> Arm:
    return Arm(
        engine_build="0.32.0",
        num_speculative_tokens=depth,
        draft_sample_method=draft,
        rejection_sample_method=rejection,
    )


def quiet(_line: str) -> None:
    pass


def unseen(_moment: Moment) -> None:
    pass


def load(board: FakeBoard, *, streams: int = 2, temperature: float = 1.0) -> LoadResult:
    cell = Cell(streams=streams, temperature=temperature)
    request = LoadRequest(base_url=board.base_url, model="m", cell=cell, seed=3)
    return FakeLoad(board).run(request, unseen)


def rate(board: FakeBoard, one: Arm, **cell: float) -> float:
    FakeEngine(board).start(one, quiet)
    result = load(board, **cell)  # type: ignore[arg-type]
    assert result.window is not None
    return tokens_between(result.records, result.window) / result.window.duration_s


class TestEngineContract:
    def test_start_says_what_is_in_force(self) -> None:
        facts = FakeEngine(FakeBoard()).start(arm(), quiet)

        assert facts.num_speculative_tokens == 7
        assert facts.draft_sample_method == "probabilistic"
        assert facts.rejection_sample_method == "block"
        assert facts.model_runner == "v2"
        assert facts.engine_version == "0.32.0"

    def test_start_without_speculation_has_no_draft(self) -> None:
        facts = FakeEngine(FakeBoard()).start(BASELINE, quiet)

        assert facts.num_speculative_tokens is None
        assert facts.draft_architecture is None

    def test_start_reports_progress(self) -> None:
        lines: list[str] = []
        FakeEngine(FakeBoard()).start(arm(), lines.append)

        assert lines

    def test_facts_again_are_those_of_the_start(self) -> None:
        engine = FakeEngine(FakeBoard())

        assert engine.start(arm(), quiet) == engine.facts()

    def test_each_boot_has_an_id_of_its_own(self) -> None:
        engine = FakeEngine(FakeBoard())
        ids = set()
        for one in (arm(), arm(), BASELINE):
            ids.add(engine.start(one, quiet).boot_id)
            engine.stop()

        assert len(ids) == 3

    def test_stop_twice_leaves_nothing(self) -> None:
        engine = FakeEngine(FakeBoard())
        engine.start(arm(), quiet)
        engine.stop()
        engine.stop()

        for ask in (engine.facts, engine.metrics_text):
            with pytest.raises(TransientError):
                ask()
        assert engine.log_tail()
        assert engine.probe()

    def test_engine_that_answers_has_nothing_to_be_judged(self) -> None:
        engine = FakeEngine(FakeBoard())
        engine.start(arm(), quiet)

        assert (engine.probe(), engine.post_mortem(), engine.serve_message()) == (None, None, "")

    def test_kill_ends_the_engine_and_may_come_before_the_start(self) -> None:
        engine = FakeEngine(FakeBoard())
        engine.kill()
        engine.start(arm(), quiet)
        engine.kill()

        with pytest.raises(TransientError):
            engine.facts()
        assert engine.probe()

    def test_metrics_of_the_baseline_know_no_drafts(self) -> None:
        engine = FakeEngine(FakeBoard())
        engine.start(BASELINE, quiet)

        counters = parse_counters(engine.metrics_text()).total
        assert counters.generation_tokens == 0
        assert counters.num_drafts is None
        assert counters.num_accepted_tokens_per_pos is None


def test_infeasible_arm_is_told_apart_from_a_dead_boot() -> None:
    faults = {
        arm(8): Faults(boot=BootFault.INFEASIBLE),
        arm(7): Faults(boot=BootFault.TRANSIENT),
    }
    engine = FakeEngine(FakeBoard(faults=faults))

    with pytest.raises(InfeasibleArm):
        engine.start(arm(8), quiet)
    with pytest.raises(TransientError):
        engine.start(arm(7), quiet)
    assert "failed to start" in engine.serve_message()
    with pytest.raises(TransientError):
        engine.facts()


def test_transient_boot_failure_goes_away_after_its_count() -> None:
    faults = {arm(): Faults(boot=BootFault.TRANSIENT, failing_boots=1)}
    engine = FakeEngine(FakeBoard(faults=faults))

    with pytest.raises(TransientError):
        engine.start(arm(), quiet)
    assert engine.start(arm(), quiet).num_speculative_tokens == 7


def test_ignored_key_shows_in_facts_and_in_acceptance() -> None:
    ignoring = FakeBoard(faults={arm(): Faults(ignored_keys=("draft_sample_method",))})
    facts = FakeEngine(ignoring).start(arm(), quiet)

    assert facts.draft_sample_method == "greedy"
    assert facts.rejection_sample_method == "block"
    assert rate(ignoring, arm()) < rate(FakeBoard(), arm())


def test_restart_in_a_block_changes_the_boot_and_the_counters() -> None:
    board = FakeBoard(faults={arm(): Faults(restart_in_block=1)})
    engine = FakeEngine(board)
    first = engine.start(arm(), quiet)
    load(board)
    before = parse_counters(engine.metrics_text()).total
    assert engine.facts().boot_id == first.boot_id
    load(board)
    after = parse_counters(engine.metrics_text()).total

    assert engine.facts().boot_id != first.boot_id
    assert before.prompt_tokens is not None
    assert after.prompt_tokens is not None
    load(board)


def test_death_in_a_block_ends_the_engine_there() -> None:
    board = FakeBoard(faults={arm(): Faults(death_in_block=1)})
    engine = FakeEngine(board)
    engine.start(arm(), quiet)
    load(board)

    assert load(board).num_lost_streams == 2
    with pytest.raises(TransientError):
        engine.facts()


def test_engine_that_hangs_in_a_block_gives_no_token_from_there_on_and_is_up() -> None:
    board = FakeBoard(faults={arm(): Faults(hang_in_block=1)})
    engine = FakeEngine(board)
    facts = engine.start(arm(), quiet)
    assert load(board).silent_s is None

    for _ in range(2):
        assert load(board).silent_s is not None
    assert engine.facts() == facts
    assert engine.probe()


def test_boots_and_blocks_take_virtual_time_only() -> None:
    board = FakeBoard(boot_time_s=420.0)
    FakeEngine(board).start(arm(), quiet)
    result = load(board)

    last_s = max(record.started_s + (record.e2e_s or 0.0) for record in result.records)
    assert board.clock.monotonic() == pytest.approx(420.0 + last_s)


def test_a_boot_does_not_depend_on_what_was_booted_before() -> None:
    fresh, used = FakeBoard(), FakeBoard()
    rate(used, BASELINE)
    rate(used, arm(3))

    assert rate(fresh, arm()) == rate(used, arm())


def test_boots_of_one_arm_differ_and_nodes_differ() -> None:
    board = FakeBoard()
    rates = {rate(board, arm()), rate(board, arm()), rate(FakeBoard("node-1"), arm())}

    assert len(rates) == 3


def test_deeper_drafts_leave_less_room_in_the_cache() -> None:
    engine = FakeEngine(FakeBoard())
    sizes = [engine.start(one, quiet).kv_cache_tokens for one in (BASELINE, arm(3), arm(7))]

    assert None not in sizes
    assert sizes == sorted(sizes, reverse=True, key=lambda size: size or 0)
    assert len(set(sizes)) == 3


class TestAcceptanceModel:
    @pytest.mark.parametrize("depth", [1, 7, 12])
    @pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 2.0])
    def test_rates_lie_in_0_to_1_and_fall(self, depth: int, temperature: float) -> None:
        rates = AcceptanceModel().rates(arm(depth), temperature, prompt_id="p")

        assert len(rates) == depth
        assert all(0 <= one <= 1 for one in rates)
        assert list(rates) == sorted(rates, reverse=True)

    def test_probabilistic_helps_most_where_the_target_is_random(self) -> None:
        model = AcceptanceModel()

        def gain(temperature: float) -> float:
            greedy = sum(model.rates(arm(draft="greedy"), temperature))
            return sum(model.rates(arm(), temperature)) / greedy

        assert 1.0 < gain(0.7) < gain(1.0)

    def test_positions_past_the_trained_block_are_hardly_accepted(self) -> None:
        rates = AcceptanceModel(trained_depth=7).rates(arm(8), 0.0)

        assert rates[7] < 0.01 * rates[6]

    def test_the_baseline_drafts_nothing(self) -> None:
        assert AcceptanceModel().rates(BASELINE, 1.0) == ()

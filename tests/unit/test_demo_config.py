"""The two studies that ship, held to what they are meant to ask."""

from __future__ import annotations

import pytest

from orchestrator.config import CONF_DIR, StudyConfig, load_config
from orchestrator.core.types import Arm
from orchestrator.prepare import prepare


@pytest.fixture(scope="module")
def demo() -> StudyConfig:
    return load_config(CONF_DIR / "study" / "demo.yaml")


@pytest.fixture(scope="module")
def qwen() -> StudyConfig:
    return load_config(CONF_DIR / "study" / "qwen38_gb10.yaml")


def arms_of(build: str, depths: tuple[int, ...]) -> set[Arm]:
    speculating = {
        Arm(
            engine_build=build,
            num_speculative_tokens=depth,
            draft_sample_method=draft,
            rejection_sample_method=rejection,
        )
        for draft in ("greedy", "probabilistic")
        for rejection in ("standard", "block")
        for depth in depths
    }
    return speculating | {Arm(engine_build=build)}


def conditions(config: StudyConfig) -> set[tuple[int, float]]:
    return {(cell.streams, cell.temperature) for cell in config.cells()}


def test_demo_asks_all_rules_at_two_depths_and_no_speculation(demo: StudyConfig) -> None:
    arms = prepare(demo, models_must_exist=False).arms

    assert len(arms) == 9
    assert set(arms) == arms_of("0.32.0", (3, 7))


def test_demo_has_four_cells_and_a_modelled_step_time(demo: StudyConfig) -> None:
    assert conditions(demo) == {(1, 0.7), (1, 1.0), (2, 0.7), (2, 1.0)}
    assert demo.objective.step_time == "modelled"
    board = demo.board()
    assert board is not None
    assert board.name == "gb10_model"
    assert sum(demo.weights().values()) == pytest.approx(1.0)


def test_demo_runs_on_the_cpu_with_models_of_the_project(demo: StudyConfig) -> None:
    assert (demo.engine.platform, demo.engine.model_runner) == ("cpu", "v2")
    assert demo.target.path.startswith("infra/tiny_models/")
    assert demo.draft is not None
    assert demo.draft.path.startswith("infra/tiny_models/")


def test_qwen_asks_all_rules_at_depths_4_to_7_and_no_speculation(qwen: StudyConfig) -> None:
    prepared = prepare(qwen, models_must_exist=False)

    assert set(prepared.arms) == arms_of("0.32.0", (4, 5, 6, 7))
    assert len(prepared.workload.prompts) >= 16


def test_qwen_has_ten_cells_and_measures_its_step_time(qwen: StudyConfig) -> None:
    assert conditions(qwen) == {
        (streams, temperature) for streams in (1, 2, 4, 8, 16) for temperature in (0.7, 1.0)
    }
    assert qwen.objective.step_time == "measured"
    assert qwen.board() is None


def test_qwen_runs_on_gb10_boards_with_the_whole_context(qwen: StudyConfig) -> None:
    assert qwen.engine.platform == "cuda"
    assert qwen.engine.args["max_model_len"] == 262144
    assert qwen.engine.args["max_num_seqs"] >= max(qwen.load.streams)
    assert (qwen.node.kind, qwen.node.num_gpus) == ("gb10", 1)
    assert qwen.draft is not None
    assert qwen.draft.block_size == 8


def test_plan_of_qwen_says_what_was_not_checked_here(qwen: StudyConfig) -> None:
    notes = prepare(qwen, models_must_exist=False).notes

    assert [note.partition(":")[0] for note in notes] == ["target.path", "draft.path"]
    assert all("not on this machine" in note for note in notes)


def test_plan_of_qwen_refuses_a_depth_that_the_stated_block_does_not_have() -> None:
    config = load_config(
        CONF_DIR / "study" / "qwen38_gb10.yaml", ["search.num_speculative_tokens=[8]"]
    )

    with pytest.raises(ValueError, match=r"^search\.num_speculative_tokens: 8 is beyond"):
        prepare(config, models_must_exist=False)

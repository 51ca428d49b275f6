"""``load.sampling=client_default``: what clients get that state nothing, or the reason why not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.config import CONF_DIR, StudyConfig, load_config
from orchestrator.errors import ConfigError
from orchestrator.prepare import Prepared, prepare

Study = Callable[..., StudyConfig]


@pytest.fixture
def study(target_folder: Path, draft_folder: Path, workload_file: Path) -> Study:
    """Return a maker of studies that state no sampling, on stand-in models."""

    def make(*overrides: str) -> StudyConfig:
        inputs = [
            *(f"target.path={target_folder}", f"draft.path={draft_folder}"),
            *(f"load.workload={workload_file}", "load.temperatures=[1.0]"),
            *("load.sampling=client_default", "engine.args.generation_config=auto"),
        ]
        return load_config(CONF_DIR / "study" / "demo.yaml", [*inputs, *overrides])

    return make


def prepared(config: StudyConfig, folder: Path, **defaults: object) -> Prepared:
    (folder / "generation_config.json").write_text(json.dumps(defaults))
    return prepare(config, models_must_exist=True)


def test_values_of_the_target_are_stated_and_said(study: Study, target_folder: Path) -> None:
    found = prepared(study(), target_folder, temperature=0.6, top_k=20)

    load = found.config.load
    assert (load.temperatures, load.top_k, load.sampling) == ((0.6,), 20, "explicit")
    assert "temperature 0.6, top_p 1.0, top_k 20" in found.notes[0]
    assert found.notes[0].endswith("(from generation_config.json)")


def test_target_without_a_generation_config_is_neutral_and_says_so(
    study: Study, target_folder: Path
) -> None:
    (target_folder / "generation_config.json").unlink(missing_ok=True)

    found = prepare(study(), models_must_exist=True)

    assert found.config.load.temperatures == (1.0,)
    assert "vLLM's neutral values: no generation config states any" in found.notes[0]


def test_no_limit_as_vllm_writes_it_too_is_no_limit(study: Study, target_folder: Path) -> None:
    assert prepared(study(), target_folder, top_k=-1).config.load.top_k == 0


@pytest.mark.parametrize("depths", ["[3]", "[]"])
def test_min_p_is_refused_with_and_without_speculation(
    study: Study, target_folder: Path, depths: str
) -> None:
    with pytest.raises(ConfigError, match=r"min_p: 0\.1 \(from generation_config\.json\)"):
        prepared(study(f"search.num_speculative_tokens={depths}"), target_folder, min_p=0.1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 2.5), ("top_p", 0), ("repetition_penalty", 3), ("top_k", -7)],
)
def test_value_out_of_range_is_blamed_on_the_file_that_has_it(
    study: Study, target_folder: Path, name: str, value: float
) -> None:
    with pytest.raises(ConfigError, match=f"{name} {value}") as caught:
        prepared(study(), target_folder, **{name: value})

    assert caught.value.where == "generation_config.json"


@pytest.mark.parametrize("value", [1e300, float("inf"), float("nan")])
def test_value_that_no_engine_takes_is_refused(
    study: Study, target_folder: Path, value: float
) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        prepared(study(), target_folder, top_k=value)


def test_plan_without_the_target_says_that_nothing_is_resolved(
    study: Study, tmp_path: Path
) -> None:
    config = study(f"target.path={tmp_path}/none")

    notes = prepare(config, models_must_exist=False).notes

    assert len(notes) == 2
    assert "not on this machine; not resolved" in notes[1]
    assert "top_p" not in notes[1]


def test_plan_without_the_target_takes_the_temperature_that_the_weights_name(
    study: Study, tmp_path: Path
) -> None:
    weights = "objective.weights=[{streams: 1, temperature: 0.6, weight: 1}]"
    found = prepare(study(f"target.path={tmp_path}/none", weights), models_must_exist=False)

    assert found.config.load.temperatures == (0.6,)
    assert "at temperature 0.6" in found.notes[1]


def test_plan_without_the_target_knows_what_does_not_depend_on_it(
    study: Study, tmp_path: Path
) -> None:
    config = study(f"target.path={tmp_path}/none", "engine.args.generation_config=vllm")

    assert "temperature 1.0" in prepare(config, models_must_exist=False).notes[1]

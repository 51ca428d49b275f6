"""Case H09: what an engine samples with by default. The e2e tests ask vLLM for the same table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.generation_config import generation_defaults
from orchestrator.config_load import LoadConfig
from orchestrator.core.sampling import NEUTRAL, SamplingDefaults, Shaping, require_speculative
from orchestrator.errors import ConfigError

TABLE = json.loads(
    (Path(__file__).parents[1] / "data" / "generation_defaults.json").read_text(encoding="utf-8")
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(TABLE["generation_config"]))
    return tmp_path


@pytest.mark.parametrize("name", TABLE["cases"])
def test_defaults_are_those_of_vllm(folder: Path, name: str) -> None:
    case = TABLE["cases"][name]

    assert generation_defaults(folder, case["args"]).values() == {**NEUTRAL, **case["differs"]}


def test_defaults_tell_where_each_came_from(folder: Path) -> None:
    args = {"override-generation-config": {"temperature": 0.3, "top_p": None}}
    found = generation_defaults(folder, args)

    assert found.sources["temperature"] == "override_generation_config"
    assert found.sources["top_k"] == "generation_config.json"
    assert found.sources["top_p"] == "vllm"
    assert found.sources["frequency_penalty"] == "vllm"
    assert json.loads(json.dumps(found.to_dict()))["sources"] == found.sources


def test_override_may_be_json_or_stand_key_by_key(folder: Path) -> None:
    stated: list[dict[str, object]] = [
        {"override_generation_config": {"temperature": 0.3, "max_new_tokens": 5}},
        {"override_generation_config": '{"temperature": 0.3, "max_new_tokens": 5}'},
        {
            "override_generation_config.temperature": 0.3,
            "override-generation-config.max_new_tokens": "5",
        },
    ]
    found = [generation_defaults(folder, args) for args in stated]

    assert found[0] == found[1] == found[2]
    assert (found[0].temperature, found[0].max_tokens) == (0.3, 5)


@pytest.mark.parametrize(("build", "penalty"), [("0.30.0", 0.0), ("0.31.0", 1.5), ("1.0.0", 1.5)])
def test_penalties_count_from_the_build_that_reads_them(
    folder: Path, build: str, penalty: float
) -> None:
    assert generation_defaults(folder, {}, engine_build=build).presence_penalty == penalty


def test_folder_without_a_generation_config_is_neutral(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"temperature": 0.4, "top_k": 7}')

    found = generation_defaults(tmp_path, {})

    assert found.values() == NEUTRAL
    assert set(found.sources.values()) == {"vllm"}


def test_generation_config_of_another_folder_is_read(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"temperature": 0.1}')

    assert generation_defaults(folder, {"generation_config": str(other)}).temperature == 0.1


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        ("{", {}, "is no JSON"),
        pytest.param("[" * 100_000, {}, "is no JSON", id="deep"),
        ("[1]", {}, "is no mapping"),
        ('{"temperature": "hot"}', {}, "'hot', which is no number"),
        ('{"temperature": true}', {}, "True, which is no number"),
        ('{"top_k": 1.5}', {}, "not whole"),
        ("{}", {"generation_config": "/none"}, "no folder here"),
        ("{}", {"override_generation_config": "{"}, "override_generation_config: is no JSON"),
    ],
)
def test_unreadable_default_is_refused(
    tmp_path: Path, text: str, args: dict[str, Any], says: str
) -> None:
    (tmp_path / "generation_config.json").write_text(text)

    with pytest.raises(ConfigError, match=says):
        generation_defaults(tmp_path, args)


def test_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(b"\xff")

    with pytest.raises(ConfigError, match="cannot be read"):
        generation_defaults(tmp_path, {})


def test_min_p_is_refused_where_drafts_are_verified(folder: Path) -> None:
    """Case A19."""
    with pytest.raises(ConfigError, match=r"min_p: 0\.05 \(from generation_config\.json\)"):
        require_speculative(generation_defaults(folder, {}))
    require_speculative(generation_defaults(folder, {"generation_config": "vllm"}))


def test_load_that_states_nothing_is_shaped_as_an_engine_does_without_a_generation_config() -> None:
    of_engine = SamplingDefaults(**NEUTRAL, sources={})  # type: ignore[arg-type]  # of all types

    assert Shaping() == Shaping.of(of_engine) == Shaping.of(LoadConfig(workload="code"))

"""Code that comes with a model is off, and said where a study turns it on."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.config import CONF_DIR, load_config
from orchestrator.core.remote_code import remote_code, remote_code_note
from orchestrator.errors import ConfigError
from orchestrator.ports import ProductionState, Version
from orchestrator.prepare import prepare, world
from orchestrator.promotion_report import format_status

DEMO = CONF_DIR / "study" / "demo.yaml"
ON = "engine.args.trust_remote_code=true"


@pytest.mark.parametrize(
    "args",
    [
        {"trust_remote_code": True},
        {"trust-remote-code": True},
        {"trust_remote_code": "true"},
        {"hf_overrides": {"auto_map": {"AutoModel": "m.M"}}},
        {"hf-overrides": {"text_config": {"auto_map": {}}}},
        {"hf_overrides": '{"auto_map": {"AutoModel": "m.M"}}'},
    ],
)
def test_remote_code_is_seen_in_the_arguments(args: dict[str, Any]) -> None:
    assert remote_code(args) == "on"
    assert remote_code_note("on")


@pytest.mark.parametrize(
    "args",
    [{}, {"trust_remote_code": False}, {"trust_remote_code": None}, {"hf_overrides": {"a": 1}}],
)
def test_remote_code_is_off_unless_it_is_asked_for(args: dict[str, Any]) -> None:
    assert remote_code(args) == "off"
    assert remote_code_note("off") is None


@pytest.mark.parametrize("name", ["trust", "trust_remote", "trust-remote-cod"])
def test_beginning_of_the_argument_is_refused(name: str) -> None:
    """vLLM's parser would take it, and nobody would be told."""
    with pytest.raises(ConfigError, match="write it out"):
        load_config(DEMO, [f"engine.args.{name}=true"])


@pytest.mark.parametrize(("override", "value"), [([], "off"), ([ON], "on")])
def test_remote_code_is_a_premise_and_is_told_by_the_plan(override: list[str], value: str) -> None:
    prepared = prepare(load_config(DEMO, override), models_must_exist=False)

    assert world(prepared, "0.32.0").values["remote_code"] == value
    told = [note for note in prepared.notes if "trust_remote_code is on" in note]
    assert len(told) == (value == "on")


@pytest.mark.parametrize("args", [{}, {"trust_remote_code": True}])
def test_status_tells_that_a_version_trusts_its_models_code(args: dict[str, Any]) -> None:
    version = Version(model_name="m", version=1, config={"args": args}, tags={}, run_id=None)
    nothing = ProductionState(weights={}, engines={}, router_status=None, messages={})

    lines = format_status({"champion": version}, nothing, "")

    assert any("trust_remote_code is on" in line for line in lines) is bool(args)

"""What Serve tells of the production applications, as a promotion reads it."""

from __future__ import annotations

import pytest

from orchestrator.adapters.serve_production import production_state
from orchestrator.errors import PromotionError
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.world import FakeClock
from orchestrator.ports import ProductionState, Version
from orchestrator.production_stage import PromotionSettings, Stage
from serve_apps.engine.errors import BootFailure, EngineBootError

ERROR = EngineBootError(
    BootFailure.OUT_OF_MEMORY, "the engine exited", "CUDA out of memory", "log\n" * 900
)
TOLD = f"The deployment failed to start 3 times in a row.\nTraceback:\n  line 1\n{ERROR}"


def state(message: str) -> ProductionState:
    apps = {
        "specpilot": {"status": "RUNNING"},
        "specpilot-v2": {
            "status": "DEPLOY_FAILED",
            "message": "",
            "deployments": {"Engine": {"message": message}},
        },
        "somebody-else": {"status": "UNHEALTHY"},
    }
    return production_state({"applications": apps}, "specpilot")


def test_reason_of_an_engine_that_does_not_start_stands_first() -> None:
    found = state(TOLD)

    assert found.engines == {"specpilot-v2": "DEPLOY_FAILED"}
    assert found.messages["specpilot-v2"].startswith("the engine exited: CUDA out of memory\n")
    assert found.messages["specpilot-v2"].endswith(TOLD)


def test_message_without_an_engine_s_error_is_told_as_it_is() -> None:
    assert state("no board is free").messages == {"specpilot-v2": "no board is free"}


def test_promotion_tells_the_reason_first_and_the_end_of_the_log() -> None:
    class Failing(FakeProduction):
        def state(self) -> ProductionState:
            return state(TOLD)

    settings = PromotionSettings(
        name="specpilot", deadline_s=1.0, verify_requests=1, verify_prompts=("a",),
        verify_max_tokens=1,
    )  # fmt: skip
    stage = Stage(Failing(), FakeClock(), settings, lambda _text: None)
    version = Version(model_name="m", version=2, config={}, tags={}, run_id=None)

    with pytest.raises(PromotionError) as caught:
        stage.wait_up(version)

    first, *_, last = str(caught.value).splitlines()
    assert first == "specpilot-v2 did not start: the engine exited: CUDA out of memory"
    assert last == "log"
    assert len(str(caught.value)) < 1600

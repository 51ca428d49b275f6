from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest

from orchestrator.core.failures import FailedBoot, Failure, FailureKind, InfeasibleBoot
from orchestrator.errors import (
    ConfigError,
    EngineRestarted,
    InfeasibleArm,
    MeasurementError,
    OrchestratorError,
    PromotionError,
    StudyStopped,
    TransientError,
)
from orchestrator.load.scoring import Refused
from serve_apps.engine.errors import (
    BootFailure,
    EngineBootError,
    EngineError,
    EngineLeftoverError,
    EngineNotRunning,
)

SAMPLES: list[Exception] = [
    OrchestratorError("text"),
    ConfigError("load.streams", "is empty", "give one"),
    InfeasibleArm("out of memory"),
    InfeasibleBoot(Failure(FailureKind.KV_CACHE, "it ended", "no room")),
    TransientError("no answer"),
    FailedBoot(Failure(FailureKind.BOOT_STALLED, "its log has not grown")),
    MeasurementError("too short"),
    Refused("status 400"),
    EngineRestarted("counters fell"),
    PromotionError("did not start"),
    StudyStopped("after 3 boots"),
    EngineError("text"),
    EngineBootError(BootFailure.OUT_OF_MEMORY, "did not start", "CUDA out of memory", "tail"),
    EngineNotRunning("b1", "exited with status 1"),
    EngineLeftoverError("b1", ("process 7", "port 8000")),
]


def family(root: type[Exception]) -> Iterator[type[Exception]]:
    yield root
    for child in root.__subclasses__():
        yield from family(child)


def test_every_error_has_a_sample() -> None:
    ours = {
        kind
        for root in (OrchestratorError, EngineError)
        for kind in family(root)
        if kind.__module__.startswith(("orchestrator.", "serve_apps."))
    }

    assert ours == {type(sample) for sample in SAMPLES}


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_error_crosses_processes_whole(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert copy.args == error.args
    assert vars(copy) == vars(error)


def test_config_error_says_where_what_and_what_to_change() -> None:
    error = ConfigError("load.streams", "is empty", "give one")

    assert str(error) == "load.streams: is empty; give one"
    assert isinstance(error, ValueError)

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator.errors import ConfigError, TransientError
from orchestrator.fakes.production import FakeProduction

SPEC = {"depth": 7}


def test_declared_engine_is_deploying_first_and_then_runs() -> None:
    production = FakeProduction(polls_to_start=2)
    production.declare({"v1": SPEC}, {"v1": 1.0})

    statuses = [production.state().engines["v1"] for _ in range(3)]

    assert statuses == ["DEPLOYING", "RUNNING", "RUNNING"]
    assert production.state().messages == {}


def test_nothing_declared_serves_nothing() -> None:
    production = FakeProduction()

    state = production.state()
    assert (state.weights, state.engines, state.router_status) == ({}, {}, None)
    with pytest.raises(TransientError):
        production.complete("x", 1, None)


def test_lost_production_serves_nothing_until_it_is_declared_again() -> None:
    production = FakeProduction(polls_to_start=1)
    production.declare({"v1": SPEC}, {"v1": 1.0})
    production.state()
    production.complete("x", 1, None)
    production.lose()

    state = production.state()
    assert (state.weights, state.engines, state.router_status) == ({}, {}, None)
    assert production.served() == {}
    with pytest.raises(TransientError):
        production.complete("x", 1, None)
    production.declare({"v1": SPEC}, {"v1": 1.0})
    assert production.state().engines == {"v1": "RUNNING"}
    assert production.boot_id("v1") == "v1-boot-2"


def test_unchanged_engine_keeps_running_beside_a_new_one() -> None:
    production = FakeProduction(polls_to_start=2)
    production.declare({"v1": SPEC}, {"v1": 1.0})
    production.state()
    production.state()
    production.declare({"v1": SPEC, "v2": {"depth": 5}}, {"v1": 1.0})

    assert production.state().engines == {"v1": "RUNNING", "v2": "DEPLOYING"}


def test_failing_and_broken_engines_answer_nothing() -> None:
    production = FakeProduction(
        fails=lambda spec: spec["depth"] == 8, is_broken=lambda spec: spec["depth"] == 9
    )
    for depth, status in ((8, "DEPLOY_FAILED"), (9, "RUNNING")):
        production.declare({"v1": {"depth": depth}}, {"v1": 1.0})
        assert production.state().engines["v1"] == status
        with pytest.raises(TransientError):
            production.complete("x", 1, "v1")


def test_engine_beyond_the_capacity_stays_deploying() -> None:
    production = FakeProduction(capacity=1)
    production.declare({"v1": SPEC, "v2": SPEC}, {"v1": 1.0})

    assert [production.state().engines["v2"] for _ in range(5)] == ["DEPLOYING"] * 5


def test_traffic_follows_the_weights_and_the_pin() -> None:
    production = FakeProduction()
    production.declare({"v1": SPEC, "v2": {"depth": 5}}, {"v1": 0.9, "v2": 0.1})
    production.state()

    served = Counter(production.ask_as_client()["system_fingerprint"] for _ in range(100))
    assert served == {"v1": 90, "v2": 10}
    assert production.complete("x", 1, "v2")["system_fingerprint"] == "v2"
    production.complete("x", 1, None)
    assert sum(each.answered for each in production.served().values()) == 100, "of clients"


@pytest.mark.parametrize("weights", [{"v2": 1.0}, {"v1": 0.0}, {"v1": -1.0}])
def test_weights_that_make_no_sense_are_refused(weights: dict[str, float]) -> None:
    production = FakeProduction()

    with pytest.raises(ConfigError):
        production.declare({"v1": SPEC}, weights)
    assert production.declarations == []

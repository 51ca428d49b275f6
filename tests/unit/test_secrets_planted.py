"""Secrets that were planted wherever a study could meet one, and looked for in all that it writes.

The study is conducted by the driver's own code on a real MLflow store; its boots run on a board in
memory, whose engine says every secret that it could know.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from core_samples import make_arm
from promotion_scene import MODEL, Scene

from orchestrator import cli
from orchestrator.adapters.engine_evidence import failed_boot
from orchestrator.adapters.mlflow_registry import MlflowRegistry
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.serve_engine import facts_from_plain
from orchestrator.adapters.study_file import StudyFile
from orchestrator.cluster import Cluster
from orchestrator.conduct import open_study
from orchestrator.config import CONF_DIR, load_config
from orchestrator.core.codec import to_plain
from orchestrator.core.failures import boot_error
from orchestrator.core.requests import LoadResult, RequestFault
from orchestrator.core.types import Arm, Boot, EngineFacts
from orchestrator.errors import ConfigError, PromotionError, TransientError
from orchestrator.events import Printer
from orchestrator.fakes.board import FakeBoard
from orchestrator.fakes.engine import FakeEngine
from orchestrator.fakes.load import FakeLoad
from orchestrator.fakes.production import FakeProduction
from orchestrator.fakes.world import FakeClock, FakeNode
from orchestrator.ports import LoadRequest, Observe, Version
from orchestrator.prepare import prepare
from orchestrator.study import RaceResult
from orchestrator.trial import Trial, TrialPorts, TrialSpec
from orchestrator.trial_log import TrialLog
from serve_apps.engine.errors import BootFailure, EngineBootError
from serve_apps.engine.oomkills import OomKills

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),  # MLflow's tables alone take half a minute on two busy cores
    # MLflow 3.17 on SQLAlchemy 2.1.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]

DEMO = CONF_DIR / "study" / "demo.yaml"
SECRETS = {
    "HF_TOKEN": "hf_PlantedHubToken0123456789",
    "MLFLOW_TRACKING_PASSWORD": "PlantedTrackingPassword01",
    "MLFLOW_TRACKING_TOKEN": "PlantedTrackingToken02",
    "RAY_AUTH_TOKEN": "PlantedRayToken03",
    "OPENAI_API_KEY": "sk-PlantedOpenAiKey04",
    "AWS_SECRET_ACCESS_KEY": "PlantedAwsSecret05",
    "HTTPS_PROXY": "http://somebody:PlantedProxyPassword06@proxy.example:3128",
    "DATABASE_URL": "postgresql+psycopg2://mlflow:PlantedDatabase07@db.example/mlflow",
}
"""Of the environment that the driver and its engines run in."""
CLIENT_KEY = "PlantedClientKey08"
"""In the file of the router's keys."""
PARTS = (
    *(value for name, value in SECRETS.items() if "://" not in value),
    *("PlantedProxyPassword06", "PlantedDatabase07", CLIENT_KEY),
)

SPILLED = "\n".join(
    [
        *(f"INFO environment {name}={value}" for name, value in SECRETS.items()),
        f"INFO non-default args: {{'model': 'm', 'api_key': ['{CLIENT_KEY}'], 'port': 1}}",
        f"usage: vllm serve --api-key {CLIENT_KEY} --hf-token={SECRETS['HF_TOKEN']} --port 1",
        f"WARNING Authorization: Bearer {CLIENT_KEY}",
        f"ERROR cannot fetch {SECRETS['DATABASE_URL']}?sslkey={CLIENT_KEY}",
    ]
)
"""What an engine that is careless says in its log."""


class SpillingEngine(FakeEngine):
    """Says all that it knows, as vLLM does: of its facts the adapter takes what may be known."""

    def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
        facts = super().start(arm, on_progress)
        on_progress(f"booting: {SPILLED.splitlines()[0]}")
        return self._spilled(facts)

    def facts(self) -> EngineFacts:
        return self._spilled(super().facts())

    def log_tail(self) -> str:
        return SPILLED

    def _spilled(self, facts: EngineFacts) -> EngineFacts:
        told = to_plain(facts)
        assert isinstance(told, dict)
        model = {"hf_token": SECRETS["HF_TOKEN"], "trust_remote_code": False}
        config = {**(facts.resolved_config or {}), "model_config": model, "api_key": CLIENT_KEY}
        build = {**(facts.build or {}), "environment": dict(SECRETS)}
        plain = {**told, "weights_gib": None, "resolved_config": config, "build": build}
        return replace(facts_from_plain(plain), weights_bytes=facts.weights_bytes)


class SpillingLoad(FakeLoad):
    """One request of each block fails, and the server repeats the key that it was sent."""

    def run(self, request: LoadRequest, observe: Observe) -> LoadResult:
        result = super().run(request, observe)
        first, *rest = result.records
        told = f"HTTP 401: no such key, Authorization: Bearer {CLIENT_KEY}"
        failed = replace(first, fault=RequestFault.HTTP, error=told, e2e_s=None, ttft_s=None)
        return replace(result, records=(failed, *rest))


class RefusingEngine(SpillingEngine):
    """Its boot fails, and the reason is the log."""

    def start(self, arm: Arm, on_progress: Callable[[str], None]) -> EngineFacts:
        del arm, on_progress
        error = EngineBootError(BootFailure.BAD_ARGUMENTS, "exited", SPILLED, SPILLED)
        raise boot_error(failed_boot(f"Serve says\n{error}", OomKills()))


class SpillingProduction(FakeProduction):
    """Its challenger does not come up, and Serve's message is the log."""

    def complete(self, prompt: str, max_tokens: int, app: str | None) -> Mapping[str, object]:
        del prompt, max_tokens, app
        raise TransientError(f"production answers 500: {SPILLED}")


@dataclass
class Written:
    """All that a study writes."""

    folder: Path
    said: io.StringIO

    def leaks(self) -> list[str]:
        """Return every place in which a planted secret stands, with how it begins."""
        found = []
        for path in sorted(self.folder.rglob("*")):
            if path.is_file():
                data = path.read_bytes()
                found += [f"{path}: {part}" for part in PARTS if part.encode() in data]
        lines = self.said.getvalue().splitlines()
        return found + [f"said: {line}" for line in lines if any(part in line for part in PARTS)]


@pytest.fixture
def planted(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Written]:
    """Return what is written by a study of which every surrounding is full of secrets."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    job = {"runtime_env": {"env_vars": dict(SECRETS)}, "metadata": {"owner": "somebody"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{CLIENT_KEY}\n")
    monkeypatch.setenv("PLANTED_KEYS", str(keys))
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    logging.getLogger().addHandler(handler)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield Written(tmp_path, said)
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def settings(target_folder: Path, draft_folder: Path, workload_file: Path) -> list[str]:
    return [
        *(f"target.path={target_folder}", f"draft.path={draft_folder}"),
        *(f"load.workload={workload_file}", "production.http_host=10.0.0.10"),
    ]


def run_trial(
    kind: type[FakeEngine], spec: TrialSpec, log: TrialLog, say: Callable[[str], None]
) -> Boot:
    board = FakeBoard()
    load = SpillingLoad(board, block_s=8.0, max_tokens=64)
    ports = TrialPorts(engine=kind(board), load=load, log=log, node=FakeNode(), clock=FakeClock())
    trial = Trial(spec, ports, say)
    try:
        trial.setup()
        while not trial.ended:
            trial.step()
        return trial.finish()
    finally:
        trial.cleanup()


@pytest.mark.timeout(180)  # MLflow's tables alone take half a minute on two busy cores.
def test_study_writes_no_secret(
    planted: Written, settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = f"production.api_keys=file:{os.environ['PLANTED_KEYS']}"
    config = load_config(DEMO, [*settings, keys, "policy.promote=never"])
    prepared = prepare(config, models_must_exist=True)
    uri = f"sqlite:///{tmp_path}/ml.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker, registry = MlflowTracker(uri, experiment="planted"), MlflowRegistry(uri)
    printer = Printer(sink=planted.said, clock=FakeClock(), started_s=0.0)
    tools: Any = SimpleNamespace(printer=printer, registry=registry, serves=lambda _version: True)
    cluster = Cluster(dashboard_url="http://127.0.0.1:1", num_trial_nodes=1)
    with StudyFile("planted-1", printer.say) as file:
        conduct = open_study(prepared, cluster, tracker, tools, file, None)
        arms = prepared.arms[:3]
        boots, log = [], TrialLog()
        for number, arm in enumerate([*arms, *arms, *arms]):
            spec = TrialSpec(
                trial_id=f"{number:08x}",
                arm=arm,
                replicate=number // len(arms),
                cells=config.cells(),
                blocks_per_cell=1,
                model="m",
                seed=1,
            )
            kind = RefusingEngine if number == len(arms) else SpillingEngine
            boots.append(run_trial(kind, spec, log, printer.say))
        race = {"boots": [to_plain(boot) for boot in boots], "proofs": {}}
        conduct.journal.keep(race, log.take())
        assert conduct.journal.flush(120.0)
        boots = [conduct.journal.with_run(boot) for boot in boots]
        conduct.conclude(RaceResult(boots=tuple(boots), choices={}))
        verdict: Any = SimpleNamespace(winner=arms[1], sentences=[SPILLED], gates=())
        conduct._register(boots, verdict)

    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"(secret)" in written, "nothing of it was met"
    assert b"somebody" in written, "the job is tagged"
    assert planted.leaks() == []


def test_promotion_writes_no_secret(planted: Written, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/ml.db"
    tracker = MlflowTracker(uri, experiment="planted")
    run = tracker.open_study("s", "s", {})
    registry: Any = MlflowRegistry(uri)
    scene = Scene(production=SpillingProduction(), registry=registry, said=[])
    version = registry.create_version(MODEL, run, {"depth": 3}, {"specpilot.claim": SPILLED})
    with pytest.raises(PromotionError) as failure:
        scene.promote(version)
    printer = Printer(sink=planted.said, clock=FakeClock(), started_s=0.0)
    for line in [*scene.said, f"not promoted: {failure.value}"]:
        printer.say(line)

    found: Version = registry.by_number(MODEL, version.version)
    assert "production answers 500" in found.tags["specpilot.promotion_reason"]
    assert planted.leaks() == []


@pytest.mark.parametrize("command", ["plan", "study", "promote", "status", "premises"])
def test_command_that_is_refused_says_no_secret(
    command: str, planted: Written, settings: list[str]
) -> None:
    """With the keys' file, and a key in its place."""
    address = f"tracking.uri={SECRETS['DATABASE_URL']}"
    for wrong in (
        [f"production.api_keys={CLIENT_KEY}"],
        [f"production.api_key={CLIENT_KEY}"],
        [f"engine.args.api_key={CLIENT_KEY}"],
        [f"engine.env.HF_TOKEN={SECRETS['HF_TOKEN']}"],
        [f"load.streams=[Bearer {CLIENT_KEY}"],
        [f"load.streams=api_key={CLIENT_KEY}"],
        [address],
        [f"{address}]: ["],
    ):
        assert cli.main([command, str(DEMO), *settings, "production.api_keys=env:K", *wrong]) == 2
    assert planted.leaks() == []


@pytest.mark.parametrize(
    "uri",
    [
        SECRETS["DATABASE_URL"],
        "https://somebody:PlantedDatabase07@mlflow.example",
        "https://PlantedDatabase07@mlflow.example",
    ],
)
def test_tracking_address_with_a_secret_is_for_the_environment(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"^tracking\.uri: .*MLFLOW_TRACKING_") as error:
        load_config(DEMO, [f"tracking.uri={uri}"])
    assert "Planted" not in str(error.value)
    load_config(DEMO, ["tracking.uri=postgresql://mlflow@db.example/mlflow?sslmode=require"])


def test_arm_has_no_place_for_a_secret() -> None:
    """Its key and label name files, tags and applications."""
    arm = make_arm()
    assert {type(getattr(arm, name)) for name in arm.__dataclass_fields__} <= {str, int, type(None)}

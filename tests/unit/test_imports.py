"""Imports point one way; outside libraries stay where they belong."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "version": set(),
    "exit_status": set(),
    "interrupts": set(),
    "core": {"errors"},
    "config_faults": {"errors"},
    "config_places": {"core", "errors", "serve_apps"},
    "config_load": {"config_places", "core"},
    "config_proof": {"config_places", "core"},
    "config_engine": {"config_places", "core", "serve_apps"},
    "config_types": {
        *("config_engine", "config_load", "config_places", "config_proof", "core", "errors"),
    },
    "config": {
        *("config_engine", "config_faults", "config_load", "config_places", "config_proof"),
        *("config_types", "core", "errors"),
    },
    "ports": {"core"},
    "load": {"core", "errors", "ports"},
    "watch_ports": {"ports"},
    "fakes": {"core", "errors", "ports", "serve_apps", "watch_ports"},
    "adapters": {"core", "errors", "ports", "serve_apps", "watch_ports"},
    "canaries": {"core", "errors", "load"},
    "named_server": {"adapters", "errors", "load"},
    "canary_command": {"canaries", "core", "errors", "exit_status", "named_server"},
    "events": {"core", "ports"},
    "forecast": {"core", "fakes"},
    "report": {"core"},
    "build_report": {"core", "report"},
    "measurement": {"core", "errors", "load", "ports"},
    "block_report": {"core", "measurement"},
    "measure_arguments": {"load"},
    "measure_command": {
        *("adapters", "block_report", "config", "core", "errors", "load", "measurement", "ports"),
        *("measure_arguments", "named_server"),
    },
    "lossless_answers": {"core", "errors", "load"},
    "lossless_floor": {"core", "load"},
    "lossless": {"core", "load", "lossless_answers", "lossless_floor"},
    "lossless_greedy": {"core", "errors", "load", "lossless_answers"},
    "lossless_report": {"core", "load", "lossless", "lossless_answers", "lossless_greedy"},
    "lossless_command": {
        *("config", "core", "errors", "exit_status", "load", "named_server"),
        *("lossless", "lossless_answers", "lossless_greedy", "lossless_report"),
    },
    "prove": {
        *("adapters", "canaries", "core", "errors", "load", "lossless", "lossless_answers"),
        *("lossless_greedy", "ports", "serve_apps"),
    },
    "audit_build_wheel": {"errors"},
    "audit_build_text": {"core"},
    "audit_build": {"audit_build_text", "audit_build_wheel", "core", "errors", "serve_apps"},
    "audit_build_command": {"audit_build", "audit_build_text", "core", "errors", "exit_status"},
    "results": {"core", "errors"},
    "decide_report": {"core", "report", "results"},
    "decide_command": {"core", "decide_report", "errors", "exit_status", "results"},
    "traffic_log": {"core", "errors"},
    "traffic": {"core", "errors", "traffic_log"},
    "traffic_command": {"core", "errors", "traffic", "traffic_log"},
    "node_command": {"adapters", "core", "ports"},
    "workload_command": {"adapters", "errors", "load"},
    "memory_guard": {"core", "ports"},
    "trial_text": {"core"},
    "trial_endings": {"core", "errors", "ports"},
    "trial": {
        *("core", "errors", "measurement", "memory_guard", "node_wait", "ports"),
        *("trial_endings", "trial_log", "trial_text"),
    },
    "node_wait": {"core", "errors", "ports"},
    "proof_boots": {"core"},
    "trial_log": {"core"},
    "stopping": {"errors", "ports"},
    "study_progress": {"core", "events", "stopping", "trial_text"},
    "study_trial": {"core", "trial", "trial_log"},
    "race_searcher": {"core", "proof_boots", "study_progress", "trial_text"},
    "study": {
        *("core", "errors", "events", "race_searcher", "stopping", "study_progress"),
        *("study_trial",),
    },
    "journal": {"adapters", "core", "errors", "events", "ports", "trial"},
    "production_stage": {"core", "errors", "events", "load", "ports"},
    "version_tags": {"core", "errors", "ports"},
    "promotion_record": {"core", "errors", "ports", "version_tags"},
    "promotion_course": {"core", "errors", "ports", "production_stage", "promotion_record"},
    "promotion_steps": {
        *("core", "errors", "events", "ports", "production_stage", "promotion_record"),
    },
    "promotion_report": {"core", "ports", "promotion_course", "promotion_record"},
    "promote": {
        *("core", "errors", "events", "ports"),
        *("production_stage", "promotion_course", "promotion_record", "promotion_steps"),
    },
    "prepare_prompts": {"adapters", "canaries", "config", "core", "errors", "load"},
    "prepare": {"adapters", "config", "core", "errors", "load", "prepare_prompts", "version"},
    "cluster": {"adapters", "config", "core", "errors", "serve_apps"},
    "clean": {"adapters", "cluster", "core", "errors"},
    "clean_command": {"clean", "core", "errors"},
    "compose": {
        *("adapters", "canaries", "config", "core", "errors", "load", "lossless_answers"),
        *("prepare", "prepare_prompts", "prove", "serve_apps", "study_trial", "trial", "trial_log"),
        "version",
    },
    "delivery": {
        *("adapters", "cluster", "compose", "config", "core", "errors", "events", "incumbent"),
        *("measurement", "ports", "premises_check", "prepare", "production_stage", "promote"),
        *("promotion_course", "promotion_record", "promotion_report", "promotion_steps"),
        *("serve_apps", "version_tags"),
    },
    "premises_check": {"config", "core", "errors", "incumbent", "ports", "prepare"},
    "premises_report": {"core", "premises_check", "promotion_report"},
    "incumbent": {"config", "core", "errors", "ports", "promotion_record", "version_tags"},
    "resume": {
        *("adapters", "core", "errors", "incumbent", "journal", "ports", "prepare"),
        *("race_searcher",),
    },
    "conduct": {
        *("adapters", "build_report", "cluster", "compose", "config", "core", "delivery"),
        *("errors", "events", "incumbent", "journal", "ports", "prepare", "promotion_record"),
        *("race_searcher", "report", "resume", "stopping", "study"),
    },
    "watch_evidence": {"core", "traffic", "traffic_log", "watch_ports"},
    "watch_monitor": {"core", "watch_evidence"},
    "watch_intervals": {"core", "errors", "events", "watch_ports"},
    "watch": {
        *("core", "errors", "events", "incumbent", "ports", "production_stage"),
        *("promotion_record", "version_tags", "watch_evidence", "watch_intervals"),
        *("watch_monitor", "watch_ports"),
    },
    "watch_loop": {"events", "exit_status", "traffic", "watch"},
    "watch_service": {
        *("adapters", "cluster", "compose", "config", "errors", "events", "ports", "prepare"),
        *("premises_check", "traffic", "watch", "watch_evidence", "watch_loop", "watch_ports"),
    },
    "commands": {
        *("adapters", "cluster", "compose", "conduct", "config", "core", "delivery", "errors"),
        *("events", "exit_status", "forecast", "incumbent", "journal", "ports"),
        "premises_check",
        *("premises_report", "prepare", "promotion_record", "promotion_report", "report"),
        *("resume", "stopping"),
    },
    "cli": {
        *("adapters", "audit_build_command", "canary_command", "clean_command", "commands"),
        *("config", "core", "errors", "exit_status", "interrupts", "stopping", "version"),
        *("decide_command", "lossless_command", "measure_command", "node_command"),
        *("traffic_command", "version_tags", "watch_service", "workload_command"),
    },
    "__main__": {"cli", "exit_status", "interrupts"},
    "serve_apps": set(),
}
"""What each unit, a module or package of orchestrator or serve_apps, may import beside itself."""

HOMES = {
    "ray": {
        *("race_searcher", "study", "study_progress", "study_trial", "cluster", "serve_apps"),
        *("adapters.node_tasks", "adapters.serve_engine", "adapters.serve_production"),
        "adapters.serve_reaper",
    },
    "mlflow": {
        *("adapters.mlflow_client", "adapters.mlflow_registry", "adapters.mlflow_tracker"),
    },
    "sqlalchemy": {"adapters.mlflow_client"},
    "aiohttp": {"load.client", "load.scoring", "fakes.openai.server", "serve_apps"},
    "omegaconf": {"config"},
    "pynvml": {"adapters.nvml"},
    "tokenizers": {"adapters.tokenizer"},
    "vllm": {"serve_apps"},
    "torch": {"serve_apps"},
    "triton": {"serve_apps"},
    "lm_eval": {"canaries.harness"},
    "yaml": {"canaries.harness"},
    "uvicorn": {"serve_apps"},
}
"""By library: the modules below orchestrator, or serve_apps, that may import it."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("orchestrator", "serve_apps"):
        for path in sorted((PROJECT / package).rglob("*.py")):
            parts = path.relative_to(PROJECT).with_suffix("").parts
            yield ".".join(part for part in parts if part != "__init__"), path


@cache
def graph() -> dict[str, frozenset[str]]:
    """Return what every module imports, in whatever place; ours by module, others by name."""
    known = {name for name, _ in modules()}
    return {name: frozenset(imports(path, known)) for name, path in modules()}


def imports(path: Path, known: set[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                yield below if below in known else node.module


def unit(module: str) -> str:
    parts = module.split(".")
    return parts[1] if parts[0] == "orchestrator" and len(parts) > 1 else parts[0]


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in ("orchestrator", "serve_apps")


def test_walk_finds_what_it_judges() -> None:
    assert "orchestrator.core.types" in graph()["orchestrator.trial"]
    assert "orchestrator.compose" in graph()["orchestrator.commands"]
    assert "ray" in graph()["orchestrator.study"]
    assert "orchestrator.commands" in graph()["orchestrator.cli"], "inside a function"


@pytest.mark.parametrize("name", sorted(graph()))
def test_module_imports_only_what_lies_below_it(name: str) -> None:
    own = unit(name)
    if name == "orchestrator":
        own = "version"
    assert own in ALLOWED, f"give {own} its place in ALLOWED"

    targets = {unit(target) for target in graph()[name] if is_ours(target)}

    assert targets <= ALLOWED[own] | {own}


@pytest.mark.parametrize("library", HOMES)
def test_library_is_imported_in_its_home_only(library: str) -> None:
    users = {
        name
        for name, targets in graph().items()
        if any(target.partition(".")[0] == library for target in targets)
    }
    homes = HOMES[library]

    assert {
        name
        for name in users
        if name.removeprefix("orchestrator.") not in homes and unit(name) not in homes
    } == set()


def test_core_knows_libraries_that_only_compute() -> None:
    foreign = {
        target.partition(".")[0]
        for name, targets in graph().items()
        if unit(name) == "core"
        for target in targets
        if not is_ours(target) and target.partition(".")[0] not in sys.stdlib_module_names
    }

    assert foreign <= {"numpy", "scipy"}


def test_imports_make_no_circle() -> None:
    ours = {
        name: {target for target in targets if is_ours(target)} for name, targets in graph().items()
    }
    try:
        TopologicalSorter(ours).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))

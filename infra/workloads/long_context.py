"""Build conf/workload/long_context.jsonl: questions about specpilot's own documents and source.

The files are read as they were at one commit, so the workload comes out the same whenever it is
built:

    python -m infra.workloads.long_context
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
OUT = PROJECT / "conf" / "workload" / "long_context.jsonl"

COMMIT = "a7a352a27b4fc462133b25c34d72f389bc7f06ab"
"""The state that is asked about. Another one changes the digest, hence a premise of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt: some files, then what to do with them."""

    category: str
    paths: tuple[str, ...]
    """Files, or folders for all Python files directly below them."""
    question: str


TASKS = (
    Task(
        category="question",
        paths=("docs/design.md", "docs/metrics.md"),
        question="According to these documents, what happens to production, to the registry's "
        "aliases and to a free board if the process that promotes a version is killed between the "
        "steps `shifted` and `aliased`? Quote the sentences that you rely on, and name what the "
        "documents leave open.",
    ),
    Task(
        category="summarise",
        paths=("README.md", "docs/operations.md"),
        question="Write a one-page guide for a colleague who is on call for this system and has "
        "never seen it: what runs where, how to see that it is healthy, the five most likely "
        "problems and the first command for each. Use only what the files say.",
    ),
    Task(
        category="review",
        paths=(
            *("orchestrator/core/estimate.py", "orchestrator/core/evidence.py"),
            "orchestrator/core/verdict.py",
        ),
        question="Review these modules as a statistician. How is the variance between boots "
        "pooled, which assumption does that make, and in which situation would the interval be too "
        "narrow? Propose one change, with code.",
    ),
    Task(
        category="explain",
        paths=(
            *("orchestrator/ports.py", "orchestrator/trial.py", "orchestrator/load/streams.py"),
            *("orchestrator/load/client.py", "orchestrator/core/checks.py"),
        ),
        question="Follow one request from the moment when a stream chooses its prompt until its "
        "tokens enter a block. Name each function that it passes, in order, and each place where "
        "it can fail, with what happens then.",
    ),
    Task(
        category="extend",
        paths=(
            *("orchestrator/config_types.py", "orchestrator/config_places.py"),
            *("orchestrator/config.py", "orchestrator/config_faults.py"),
            "orchestrator/prepare.py",
        ),
        question="Add a setting `load.request_rate`, requests a second, that may be absent and "
        "must be above 0 and at most 1,000. Show the changed passages of every file, the text of "
        "the errors, and a test for each of them.",
    ),
    Task(
        category="explain",
        paths=("serve_apps/engine",),
        question="Explain how this package makes certain that no engine process outlives its "
        "replica, even when the replica is killed. Which process watches which, through what, and "
        "who ends whom? Draw it as a diagram in text.",
    ),
    Task(
        category="debug",
        paths=(
            *("orchestrator/adapters/mlflow_tracker.py", "orchestrator/adapters/mlflow_names.py"),
            *("orchestrator/adapters/trial_metrics.py", "orchestrator/adapters/tracking_uri.py"),
        ),
        question="An operator reports that after MLflow was away for ten minutes one trial's run "
        "has all its metrics but its status is still RUNNING. Read the code, list the paths that "
        "could lead to this, most likely first, and say how to tell them apart.",
    ),
    Task(
        category="test",
        paths=("orchestrator/fakes", "orchestrator/study.py"),
        question="Write a pytest test in which a node vanishes in the middle of the second of "
        "three boots. Use only these fakes and real classes, no mocks. Say what each assertion "
        "protects.",
    ),
    Task(
        category="refactor",
        paths=("serve_apps/cpu/lockstep",),
        question="Which two modules of this package know too much of each other? Propose a "
        "smaller interface between them, show the changed signatures, and list the callers that "
        "have to change.",
    ),
    Task(
        category="extend",
        paths=(
            *("orchestrator/core/types.py", "orchestrator/core/space.py"),
            *("orchestrator/core/race.py", "tests/unit/test_core_space.py"),
        ),
        question="A new draft kind, `tree`, has a width beside its depth. Which types, checks "
        "and tests must change so that arms with a width can be raced? Write the new dataclass "
        "fields and the changed functions.",
    ),
)


def main() -> None:
    """Write the workload."""
    lines = [
        json.dumps({"id": f"long-{number:02d}", "category": task.category, "prompt": _prompt(task)})
        for number, task in enumerate(TASKS, start=1)
    ]
    OUT.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    print(f"wrote {OUT.relative_to(PROJECT)}; now: python -m orchestrator workload card {OUT}")


def _prompt(task: Task) -> str:
    names = [name for path in task.paths for name in _files(path)]
    documents = [f"=== {name}\n{_git('show', f'{COMMIT}:{name}').rstrip()}" for name in names]
    return "\n\n".join(["Read these files of a project.", *documents, "===", task.question])


def _files(path: str) -> list[str]:
    """Return a file, or the Python files directly below a folder, by name."""
    if Path(path).suffix:
        return [path]
    names = _git("ls-tree", "--name-only", COMMIT, f"{path}/").splitlines()
    return sorted(name for name in names if name.endswith(".py"))


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=PROJECT, check=True, capture_output=True, encoding="utf-8"
    )
    return done.stdout


if __name__ == "__main__":
    main()

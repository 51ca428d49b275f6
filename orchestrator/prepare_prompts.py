"""Read the prompts of a study, and check that they say something and that the engine takes them."""

from __future__ import annotations

from pathlib import Path

from orchestrator.adapters.tokenizer import FolderTokenizer
from orchestrator.canaries.scored import check_harness, shipped_tasks, task_files
from orchestrator.config import CONF_DIR, StudyConfig, resolve
from orchestrator.core.checks import MAX_FAILED_SHARE
from orchestrator.core.engine_limits import prompts_beyond, stated_count
from orchestrator.errors import ConfigError, reported_at
from orchestrator.load.random_text import random_reason
from orchestrator.load.workload import Workload, find_workload, load_workload


def load_prompts(config: StudyConfig) -> Workload:
    """Return the prompts of the load.

    Raises:
        ConfigError: They cannot be read, or decide nothing about speculation.
    """
    workload = load_workload(_workload_file(config.load.workload))
    if workload.needs_chat and config.load.endpoint != "chat":
        raise ConfigError(
            "load.endpoint", f"'{workload.name}' holds conversations, and the completions "
            "endpoint takes none", "set load.endpoint=chat",
        )  # fmt: skip
    speculates = bool(config.search.num_speculative_tokens)
    reason = random_reason(workload) if speculates else None
    if reason is not None and not config.load.allow_random_workload:
        raise ConfigError(
            "load.workload", reason,
            "measure with real prompts, or force it with load.allow_random_workload=true",
        )  # fmt: skip
    return workload


def too_long(config: StudyConfig, target: Path, workload: Workload) -> list[str]:
    """Return a note where some prompts are too long for the engine, counted if they can be here.

    Args:
        config: The study.
        target: Folder of its target.
        workload: Prompts of its load.

    Raises:
        ConfigError: So many are that no block would be valid.
    """
    args, load = config.engine.args, config.load
    if stated_count(args, "max_model_len") is None:
        return []
    try:
        tokenizer = FolderTokenizer(target, "target.path")
    except ConfigError:
        return []
    # A chat template and a salt come on top.
    lengths = tokenizer.counts([prompt.full_text for prompt in workload.prompts])
    num_beyond = prompts_beyond(args, lengths, load.max_tokens)
    if not num_beyond:
        return []
    problem = (
        f"with load.max_tokens={load.max_tokens}, {num_beyond} of {len(lengths)} prompts of "
        f"'{workload.name}' are beyond engine.args.max_model_len={args['max_model_len']}: the "
        f"longest has {max(lengths)} tokens"
    )
    if num_beyond / len(lengths) > MAX_FAILED_SHARE:
        raise ConfigError(
            "load.workload", problem,
            "raise engine.args.max_model_len, lower load.max_tokens, or drop long prompts",
        )  # fmt: skip
    return [f"load.workload: {problem}; only the others will be measured"]


def proof_prompts(config: StudyConfig) -> Workload:
    """Return the prompts of the text test; checks what else a proof needs.

    Raises:
        ConfigError: It is not there.
    """
    with reported_at("proof.workload"):
        workload = load_workload(_workload_file(config.proof.workload))
    if workload.needs_chat:
        raise ConfigError(
            "proof.workload", f"'{workload.name}' holds conversations, and the text test sends "
            "token ids", "use one of plain prompts such as code",
        )  # fmt: skip
    if proof_tasks(config):
        with reported_at("proof.tasks"):
            check_harness()
    return workload


def proof_tasks(config: StudyConfig) -> tuple[Path, ...]:
    """Return the YAML files of a proof's scored tasks.

    Raises:
        ConfigError: There is none of a name, or two have one name.
    """
    names = config.proof.tasks
    with reported_at("proof.tasks"):
        return task_files([n if n in shipped_tasks() else str(resolve(n)) for n in names])


def _workload_file(name_or_path: str) -> Path:
    """Return the file of a workload that is named as ``code`` or by its path."""
    path = Path(name_or_path)
    is_name = len(path.parts) == 1 and not path.suffix
    return find_workload(name_or_path, CONF_DIR) if is_name else resolve(name_or_path)

"""Wire the real adapters, and read what the environment says of them."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.adapters import tracking_uri as addresses
from orchestrator.adapters.argument_files import with_contents
from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.mlflow_findings import MlflowFindings
from orchestrator.adapters.mlflow_registry import MlflowRegistry
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.adapters.model_folder import model_digests
from orchestrator.adapters.node import LocalNode
from orchestrator.adapters.serve_engine import TRIAL_PREFIX, EnginePlacement, ServeEngine
from orchestrator.adapters.serve_production import ServeProduction
from orchestrator.adapters.serve_reaper import Lease
from orchestrator.adapters.state import Folder, boots_dir, content_digests, state_dir
from orchestrator.canaries.scored import ScoreSettings
from orchestrator.config import StudyConfig, resolve
from orchestrator.core.fingerprint import StudyInputs
from orchestrator.core.lossless.judge import LosslessSettings
from orchestrator.core.node_health import GIB, NodeNeeds
from orchestrator.core.node_state import NodeState
from orchestrator.core.promotion import GateSettings
from orchestrator.core.proof_gates import ProofDemands
from orchestrator.core.quality import TaskSettings
from orchestrator.core.race_state import RaceSettings
from orchestrator.core.sampling import Shaping
from orchestrator.core.space import speculative_config
from orchestrator.core.types import Arm, ProofPart
from orchestrator.errors import ConfigError
from orchestrator.load.settings import LoadSettings
from orchestrator.load.streams import HttpLoad
from orchestrator.load.workload import Workload
from orchestrator.lossless_answers import NUM_TOP, TextTest
from orchestrator.prepare import SAMPLED
from orchestrator.prepare_prompts import proof_tasks
from orchestrator.prove import EngineProver, ProofPlan
from orchestrator.study_trial import TrialOrder
from orchestrator.trial import Trial, TrialPorts, TrialSpec
from orchestrator.trial_log import TrialLog
from orchestrator.version import VERSION
from serve_apps.audit.plugin import AUDIT_DIR_VARIABLE
from serve_apps.cpu import environment as cpu_environment
from serve_apps.engine.deployment import max_ongoing_requests
from serve_apps.engine.spec import EngineSpec
from serve_apps.router.limits import Limits

VLLM_MEMORY_SHARE = 0.9
"""vLLM's default of gpu_memory_utilization; some builds take 0.92."""


def tracking_uri(config: StudyConfig) -> str:
    """Return the address of the MLflow server.

    Raises:
        ConfigError: Neither the study nor the environment names one.
    """
    uri = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    if not uri:
        raise ConfigError(
            "tracking.uri", "no MLflow server is named",
            "set tracking.uri or MLFLOW_TRACKING_URI to its http address",
        )  # fmt: skip
    return uri


def engine_spec(
    config: StudyConfig, arm: Arm, log_name: str, *, audit_folder: Path | None = None
) -> EngineSpec:
    """Return what the supervisor needs to boot an arm on its own engine build.

    Args:
        config: The study.
        arm: What to boot.
        log_name: First part of the log's file name.
        audit_folder: Of a proof boot, where the engine's audit writes; None for every other boot.
    """
    engine = config.engine.of(arm.engine_build)
    draft_path = "" if config.draft is None else str(resolve(config.draft.path))
    interpreted = engine.platform == "cpu" and engine.model_runner == "v2"
    args, audited = dict(engine.args), dict[str, str]()
    if audit_folder is not None:
        # More probabilities a token than vLLM's 20 change nothing that is sampled.
        args = {"max_logprobs": NUM_TOP, **args}
        audited = {AUDIT_DIR_VARIABLE: str(audit_folder)}
    return EngineSpec(
        model=str(resolve(config.target.path)),
        served_model_name=engine.served_model_name,
        log_path=str(state_dir() / Folder.LOGS / f"{log_name}-{{boot_id}}.log"),
        python=None if engine.python is None else str(resolve(engine.python)),
        launcher=engine.launcher,
        speculative_config=speculative_config(arm, draft_path),
        args=args,
        env={**(cpu_environment() if interpreted else {}), **engine.env, **audited},
        boot_timeout_s=engine.boot_timeout_s,
        boot_silence_s=engine.boot_silence_s,
        stop_timeout_s=engine.stop_timeout_s,
        cache_dir=str(state_dir() / Folder.CACHE),
    )


def load_client(config: StudyConfig, workload: Workload) -> HttpLoad:
    """Return the load of the study."""
    return HttpLoad(workload, settings=load_settings(config))


def load_settings(config: StudyConfig) -> LoadSettings:
    """Return what all blocks of the study have in common."""
    load = config.load
    return LoadSettings(
        shaping=Shaping.of(load),
        endpoint=load.endpoint,
        max_tokens=load.max_tokens,
        ignore_eos=load.ignore_eos,
        block_s=load.block_s,
        block_tokens=load.block_tokens,
        warmup_requests_per_stream=load.warmup_requests_per_stream,
        warmup_max_tokens=load.warmup_max_tokens,
        request_timeout_s=load.request_timeout_s,
        stall_timeout_s=load.stall_timeout_s,
        block_silence_s=load.block_silence_s or load.stall_timeout_s,
        salt=load.salt,
    )


def study_inputs(config: StudyConfig, workload: Workload) -> StudyInputs:
    """Return what every boot of the study is given; the models as they lie on this node."""
    load, known = config.load, content_digests()
    return StudyInputs(
        engine_args=with_contents(config.engine.args, known),
        models=model_digests(
            resolve(config.target.path),
            None if config.draft is None else resolve(config.draft.path),
            config.engine.args,
            known,
        ),
        workload_digest=workload.digest,
        sampling={
            **{name: getattr(load, name) for name in SAMPLED},
            "max_tokens": load.max_tokens,
            "ignore_eos": load.ignore_eos,
            "endpoint": load.endpoint,
            "salt": load.salt,
        },
        specpilot_version=VERSION,
    )


def node_needs(config: StudyConfig, state: NodeState) -> NodeNeeds:
    """Return what a node in this state must offer to an engine of the study."""
    floor, wanted = config.node.min_mem_available_gib, None
    if config.engine.platform == "cuda" and state.mem_total_bytes is not None:
        share = config.engine.args.get("gpu_memory_utilization", VLLM_MEMORY_SHARE)
        wanted = round(float(share) * state.mem_total_bytes)
    return NodeNeeds(
        engine_memory_bytes=wanted,
        # A GB10's GPU is integrated, and vLLM from 0.28 on asks for MemAvailable there.
        engine_counts_page_cache=config.node.kind == "gb10",
        min_mem_available_bytes=None if floor is None else round(floor * GIB),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialContext:
    """What every trial of a study shares; pickled into the trials' actors."""

    config: StudyConfig
    workload: Workload
    proof_workload: Workload
    """Prompts of the text test of losslessness."""
    study_id: str


def seconds_per_boot(config: StudyConfig) -> float:
    """Return the expected duration of one boot with its blocks, from the configuration alone."""
    blocks = len(config.cells()) * config.load.blocks_per_cell
    return config.engine.expected_boot_s + blocks * config.load.block_s * 1.5


def build_trial(context: TrialContext, order: TrialOrder, log: TrialLog) -> Trial:
    """Wire one trial, in the process of its actor.

    Args:
        context: The study.
        order: What the trial has to do.
        log: Takes what the trial tells of itself.
    """
    config, tell = context.config, logging.getLogger("specpilot.trial").info
    app_name = f"{TRIAL_PREFIX}{order.trial_id}"
    parts = proof_parts(config) if order.is_proof else ()
    folder = state_dir() / Folder.AUDIT / order.trial_id if ProofPart.AUDIT in parts else None
    engine = ServeEngine(
        EnginePlacement(
            app_name=app_name,
            node_id=order.node_id,
            engine_token=config.node.engine_token,
            num_gpus=config.node.num_gpus,
            max_streams=config.load.max_streams,
            boot_timeout_s=config.engine.boot_timeout_s,
            trial=f"{context.study_id}/{app_name}",
            boots_dir=boots_dir(),
        ),
        spec_for=lambda arm: engine_spec(config, arm, app_name, audit_folder=folder),
        lease=Lease(app_name),
    )
    node = LocalNode(node_id=order.node_id, kind=config.node.kind)
    spec = TrialSpec(
        trial_id=order.trial_id,
        arm=order.arm,
        replicate=order.replicate,
        cells=config.cells(),
        blocks_per_cell=config.load.blocks_per_cell,
        model=config.engine.served_model_name,
        seed=config.seed,
        ignores_eos=config.load.ignore_eos,
        allows_cache=not config.load.salt,
        needs_timing=config.board() is None,
        needs=node_needs(config, node.snapshot()),
        memory_look_s=config.node.memory_look_s,
        inputs=study_inputs(config, context.workload),
        proof=parts,
    )
    ports = TrialPorts(
        engine=engine,
        load=load_client(config, context.workload),
        log=log,
        node=node,
        clock=SystemClock(),
        prover=EngineProver(proof_plan(context, order, folder), tell) if parts else None,
    )
    return Trial(spec, ports, tell)


def proof_parts(config: StudyConfig) -> tuple[ProofPart, ...]:
    """Return what a proof boot of the study looks at."""
    proof, is_greedy = config.proof, 0.0 in config.load.temperatures
    wanted = {
        ProofPart.TEXT: proof.lossless != "skipped",
        ProofPart.AUDIT: proof.lossless != "skipped",
        ProofPart.GREEDY: proof.lossless != "skipped" and is_greedy,
        ProofPart.CANARIES: proof.canaries != "skipped",
        ProofPart.TASKS: bool(proof.tasks),
    }
    return tuple(part for part in ProofPart if wanted[part])


def proof_plan(context: TrialContext, order: TrialOrder, folder: Path | None) -> ProofPlan:
    """Return what is asked of one proof boot, and how it is judged.

    Args:
        context: The study.
        order: The boot.
        folder: Where its audit writes; None without one.
    """
    config, proof = context.config, context.config.proof
    demands = proof_demands(config)
    return ProofPlan(
        model=config.engine.served_model_name,
        is_control=order.arm.is_baseline,
        floor=order.floor,
        text=TextTest(
            workload=context.proof_workload,
            seed=config.seed,
            token_budget=proof.max_tokens,
            control_tokens=proof.control_tokens,
            max_tokens=proof.answer_tokens,
            timeout_s=config.load.request_timeout_s,
            # Half for the text and half for the audit.
            judging=LosslessSettings(alpha=proof.error / 2, displacement=proof.displacement),
        ),
        greedy_tokens=proof.greedy_tokens,
        greedy=demands.greedy,
        tasks=proof_tasks(config),
        scoring=ScoreSettings(
            tokenizer=resolve(config.target.path),
        ),
        audit_folder=folder,
    )


def proof_demands(config: StudyConfig) -> ProofDemands:
    """Return what a promotion asks of the proof boots."""
    proof = config.proof
    return ProofDemands(
        lossless=proof.lossless,
        canaries=proof.canaries,
        displacement=proof.displacement,
        tasks=TaskSettings(margin=proof.task_points / 100),
    )


def trial_factory(context: TrialContext) -> partial[Trial]:
    """Return the factory that the study hands to its trials."""
    return partial(build_trial, context)


def race_settings(config: StudyConfig) -> RaceSettings:
    """Return the race's budget and what it may overlook."""
    search = config.search
    return RaceSettings(
        max_boots=search.max_boots,
        max_hours=search.max_hours,
        tolerance=search.tolerance,
        error=search.error,
        seed=config.seed,
    )


def gate_settings(config: StudyConfig) -> GateSettings:
    """Return what the policy demands."""
    policy = config.policy
    return GateSettings(
        cell_tolerance=policy.cell_tolerance,
        min_kv_cache_tokens=policy.min_kv_cache_tokens,
        min_kv_max_concurrency=policy.min_kv_max_concurrency,
        ttft_tolerance=policy.ttft_tolerance,
    )


def full_concurrency(config: StudyConfig) -> int:
    """Return how many requests at a time production is given at most, as far as the study says."""
    own = config.policy.soak_streams or config.engine.args.get("max_num_seqs")
    return max(int(own or 0), config.load.max_streams)


def production(config: StudyConfig, dashboard_url: str) -> ServeProduction:
    """Return the production port."""
    node = config.node
    return ServeProduction(
        dashboard_url,
        name=config.production.name,
        route=config.production.route,
        model=config.engine.served_model_name,
        engine_options={
            # The node's trial slot goes with it, so that no trial is sent to a board that serves.
            "resources": {node.engine_token: 1.0, node.slot_token: 1.0},
            "num_gpus": node.num_gpus,
            "max_ongoing_requests": max_ongoing_requests(full_concurrency(config)),
        },
        api_keys=config.production.api_keys,
        limits=router_limits(config),
    )


def router_limits(config: StudyConfig) -> Limits:
    """Return what clients of production may send."""
    production = config.production
    return Limits(
        max_streams=production.max_streams,
        max_body_bytes=round(production.max_body_mib * 2**20),
        max_header_bytes=round(production.max_header_kib * 2**10),
        body_timeout_s=production.body_timeout_s,
        read_timeout_s=production.read_timeout_s,
    )


def tracker(config: StudyConfig, *, num_nodes: int) -> MlflowTracker:
    """Return the tracker, after a check that its server answers.

    Raises:
        ConfigError: It does not, or its kind does not suit several nodes.
    """
    uri = addresses.check(tracking_uri(config), num_nodes=num_nodes)
    return MlflowTracker(uri, experiment=config.tracking.experiment)


def findings(config: StudyConfig) -> MlflowFindings:
    """Return where a watcher's findings go: the experiment of the studies."""
    uri = addresses.check(tracking_uri(config))
    return MlflowFindings(uri, experiment=config.tracking.experiment)


def registry(config: StudyConfig) -> MlflowRegistry:
    """Return the registry of serving configurations."""
    return MlflowRegistry(addresses.check(tracking_uri(config)))

"""Reading and checking a study's inputs, and what is wired from them; nothing is started."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from core_samples import BASELINE, make_arm

from orchestrator import compose
from orchestrator.cluster import join_ray
from orchestrator.config import CONF_DIR, StudyConfig, load_config, resolve
from orchestrator.core.types import Arm
from orchestrator.errors import ConfigError
from orchestrator.prepare import Prepared, identity, premises, prepare
from orchestrator.study_trial import TrialOrder
from serve_apps.audit.plugin import AUDIT_DIR_VARIABLE
from serve_apps.router.limits import Limits

Study = Callable[..., StudyConfig]


@pytest.fixture
def study(target_folder: Path, draft_folder: Path, workload_file: Path) -> Study:
    """Return a maker of demo studies on stand-in models."""

    def make(*overrides: str) -> StudyConfig:
        inputs = [
            f"target.path={target_folder}",
            f"draft.path={draft_folder}",
            f"load.workload={workload_file}",
        ]
        return load_config(CONF_DIR / "study" / "demo.yaml", [*inputs, *overrides])

    return make


def refusal(config: StudyConfig) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        prepare(config, models_must_exist=True)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    return caught.value


def test_whole_study_is_prepared_without_notes(study: Study) -> None:
    prepared = prepare(study(), models_must_exist=True)

    assert len(prepared.arms) == 9
    assert [prompt.text for prompt in prepared.workload.prompts][1] == "class Stack:"
    assert prepared.notes == ()
    assert prepared.study_id.startswith("demo-")


@pytest.mark.parametrize(
    ("lost", "says"),
    [
        ("config.json", "no readable config.json"),
        ("tokenizer.json", "no tokenizer"),
        ("model.safetensors", "no weights"),
    ],
)
def test_target_without_a_part_is_refused(
    study: Study, target_folder: Path, lost: str, says: str
) -> None:
    (target_folder / lost).unlink()

    error = refusal(study())

    assert error.where == "target.path"
    assert says in error.problem


def test_missing_target_is_refused_with_its_path(study: Study, tmp_path: Path) -> None:
    error = refusal(study(f"target.path={tmp_path}/none"))

    assert error.where == "target.path"
    assert f"{tmp_path}/none" in error.problem


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_draft_without_a_part_is_refused(study: Study, draft_folder: Path, lost: str) -> None:
    (draft_folder / lost).unlink()

    assert refusal(study()).where == "draft.path"


def test_draft_of_another_kind_is_refused(study: Study, draft_folder: Path) -> None:
    (draft_folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')

    error = refusal(study())

    assert error.where == "draft.path"
    assert "LlamaForCausalLM" in error.problem


def test_depth_beyond_the_trained_block_is_refused(study: Study) -> None:
    """A10: past the trained block nothing is accepted."""
    error = refusal(study("search.num_speculative_tokens=[7,8]"))

    assert error.where == "search.num_speculative_tokens"
    assert "8 is beyond the draft's trained block of 8 tokens" in error.problem
    assert error.remedy == "give at most 7"


def test_stated_block_size_that_the_draft_contradicts_is_refused(study: Study) -> None:
    error = refusal(study("draft.block_size=16"))

    assert error.where == "draft.block_size"
    assert "says 8" in error.problem


def test_block_rule_on_the_v1_runner_is_refused(study: Study) -> None:
    """A05, H07: V1 accepts ``block`` and ignores it."""
    error = refusal(study("engine.model_runner=v1"))

    assert error.where == "search.rejection_sample_method"
    assert "accepts it without a word" in error.problem
    for word in ("block", "v1", "0.32.0"):
        assert word in error.problem


def test_dflash2_draft_on_the_v1_runner_is_refused(study: Study) -> None:
    """A07: it drafts as DFlash1 there."""
    error = refusal(study("engine.model_runner=v1", "search.rejection_sample_method=[standard]"))

    assert error.where == "engine.model_runner"
    assert "DFlash2DraftModel" in error.problem


def test_synthetic_rule_is_refused_where_the_study_may_promote(study: Study) -> None:
    """H08: it never verifies."""
    rules = "search.rejection_sample_method=[synthetic]"

    assert refusal(study(rules)).where == "search.rejection_sample_method"
    prepared = prepare(study(rules, "policy.promote=never"), models_must_exist=True)
    assert {arm.rejection_sample_method for arm in prepared.arms} == {None, "synthetic"}


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("search.draft_sample_method=[random]", "search.draft_sample_method"),
        ("search.rejection_sample_method=[verify]", "search.rejection_sample_method"),
        ("search.num_speculative_tokens=[3,3]", "search.num_speculative_tokens"),
        ("search.num_speculative_tokens=[0]", "search.num_speculative_tokens"),
        ("engine.build=0.27.1", "engine.build"),
        ("engine.python=/none/bin/python", "engine.python"),
        ("engine.builds=[{build: 0.28.0, python: /none/python}]", "engine.builds[0].python"),
        ("engine.builds=[{build: 0.27.1, env: {A: a}}]", "engine.build"),
        ("load.workload=none.jsonl", "load.workload"),
        ("proof.workload=none.jsonl", "proof.workload"),
        ("proof.workload=tools", "proof.workload"),
        ("proof.tasks=[poetry]", "proof.tasks"),
        ("proof.tasks=[arithmetic,arithmetic]", "proof.tasks"),
    ],
)
def test_input_that_cannot_be_is_refused_with_its_key(
    override: str, where: str, study: Study
) -> None:
    assert refusal(study(override)).where == where


@pytest.mark.parametrize("text", ["", "{}", '{"prompt": ""}', "no json", '["a"]'])
def test_workload_without_prompts_is_refused(text: str, study: Study, workload_file: Path) -> None:
    workload_file.write_text(text)

    assert refusal(study()).where == "load.workload"


def test_plan_checks_what_is_there_and_notes_the_rest(study: Study, tmp_path: Path) -> None:
    config = study(f"target.path={tmp_path}/none", "engine.python=/none/bin/python")

    notes = prepare(config, models_must_exist=False).notes

    assert [note.partition(":")[0] for note in notes] == ["target.path", "engine.python"]


def test_plan_still_refuses_a_broken_folder(study: Study, target_folder: Path) -> None:
    (target_folder / "tokenizer.json").unlink()

    with pytest.raises(ConfigError, match="no tokenizer"):
        prepare(study(), models_must_exist=False)


def test_study_id_is_the_question_and_not_where_it_is_asked(study: Study, tmp_path: Path) -> None:
    def id_of(*overrides: str) -> str:
        return prepare(study(*overrides), models_must_exist=False).study_id

    same = (
        *("tracking.uri=http://a:1", f"target.path={tmp_path}/x", "production.http_port=9"),
        *("policy.canary_share=0.5", "policy.approval=manual", "policy.allow_outage=true"),
        *("engine.boot_silence_s=5", "load.block_silence_s=5", "node.memory_look_s=5"),
    )
    other = ("search.num_speculative_tokens=[3]", "load.streams=[1]", "seed=2", "load.block_s=9")

    assert {id_of(override) for override in same} == {id_of()}
    assert len({id_of(), *(id_of(override) for override in other)}) == 5
    assert "path" not in json.dumps(identity(study()))


BUILDS = "engine.builds=[{build: 0.28.0, launcher: other.cli, env: {OWN: '2'}}]"


def test_study_of_two_builds_has_the_arms_of_both(study: Study) -> None:
    prepared = prepare(study(BUILDS), models_must_exist=True)

    ours, theirs = prepared.arms[:9], prepared.arms[9:]
    assert ours == prepare(study(), models_must_exist=True).arms
    assert theirs == tuple(replace(arm, engine_build="0.28.0") for arm in ours)


def test_study_of_two_builds_leaves_out_what_one_of_them_ignores(study: Study) -> None:
    """A05, A07: the older one on V1 has no DFlash2 and no block verification."""
    config = study("engine.builds=[{build: 0.28.0, launcher: other.cli, model_runner: v1}]")

    prepared = prepare(config, models_must_exist=True)

    assert len(prepared.arms) == 10
    assert prepared.arms[-1] == Arm(engine_build="0.28.0")
    assert any("0.28.0 has no DFlash2DraftModel" in note for note in prepared.notes)


def test_study_id_is_of_the_builds_and_not_of_where_they_lie(study: Study) -> None:
    def id_of(builds: str) -> str:
        return prepare(study(f"engine.builds=[{builds}]"), models_must_exist=False).study_id

    assert id_of("") == prepare(study(), models_must_exist=False).study_id
    assert "builds" not in identity(study())["engine"]
    here, there = id_of("{build: 0.28.0, python: /a}"), id_of("{build: 0.28.0, python: /b}")
    assert here == there
    assert len({id_of(""), here, id_of("{build: 0.29.0, python: /a}")}) == 3


def test_premises_are_of_each_build(study: Study) -> None:
    prepared = prepare(study(BUILDS), models_must_exist=True)
    alone = premises(prepare(study(), models_must_exist=True))

    assert premises(prepared) == premises(prepared, "0.32.0") == alone
    other = premises(prepared, "0.28.0")
    assert other.engine_build == "0.28.0"
    assert other.engine_args_digest != alone.engine_args_digest
    assert other.target_digest == alone.target_digest


def test_client_default_that_builds_do_not_share_is_refused(
    study: Study, target_folder: Path
) -> None:
    """0.28.0 takes no penalties from a generation config: no request is the default of both."""
    file = target_folder / "generation_config.json"
    file.write_text('{"presence_penalty": 1.5}', encoding="utf-8")
    default = (
        "load.sampling=client_default",
        "load.temperatures=[1.0]",
        "engine.args.generation_config=auto",
    )
    error = refusal(study(BUILDS, *default))

    assert error.where == "load.sampling"
    assert "0.28.0" in error.problem
    file.write_text('{"top_p": 0.9}', encoding="utf-8")
    assert prepare(study(BUILDS, *default), models_must_exist=True).config.load.top_p == 0.9


def test_engine_spec_is_of_the_arms_own_build(study: Study) -> None:
    config = study(
        "engine.env.ALL=1",
        "engine.builds=[{build: 0.28.0, python: .engines/old/bin/python, model_runner: v1, "
        "env: {OWN: '2'}}]",
    )

    ours = compose.engine_spec(config, BASELINE, "trial-a")
    theirs = compose.engine_spec(config, replace(BASELINE, engine_build="0.28.0"), "trial-a")

    assert (ours.python, ours.env["TRITON_INTERPRET"], ours.env.get("OWN")) == (None, "1", None)
    assert theirs.python == str(resolve(".engines/old/bin/python"))
    assert theirs.env == {"ALL": "1", "OWN": "2"}
    assert theirs.args == ours.args


def test_premises_change_with_the_models_and_the_engine(study: Study, target_folder: Path) -> None:
    def now(*overrides: str) -> Prepared:
        return prepare(study(*overrides), models_must_exist=True)

    before = premises(now())
    assert premises(now("load.block_s=9")) == before
    assert premises(now("engine.args.dtype=bfloat16")) != before
    assert before.step_time == "modelled"

    (target_folder / "model.safetensors").write_bytes(b"another")
    assert premises(now()).target_digest != before.target_digest


@pytest.mark.parametrize("uri", ["tracking.uri=null", "tracking.uri="])
def test_missing_tracking_address_is_refused(
    uri: str, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    with pytest.raises(ConfigError, match=r"^tracking\.uri: .*MLFLOW_TRACKING_URI"):
        compose.tracking_uri(study(uri))


def test_tracking_address_of_the_study_wins_over_the_environment(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://env:1")

    assert compose.tracking_uri(study()) == "http://env:1"
    assert compose.tracking_uri(study("tracking.uri=http://own:1")) == "http://own:1"


def test_relative_paths_start_at_the_project(tmp_path: Path) -> None:
    assert resolve("conf/study/demo.yaml").is_file()
    assert resolve(str(tmp_path)) == tmp_path
    assert resolve("~/x") == Path.home() / "x"


def test_engine_spec_names_the_arm_and_everything_that_is_not_vllms_default(
    study: Study, draft_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    config = study("engine.env.OWN=1")
    spec = compose.engine_spec(config, make_arm(3, "greedy", "standard"), "trial-a")

    assert spec.speculative_config == {
        "method": "dflash",
        "model": str(draft_folder),
        "num_speculative_tokens": 3,
        "draft_sample_method": "greedy",
        "rejection_sample_method": "standard",
    }
    assert spec.env["TRITON_INTERPRET"] == "1"
    assert spec.env["OWN"] == "1"
    assert spec.log_path == str(tmp_path / "state" / "logs" / "trial-a-{boot_id}.log")
    assert compose.engine_spec(config, BASELINE, "trial-a").speculative_config is None


def test_watchdogs_wait_as_long_as_the_study_says(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(tmp_path / "state"))
    assert compose.engine_spec(study(), BASELINE, "trial-a").boot_silence_s == 900.0
    config = study("engine.boot_silence_s=60")
    assert compose.engine_spec(config, BASELINE, "trial-a").boot_silence_s == 60.0

    def silence_s(*overrides: str) -> float:
        prepared = prepare(study("load.stall_timeout_s=70", *overrides), models_must_exist=False)
        return compose.load_settings(prepared.config).block_silence_s

    assert silence_s() == 70.0
    assert silence_s("load.block_silence_s=5") == 5.0


def test_engine_spec_of_a_real_board_has_no_trace_of_the_cpu() -> None:
    config = load_config(CONF_DIR / "study" / "qwen38_gb10.yaml")

    spec = compose.engine_spec(config, make_arm(), "trial-a")

    assert spec.env == {}
    assert spec.launcher == "vllm.entrypoints.cli.main"


def test_settings_of_race_and_gates_are_the_studys(study: Study) -> None:
    config = study("search.max_boots=9", "search.max_hours=2", "search.tolerance=0.02", "seed=4")

    race, gates = compose.race_settings(config), compose.gate_settings(config)

    assert (race.max_boots, race.max_hours, race.tolerance, race.seed) == (9, 2.0, 0.02, 4)
    assert (gates.min_kv_cache_tokens, gates.cell_tolerance) == (None, 0.05)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "local", "nowhere"])
def test_ray_that_does_not_answer_is_refused_at_once(
    address: str, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)

    with pytest.raises(ConfigError) as caught:
        join_ray(study())

    assert caught.value.where == f"ray at '{address}'"
    assert "RAY_ADDRESS" in caught.value.remedy
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", 1)) != 0, "the port of this test is in use"


def order_of(arm: Arm, *, is_proof: bool, floor: float | None = None) -> TrialOrder:
    return TrialOrder(
        trial_id="t1", arm=arm, replicate=0, node_id="n", is_proof=is_proof, floor=floor
    )


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ((), "text audit canaries"),
        (("load.temperatures=[0,1]",), "text audit greedy canaries"),
        (("proof.lossless=skipped",), "canaries"),
        (("proof.canaries=skipped",), "text audit"),
        (("proof.tasks=[arithmetic]",), "text audit canaries tasks"),
        (("proof.lossless=skipped", "proof.canaries=skipped"), ""),
    ],
)
def test_proof_boot_looks_at_what_the_study_asks(
    overrides: tuple[str, ...], parts: str, study: Study
) -> None:
    assert " ".join(compose.proof_parts(study(*overrides))) == parts


def test_proof_is_judged_as_the_study_asks(study: Study, tmp_path: Path) -> None:
    config = study(
        "proof.error=0.01", "proof.displacement=0.03", "proof.max_tokens=999",
        "proof.tasks=[arithmetic]", "proof.task_points=4",
    )  # fmt: skip
    prepared = prepare(config, models_must_exist=True)
    context = compose.TrialContext(
        config=config,
        workload=prepared.workload,
        proof_workload=prepared.proof_workload,
        study_id="demo-1a2b3c4d-20261129-101500",
    )
    arms = {arm.is_baseline: arm for arm in prepared.arms}
    control = compose.proof_plan(context, order_of(arms[True], is_proof=True), tmp_path)
    own = compose.proof_plan(context, order_of(arms[False], is_proof=True, floor=0.02), None)

    assert (control.is_control, own.is_control) == (True, False)
    assert (own.floor, own.audit_folder, control.audit_folder) == (0.02, None, tmp_path)
    assert own.text.judging.alpha == 0.005, "text and audit share it"
    assert own.text.judging.displacement == 0.03
    assert own.text.token_budget == 999
    assert own.text.temperature == 1.0
    assert [path.stem for path in own.tasks] == ["arithmetic"]
    demands = compose.proof_demands(config)
    assert (demands.lossless, demands.canaries) == ("required", "reported")
    assert demands.displacement == 0.03
    assert demands.tasks.margin == 0.04


def test_audit_is_on_in_its_own_boot_only(study: Study, tmp_path: Path) -> None:
    config = study()
    arm = prepare(config, models_must_exist=True).arms[0]

    plain = compose.engine_spec(config, arm, "trial")
    audited = compose.engine_spec(config, arm, "trial", audit_folder=tmp_path)
    stated = compose.engine_spec(
        study("engine.args.max_logprobs=20"), arm, "t", audit_folder=tmp_path
    )

    assert AUDIT_DIR_VARIABLE not in plain.env
    assert "max_logprobs" not in plain.args
    assert audited.env == {**plain.env, AUDIT_DIR_VARIABLE: str(tmp_path)}
    assert audited.args == {**plain.args, "max_logprobs": 64}
    assert stated.args["max_logprobs"] == 20, "what the study states stays"


@pytest.mark.parametrize("name", ["lossless", "canaries"])
def test_proof_that_is_required_needs_its_control(name: str, study: Study) -> None:
    off = {"lossless", "canaries"} - {name}
    overrides = [f"proof.{name}=required", *(f"proof.{other}=skipped" for other in off)]

    with pytest.raises(ConfigError, match=f"no control to show proof.{name} by") as caught:
        study(*overrides, "search.baseline=false")

    assert caught.value.where == "search.baseline"
    assert study("proof.lossless=reported", "search.baseline=false").proof.lossless == "reported"


def test_limits_of_clients_come_from_the_study_in_bytes(study: Study) -> None:
    assert compose.router_limits(study()) == Limits()
    own = study(
        "production.max_body_mib=0.5",
        "production.max_header_kib=8",
        "production.max_streams=7",
        "production.body_timeout_s=2",
        "production.read_timeout_s=3",
    )
    assert compose.router_limits(own) == Limits(
        max_streams=7,
        max_body_bytes=512 << 10,
        max_header_bytes=8 << 10,
        body_timeout_s=2.0,
        read_timeout_s=3.0,
    )

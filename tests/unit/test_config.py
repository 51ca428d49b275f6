from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config import CONF_DIR, config_to_dict, load_config
from orchestrator.errors import ConfigError

DEMO = CONF_DIR / "study" / "demo.yaml"
QWEN = CONF_DIR / "study" / "qwen38_gb10.yaml"

LEAST = {
    "name": "own",
    "target": "{path: a}",
    "draft": "null",
    "engine": "{build: 0.32.0, platform: cpu}",
    "load": "{workload: a.jsonl}",
    "node": "{kind: a}",
}
"""What a study cannot leave out; the space is no speculation alone."""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a writer of study files in a folder of their own."""

    def writer(text: str) -> Path:
        path = tmp_path / "own.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return writer


def refusal(path: Path, *overrides: str) -> ConfigError:
    """Return the error that a bad study ends in, after a check that it is one readable line."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert "$" not in text
    assert caught.value.remedy
    return caught.value


def test_include_gives_what_the_study_does_not_say() -> None:
    config = load_config(DEMO)

    assert config.engine.platform == "cpu"
    assert config.engine.args["max_model_len"] == 1024
    assert config.search.rejection_sample_method == ("standard", "block")
    assert config.node.board_model is not None


def test_layers_later_include_wins_and_the_study_wins_over_both(write: Write) -> None:
    study = DEMO.read_text(encoding="utf-8").replace(
        "include: [engine/cpu,", "include: [engine/gb10, engine/cpu,"
    )
    config = load_config(write(study + "engine: {boot_timeout_s: 7}\n"))

    assert config.engine.platform == "cpu"
    assert config.engine.args["max_model_len"] == 1024
    # Keys that only the earlier file has stay: sections are merged, not replaced.
    assert config.engine.args["reasoning_parser"] == "qwen3"
    assert config.engine.boot_timeout_s == 7


def test_overrides_win_over_files_and_later_ones_over_earlier() -> None:
    config = load_config(
        DEMO, ["load.streams=[4]", "seed=2", "seed=3", "engine.args.dtype=float16"]
    )

    assert config.load.streams == (4,)
    assert config.seed == 3
    assert config.engine.args["dtype"] == "float16"
    assert config.engine.args["enforce_eager"] is True


def test_override_below_a_value_does_not_put_a_section_in_its_place() -> None:
    with pytest.raises(ConfigError) as error:
        load_config(DEMO, ["engine.args.generation_config.temperature=0.6"])

    assert error.value.where == "engine.args.generation_config.temperature"
    assert error.value.problem == "engine.args.generation_config is 'vllm' and no section"
    assert error.value.remedy == "give engine.args.generation_config=VALUE"


def test_override_below_what_an_earlier_one_made_a_section_is_taken() -> None:
    overrides = ["engine.args.hf_overrides={a: 1}", "engine.args.hf_overrides.b.c=2"]

    config = load_config(DEMO, [*overrides, "engine.args.new.x=3"])

    assert config.engine.args["hf_overrides"] == {"a": 1, "b": {"c": 2}}
    assert config.engine.args["new"] == {"x": 3}


def test_override_of_a_list_replaces_it() -> None:
    config = load_config(DEMO, ["search.num_speculative_tokens=[5]"])

    assert config.search.num_speculative_tokens == (5,)


def test_config_to_dict_is_plain_and_has_what_defaults_filled_in() -> None:
    plain = config_to_dict(load_config(DEMO))

    assert plain["load"]["top_p"] == 1.0
    assert list(plain["load"]["streams"]) == [1, 2]
    assert plain["draft"]["block_size"] is None


@pytest.mark.parametrize(
    ("override", "where", "wanted"),
    [
        ("load.streams=[a]", "load.streams[0]", "a whole number"),
        ("load.streams=[1,true]", "load.streams[1]", "a whole number"),
        ("load.streams=3", "load.streams", "a list"),
        ("load.streams[0]=1", "load.streams", "a list"),
        ("load.temperatures=[0.7,hot]", "load.temperatures[1]", "a number"),
        ("load.block_s=soon", "load.block_s", "a number"),
        ("load.top_k=null", "load.top_k", "a whole number"),
        ("load.ignore_eos=maybe", "load.ignore_eos", "true or false"),
        ("load=[]", "load", "a section with keys such as workload"),
        ("seed=1.5", "seed", "a whole number"),
        ("name=null", "name", "a text"),
        ("name=[x]", "name", "a text"),
        ("engine=3", "engine", "a section with keys such as build"),
        ("engine.args=5", "engine.args", "keys and values"),
        ("engine.env={A: {B: 1}}", "engine.env.A", "a text"),
        ("engine.platform=tpu", "engine.platform", "one of cuda, cpu"),
        ("target=null", "target", "a section"),
        ("node.board_model=3", "node.board_model", "a section"),
        ("node.board_model.streams=[1]", "node.board_model.streams", "a list of 2 values"),
        (
            "objective.weights=[{streams: x, temperature: 0.7, weight: 1}]",
            "objective.weights[0].streams",
            "a whole number",
        ),
        (
            "objective.weights=[{streams: 1, temperature: 0.7}]",
            "objective.weights[0].weight",
            "a number",
        ),
    ],
)
def test_value_of_the_wrong_type_is_refused_with_its_dotted_key(
    override: str, where: str, wanted: str
) -> None:
    error = refusal(DEMO, override)

    assert error.where == where
    assert wanted in error.remedy


@pytest.mark.parametrize(
    ("override", "where", "remedy"),
    [
        ("colour=red", "colour", "known are name, target"),
        ("load.stream=[1]", "load.stream", "did you mean 'streams'?"),
        ("engine.max_model_len=5", "engine.max_model_len", "known are build"),
        ("objective.weights=[{stream: 1}]", "objective.weights[0].stream", "'streams'"),
    ],
)
def test_unknown_key_is_refused_with_a_near_one(override: str, where: str, remedy: str) -> None:
    error = refusal(DEMO, override)

    assert (error.where, error.problem) == (where, "is unknown")
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("engine.boot_timeout_s=0", "engine.boot_timeout_s"),
        ("engine.boot_silence_s=0", "engine.boot_silence_s"),
        ("engine.boot_silence_s=.inf", "engine.boot_silence_s"),
        ("load.block_silence_s=0", "load.block_silence_s"),
        ("node.memory_look_s=0", "node.memory_look_s"),
        ("node.memory_look_s=.nan", "node.memory_look_s"),
        ("engine.build=0.32", "engine.build"),
        ("engine.build=0.32.0+", "engine.build"),
        ("engine.builds=[{build: 0.28, python: /b}]", "engine.builds[0].build"),
        ("engine.builds=[{build: 0.32.0, python: /b}]", "engine.builds[0].build"),
        ("engine.builds=[{build: 0.28.0}]", "engine.builds[0]"),
        (
            "engine.builds=[{build: 0.28.0, python: /b}, {build: 0.29.0, python: /b}]",
            "engine.builds[1]",
        ),
        ("engine.builds=[{build: 0.28.0, env: {A: '1', B: null}}]", "engine.builds[0].env.B"),
        ("engine.args.port=80", "engine.args.port"),
        ("engine.args.speculative_config={}", "engine.args.speculative_config"),
        ("engine.stop_timeout_s=.nan", "engine.stop_timeout_s"),
        ("engine.expected_boot_s=.inf", "engine.expected_boot_s"),
        ("draft.block_size=1", "draft.block_size"),
        ("node.num_gpus=.nan", "node.num_gpus"),
        ("node.num_gpus=-1", "node.num_gpus"),
        ("node.board_model.base_s=.nan", "node.board_model.base_s"),
        ("node.board_model.draft_s=-1", "node.board_model.draft_s"),
        ("node.board_model.verify_s_per_token=.inf", "node.board_model.verify_s_per_token"),
        ("node.board_model.streams=[0, 4]", "node.board_model.streams"),
        ("node.board_model.depths=[7, 3]", "node.board_model.depths"),
        ("policy.cell_tolerance=.inf", "policy.cell_tolerance"),
        ("policy.ttft_tolerance=.nan", "policy.ttft_tolerance"),
        ("policy.ttft_tolerance=-1", "policy.ttft_tolerance"),
        ("policy.min_kv_cache_tokens=-1", "policy.min_kv_cache_tokens"),
        ("policy.min_kv_max_concurrency=.nan", "policy.min_kv_max_concurrency"),
        ("load.streams=[65536]", "load.streams"),
        ("load.max_in_flight=65536", "load.max_in_flight"),
        ("search.max_boots=0", "search.max_boots"),
        ("search.max_hours=0", "search.max_hours"),
        ("search.tolerance=0", "search.tolerance"),
        ("search.error=1", "search.error"),
        ("search.draft_sample_method=[]", "search.draft_sample_method"),
        ("load.streams=[]", "load.streams"),
        ("load.streams=[0]", "load.streams"),
        ("load.temperatures=[]", "load.temperatures"),
        ("load.temperatures=[2.1]", "load.temperatures"),
        ("load.temperatures=[.nan]", "load.temperatures"),
        ("load.top_p=0", "load.top_p"),
        ("load.max_tokens=1", "load.max_tokens"),
        ("load.block_s=0", "load.block_s"),
        ("load.blocks_per_cell=0", "load.blocks_per_cell"),
        ("objective.confidence=1", "objective.confidence"),
        ("objective.confidence=0.9999999999999999", "objective.confidence"),
        ("objective.weights=[{streams: 1, temperature: 0.7, weight: -1}]", "objective.weights"),
        ("objective.weights=[{streams: 1, temperature: 0.7, weight: 0}]", "objective.weights"),
        ("objective.weights=[{streams: 9, temperature: 0.7, weight: 1}]", "objective.weights"),
        ("node.board_model=null", "objective.step_time"),
        ("policy.cell_tolerance=-1", "policy.cell_tolerance"),
        ("proof.lossless=maybe", "proof.lossless"),
        ("proof.displacement=0", "proof.displacement"),
        ("proof.error=1", "proof.error"),
        ("proof.max_tokens=0", "proof.max_tokens"),
        ("proof.control_tokens=-1", "proof.control_tokens"),
        ("proof.task_points=100", "proof.task_points"),
        ("proof.error=5e-324", "proof.error"),
        ("policy.promise_confidence=0.9999999999", "policy.promise_confidence"),
        ("production.name=trial-x", "production.name"),
        ("production.name='a b'", "production.name"),
        ("production.name=chat-v2", "production.name"),
        ("production.name=''", "production.name"),
        ("policy.canary_share=1", "policy.canary_share"),
        ("policy.canary_share=-0.1", "policy.canary_share"),
        ("policy.canary_s=-1", "policy.canary_s"),
        ("policy.canary_s=.inf", "policy.canary_s"),
        ("policy.canary_requests=0", "policy.canary_requests"),
        ("policy.promise_tolerance=1", "policy.promise_tolerance"),
        ("policy.promise_confidence=1", "policy.promise_confidence"),
        ("policy.promise_confidence=0.1", "policy.promise_confidence"),
        ("policy.approval=later", "policy.approval"),
        ("production.drain_s=-1", "production.drain_s"),
        ("draft=null", "draft"),
        ("engine.boot_timeout_s=.inf", "engine.boot_timeout_s"),
        ("load.block_s=.inf", "load.block_s"),
        ("load.request_timeout_s=0", "load.request_timeout_s"),
        ("production.http_port=0", "production.http_port"),
        ("production.http_port=99999", "production.http_port"),
        ("production.route=v1", "production.route"),
        ("production.verify_requests=0", "production.verify_requests"),
        ("production.deadline_s=-1", "production.deadline_s"),
        ("production.api_keys=sk-0123456789abcdef", "production.api_keys"),
        ("production.api_keys='file:keys'", "production.api_keys"),
        ("production.api_keys='env:A B'", "production.api_keys"),
        ("production.api_keys=''", "production.api_keys"),
        ("production.max_streams=0", "production.max_streams"),
        ("production.max_streams=1001", "production.max_streams"),
        ("production.max_body_mib=0", "production.max_body_mib"),
        ("production.max_body_mib=.inf", "production.max_body_mib"),
        ("production.max_header_kib=0.5", "production.max_header_kib"),
        ("production.max_header_kib=.nan", "production.max_header_kib"),
        ("production.body_timeout_s=0", "production.body_timeout_s"),
        ("production.body_timeout_s=.inf", "production.body_timeout_s"),
        ("production.read_timeout_s=0", "production.read_timeout_s"),
        ("tracking.experiment=''", "tracking.experiment"),
        ("tracking.registered_model=a/b", "tracking.registered_model"),
        ("tracking.registered_model='a:b'", "tracking.registered_model"),
        ("tracking.registered_model=''", "tracking.registered_model"),
    ],
)
def test_value_out_of_range_is_refused_with_its_key(override: str, where: str) -> None:
    assert refusal(DEMO, override).where == where


def test_board_whose_steps_take_no_time_is_refused() -> None:
    board = ("node.board_model.base_s=0", "node.board_model.verify_s_per_token=0")
    assert refusal(DEMO, *board).where == "node.board_model"


@pytest.mark.parametrize(
    "value", ["'a\u2028b'", '"a\\nb"', '"\\u001b[2J"', "x" * 5_000, "9" * 5_000]
)
def test_error_is_one_line_of_bearable_length_whatever_the_value(value: str) -> None:
    text = str(refusal(DEMO, f"engine.platform={value}"))

    assert text.isprintable()
    assert len(text) < 1_000


@pytest.mark.parametrize(
    "name",
    ["engine/../engine/cpu", "a\0b", "a" * 300, "a/" * 3_000, "", ".", "engine/", "???"],
)
def test_include_that_is_no_file_below_conf_is_refused(write: Write, name: str) -> None:
    assert refusal(write(json.dumps({"include": [name]}))).where == "include"


@pytest.mark.parametrize("up", ["", "../" * len(CONF_DIR.parts)], ids=("absolute", "upwards"))
def test_include_of_a_file_elsewhere_is_refused(write: Write, tmp_path: Path, up: str) -> None:
    elsewhere = tmp_path / "elsewhere.yaml"
    elsewhere.write_text("seed: 7\n")
    name = up + str(elsewhere.with_suffix(""))[1 if up else 0 :]
    assert (CONF_DIR / f"{name}.yaml").is_file()

    error = refusal(write(json.dumps({"include": [name]})))

    assert error.where == "include"
    assert "is no file" in error.problem


def test_key_in_the_place_of_its_source_is_not_repeated() -> None:
    assert "0123456789" not in str(refusal(DEMO, "production.api_keys=sk-0123456789abcdef"))


@pytest.mark.parametrize("source", ["file:/etc/specpilot/keys", "env:CLIENT_KEYS", "open"])
def test_source_of_keys_is_taken(source: str) -> None:
    assert load_config(DEMO, [f"production.api_keys='{source}'"]).production.api_keys == source


def test_empty_space_is_refused() -> None:
    error = refusal(DEMO, "search.num_speculative_tokens=[]", "search.baseline=false")

    assert error.where == "search"


@pytest.mark.parametrize("override", ["load.block_s", "=3", "load..block_s=3"])
def test_override_without_key_or_value_is_refused(override: str) -> None:
    error = refusal(DEMO, override)

    assert error.where == override
    assert error.remedy == "write it as key=value"


@pytest.mark.parametrize("override", ["load.streams=[1", "load.streams={1: "])
def test_override_that_is_not_yaml_is_refused_with_its_key(override: str) -> None:
    error = refusal(DEMO, override)

    assert error.where == "load.streams"
    assert "not YAML" in error.problem


@pytest.mark.parametrize(
    "text",
    [
        *("${nope}", "${seed}", "a ${oc.env:PLANTED} b", r"\${oc.env:PLANTED}", "${oc.decode:'1'}"),
        *("${oc.env:NOBODY,${oc.env:PLANTED}}", "???"),
    ],
)
@pytest.mark.parametrize(
    "key", ["name", "engine.args.dtype", "engine.env.A", "engine.args.a.b", "load.temperatures"]
)
def test_nothing_is_filled_in_from_the_environment_or_elsewhere(
    text: str, key: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED", "planted-value")
    error = refusal(DEMO, f"{key}={json.dumps(text)}")
    assert error.where == key
    assert "planted" not in str(error)
    assert f"{key}=VALUE" in error.remedy

    items = {**LEAST, "tracking": json.dumps({"experiment": [text]})}
    stated = "".join(f"{name}: {value}\n" for name, value in items.items())
    assert refusal(write(stated)).where == "tracking.experiment[0]"


def test_yaml_runs_no_code(write: Write, tmp_path: Path) -> None:
    made = tmp_path / "made"
    for tag in ("apply:os.system", "apply:subprocess.getoutput", "object/new:os.system"):
        for key in ("extra", "name", "include", "<<"):
            error = refusal(write(f"{key}: !!python/object/{tag} ['touch {made}']\nname: own\n"))
            assert "is not YAML" in error.problem
    override = f"name=!!python/object/apply:os.system ['touch {made}']"
    assert "is not YAML" in refusal(DEMO, override).problem
    assert not made.exists()


@pytest.mark.parametrize("name", ["../outside", "{folder}/outside", "engine/../../outside"])
def test_include_that_leads_out_of_conf_is_refused(
    name: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.config.CONF_DIR", tmp_path / "conf")
    (tmp_path / "conf" / "engine").mkdir(parents=True)
    (tmp_path / "outside.yaml").write_text("seed: 2\n")
    error = refusal(write(f"include: ['{name.format(folder=tmp_path)}']\nname: own\n"))
    assert (error.where, error.remedy) == ("include", "name a file below conf, as in [engine/cpu]")


@pytest.mark.parametrize("key", ["name", "target", "load", "engine", "draft", "node"])
def test_missing_mandatory_key_is_named(key: str, write: Write) -> None:
    text = "".join(f"{name}: {value}\n" for name, value in LEAST.items() if name != key)

    error = refusal(write(text))

    assert (error.where, error.problem) == (key, "is missing")


@pytest.mark.parametrize(
    ("section", "value", "where"),
    [("engine", "{platform: cpu}", "engine.build"), ("target", "{}", "target.path")],
)
def test_missing_key_inside_a_section_is_named(
    section: str, value: str, where: str, write: Write
) -> None:
    text = "".join(f"{name}: {text}\n" for name, text in (LEAST | {section: value}).items())

    error = refusal(write(text))

    assert (error.where, error.problem) == (where, "is missing")


def test_sections_that_are_left_out_have_their_defaults(write: Write) -> None:
    config = load_config(write("".join(f"{name}: {text}\n" for name, text in LEAST.items())))

    assert config.production.http_port == 8000
    assert config.policy.promote == "auto"
    assert config.objective.step_time == "measured"


def test_missing_file_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path / "nothing.yaml")

    assert error.where.endswith("nothing.yaml")
    assert "cannot be read" in error.problem


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_bytes(b"\xff\xfe\x00")

    assert "cannot be read" in refusal(path).problem


def test_file_that_is_not_yaml_is_named_with_the_line(write: Write) -> None:
    error = refusal(write("name: own\nload: [1,\n"))

    assert error.where.endswith("own.yaml")
    assert "not YAML" in error.problem
    assert "line" in error.problem


def test_file_that_is_a_list_is_refused(write: Write) -> None:
    assert refusal(write("- name\n- own\n")).problem == "is not a mapping"


def test_missing_include_is_named(write: Write) -> None:
    error = refusal(write("include: [engine/none]\nname: own\n"))

    assert error.where == "include"
    assert "'engine/none' in own.yaml" in error.problem


def test_include_that_is_no_list_is_refused(write: Write) -> None:
    assert refusal(write("include: engine/cpu\nname: own\n")).where == "include"


def test_include_circle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.config.CONF_DIR", tmp_path)
    (tmp_path / "a.yaml").write_text("include: [b]\n")
    (tmp_path / "b.yaml").write_text("include: [a]\n")

    error = refusal(tmp_path / "a.yaml")

    assert (error.where, error.remedy) == ("include", "break the circle")


def test_file_included_twice_on_different_ways_is_no_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.config.CONF_DIR", tmp_path)
    (tmp_path / "base.yaml").write_text("seed: 5\n")
    (tmp_path / "a.yaml").write_text("include: [base]\n")
    (tmp_path / "b.yaml").write_text("include: [a, base]\nspeed: 1\n")

    assert refusal(tmp_path / "b.yaml").where == "speed"


@pytest.mark.parametrize("promote", ["auto", "never"])
def test_modelled_step_time_never_decides_what_a_real_board_serves(promote: str) -> None:
    board = load_config(DEMO).node.board_model
    assert board is not None
    model = (
        f"node.board_model={{name: m, source: s, base_s: {board.base_s}, verify_s_per_token: 0.001,"
        " draft_s: 0.01, streams: [1, 16], depths: [0, 5]}"
    )
    overrides = [model, "objective.step_time=modelled", f"policy.promote={promote}"]
    if promote == "never":
        assert load_config(QWEN, overrides).board() is not None
    else:
        assert refusal(QWEN, *overrides).where == "objective.step_time"


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("engine.args.api_key=PlantedSecret", "engine.args.api_key"),
        ("engine.args.hf_token=PlantedSecret", "engine.args.hf_token"),
        ("engine.env.HF_TOKEN=PlantedSecret", "engine.env.HF_TOKEN"),
        (
            "engine.builds=[{build: 0.28.0, env: {HF_TOKEN: PlantedSecret}}]",
            "engine.builds[0].env.HF_TOKEN",
        ),
    ],
)
def test_secret_among_the_engine_settings_is_refused_without_its_value(
    override: str, where: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(CONF_DIR / "study" / "demo.yaml", [override])
    assert error.value.where == where
    assert "PlantedSecret" not in str(error.value)


def test_other_build_has_what_the_engine_has_and_states_what_differs() -> None:
    builds = (
        "engine.builds=[{build: 0.28.0, python: /b/python, env: {OWN: '2'}}, "
        "{build: 0.32.0+patched, launcher: patched.cli, model_runner: v1}]"
    )
    engine = load_config(DEMO, [builds, "engine.env={OWN: '1', ALL: '1'}"]).engine

    assert engine.build_names == ("0.32.0", "0.28.0", "0.32.0+patched")
    assert engine.of("0.32.0") == replace(engine, builds=[])
    old, patched = engine.of("0.28.0"), engine.of("0.32.0+patched")
    assert (old.python, old.launcher, old.model_runner) == ("/b/python", engine.launcher, "v2")
    assert old.env == {"OWN": "2", "ALL": "1"}
    assert old.args == engine.args
    assert (patched.python, patched.launcher) == (engine.python, "patched.cli")
    assert (patched.model_runner, patched.env) == ("v1", engine.env)


@pytest.mark.parametrize(
    ("override", "where", "says"),
    [
        ("load.temperatures=[0.7,0.70000001]", "load.temperatures", "names a value twice"),
        ("load.request_rates=[1,1.0000001]", "load.request_rates", "names a value twice"),
        (f"load.block_s={10**400}", "load.block_s", "does not fit"),
        (
            "objective.weights=[{streams: 1, temperature: 1.0, weight: 1},"
            "{streams: 1, temperature: 1.0, weight: 3}]",
            *("objective.weights", "streams 1, temperature 1 has a weight twice"),
        ),
        (
            "objective.weights=[{streams: 1, temperature: 1.0, weight: .inf}]",
            *("objective.weights", "inf is no share"),
        ),
        (
            "objective.weights=[{streams: 1, temperature: 1.0, weight: 1e308},"
            "{streams: 2, temperature: 1.0, weight: 1e308}]",
            *("objective.weights", "add up to 0 or to no number"),
        ),
    ],
)
def test_cells_and_weights_that_cannot_be_told_apart_or_added_are_refused(
    override: str, where: str, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        load_config(CONF_DIR / "study" / "demo.yaml", [override])
    assert error.value.where == where


@pytest.mark.parametrize(
    "value",
    [
        ".nan",
        "1e999",
        "[1, .inf]",
        "{a: [-.inf]}",
        "!!binary aGk=",
        "{a: [!!binary aGk=]}",
        "{1: a}",
    ],
)
def test_engine_argument_that_json_cannot_carry_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="infinite or not a number") as error:
        load_config(DEMO, [f"engine.args.max_model_len={value}"])
    assert error.value.where == "engine.args.max_model_len"


@pytest.mark.parametrize("item", ["{a: 1}", "[1]", "{streams: 1, temperature: .nan}"])
@pytest.mark.parametrize(
    "key", ["proof.tasks", "search.num_speculative_tokens", "search.draft_sample_method"]
)
def test_section_or_list_as_an_item_of_a_list_of_values_is_refused(key: str, item: str) -> None:
    with pytest.raises(ConfigError, match="does not fit") as error:
        load_config(DEMO, [f"{key}=[{item}]"])
    assert error.value.where == f"{key}[0]"


@pytest.mark.parametrize("keys", ["null", "open"])
def test_route_for_other_machines_without_keys_is_refused(keys: str) -> None:
    lan = ["production.http_host=0.0.0.0", f"production.api_keys={keys}"]
    with pytest.raises(ConfigError, match=r"production\.api_keys.*would ask for no key"):
        load_config(DEMO, lan)
    load_config(DEMO, [lan[0], "production.api_keys=env:KEYS"])

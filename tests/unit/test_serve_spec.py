from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from serve_apps.engine.errors import (
    BootFailure,
    EngineBootError,
    EngineError,
    EngineLeftoverError,
    EngineNotRunning,
    boot_error_from_text,
)
from serve_apps.engine.spec import (
    CPU_LAUNCHER,
    FAKE_LAUNCHER,
    EngineSpec,
    boot_alias,
    command,
    environment,
    log_file,
)


def _spec(**changes: Any) -> EngineSpec:
    return EngineSpec(
        **{"model": "/m", "served_model_name": "name", "log_path": "/l/{boot_id}.log", **changes}
    )


def _after(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_command_default_is_vllms_own_module_on_loopback_with_the_boots_name() -> None:
    argv = command(_spec(), 18200, "b1")
    assert argv[:5] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", "/m"]
    assert _after(argv, "--host") == "127.0.0.1"
    assert _after(argv, "--port") == "18200"
    at = argv.index("--served-model-name")
    assert argv[at + 1 : at + 3] == ["name", boot_alias("b1")]
    assert "--speculative-config" not in argv


def test_command_of_another_build_uses_its_interpreter_and_launcher() -> None:
    argv = command(_spec(python="/b/bin/python", launcher=CPU_LAUNCHER), 1, "b")
    assert argv[:4] == ["/b/bin/python", "-m", CPU_LAUNCHER, "serve"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, ["--a-b"]),
        (False, ["--no-a-b"]),
        (None, []),
        (3, ["--a-b", "3"]),
        (0, ["--a-b", "0"]),
        (0.5, ["--a-b", "0.5"]),
        ("x y", ["--a-b", "x y"]),
        ("-x", ["--a-b=-x"]),
        (-1, ["--a-b=-1"]),
        (["-1", -2.5], ["--a-b", "-1", "-2.5"]),
        (["x", 1], ["--a-b", "x", "1"]),
        ({"k": 1}, ["--a-b", '{"k": 1}']),
    ],
)
@pytest.mark.parametrize("name", ["a_b", "a-b"])
def test_command_argument_becomes_vllms_flag(value: Any, expected: list[str], name: str) -> None:
    plain = command(_spec(), 1, "b")
    assert command(_spec(args={name: value}), 1, "b")[len(plain) :] == expected


def test_command_speculative_config_is_json() -> None:
    config = {"method": "dflash", "num_speculative_tokens": 7}
    argv = command(_spec(speculative_config=config), 1, "b")
    assert json.loads(_after(argv, "--speculative-config")) == config


@pytest.mark.parametrize(
    "name",
    [
        *("port", "served_model_name", "speculative-config", "host", "api_key", "uds"),
        # vLLM's parser knows an argument by the beginning of its name, and a dict by its keys.
        *("hos", "h", "api_k", "speculative_config.num_speculative_tokens", "spec"),
        *("host=0.0.0.0", "", "-host", "x --host", "a\nb"),
    ],
)
def test_spec_argument_of_the_supervisor_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"args.{name}"):
        _spec(args={name: 1})


@pytest.mark.parametrize("value", [["x", "--host", "0.0.0.0"], "a\0b", ["\ud800"], "\ud800"])
def test_spec_value_that_would_be_read_otherwise_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"args\.a_b"):
        _spec(args={"a_b": value})
    assert _spec(args={"a_b": "--host", "compilation_config.level": 3, "hostile": 1}).args


@pytest.mark.parametrize(("name", "value"), [("A=B", "1"), ("", "1"), ("A", "a\0b"), ("A\0", "")])
def test_spec_variable_that_no_environment_holds_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"env\."):
        _spec(env={name: value})


def test_spec_survives_json_and_refuses_unknown_keys() -> None:
    spec = _spec(speculative_config={"method": "ngram"}, args={"seed": 1}, env={"A": "1"})
    assert EngineSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    with pytest.raises(ValueError, match="bootimeout"):
        EngineSpec.from_dict({**spec.to_dict(), "bootimeout": 3})
    with pytest.raises(ValueError, match="served_model_name"):
        EngineSpec.from_dict({"model": "/m", "log_path": "/l"})


def test_environment_leaves_out_what_ray_put_into_the_replica() -> None:
    base = {"OMP_NUM_THREADS": "1", "RAY_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/h"}
    env = environment(_spec(env={"X": "1"}), "b1", base)
    assert "OMP_NUM_THREADS" not in env
    assert "RAY_JOB_ID" not in env
    assert env["CUDA_VISIBLE_DEVICES"] == "0"
    assert (env["X"], env["HOME"], env["SPECPILOT_BOOT_ID"]) == ("1", "/h", "b1")
    assert env["VLLM_SERVER_DEV_MODE"] == "1"


def test_spec_of_production_says_nothing_of_trials() -> None:
    trial = _spec(trial="study/trial-a", boots_dir="/b")

    assert not {"trial", "boots_dir"} & set(_spec().to_dict())
    assert EngineSpec.from_dict(trial.to_dict()) == trial


def test_environment_of_a_trial_says_whose_it_is_and_of_production_does_not() -> None:
    outer = {"SPECPILOT_TRIAL": "other/trial-b", "SPECPILOT_SUPERVISOR": "1:1"}
    trial = environment(_spec(trial="study/trial-a", boots_dir="/b", env=outer), "b1", outer)
    production = environment(_spec(env=outer), "b1", outer)

    assert trial["SPECPILOT_TRIAL"] == "study/trial-a"
    assert trial["SPECPILOT_BOOTS_DIR"] == "/b"
    assert "SPECPILOT_SUPERVISOR" not in trial, "the supervisor's to say"
    assert not {"SPECPILOT_TRIAL", "SPECPILOT_SUPERVISOR"} & set(production)


def test_environment_spec_wins_but_never_over_the_boot_id() -> None:
    spec = _spec(env={"OMP_NUM_THREADS": "4", "SPECPILOT_BOOT_ID": "other"})
    env = environment(spec, "b1", {"OMP_NUM_THREADS": "1", "SPECPILOT_BOOT_ID": "outer"})
    assert (env["OMP_NUM_THREADS"], env["SPECPILOT_BOOT_ID"]) == ("4", "b1")


def test_environment_of_another_build_finds_its_tools_and_none_of_our_packages() -> None:
    base = {"PYTHONPATH": "/ours", "PATH": "/usr/bin"}
    env = environment(_spec(python="/b/bin/python"), "b", base)
    assert "PYTHONPATH" not in env
    assert env["PATH"] == "/b/bin:/usr/bin"
    own = environment(_spec(python="/b/bin/python", launcher=FAKE_LAUNCHER), "b", base)
    assert (Path(own["PYTHONPATH"]) / "serve_apps").is_dir()


def test_log_file_is_one_per_boot() -> None:
    assert log_file(_spec(), "b1") == Path("/l/b1.log")


@pytest.mark.parametrize(
    "error",
    [
        EngineBootError(BootFailure.TIMEOUT, "reason", "cause", "tail"),
        EngineNotRunning("b", "detail"),
        EngineLeftoverError("b", ("1: x",)),
    ],
)
def test_error_pickles_with_its_text(error: EngineError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_boot_error_is_read_back_from_a_status_message() -> None:
    error = EngineBootError(BootFailure.OUT_OF_MEMORY, "it\nfailed", 'a "cause"', "tail")
    message = f"The deployment failed to start.\nray::Engine\n  {error}\n"
    found = boot_error_from_text(message)
    assert found is not None
    assert (found.kind, found.reason, found.cause) == (error.kind, error.reason, error.cause)


@pytest.mark.parametrize("text", ["", "no mark", "SPECPILOT_BOOT_ERROR {", "SPECPILOT_BOOT_ERROR "])
def test_boot_error_from_other_text_is_none(text: str) -> None:
    assert boot_error_from_text(text) is None

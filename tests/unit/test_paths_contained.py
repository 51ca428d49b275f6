"""Names and artifacts lead to no place outside of their folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.adapters.mlflow_registry import MlflowRegistry
from orchestrator.adapters.state import state_dir
from orchestrator.adapters.study_file import StudyFile, studies_dir
from orchestrator.adapters.watch_file import WatchFile
from orchestrator.config import CONF_DIR, TrackingConfig, load_config
from orchestrator.core.identity import study_id
from orchestrator.errors import ConfigError
from serve_apps.cpu import launch
from serve_apps.engine.spec import EngineSpec

NAMES = st.one_of(
    st.text(max_size=30),
    st.lists(st.sampled_from(["..", ".", "/", "a", "\\", "~", "%2e%2e", "model-", "$HOME"])).map(
        "".join
    ),
)
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(folder))
    monkeypatch.setattr("os.fsync", lambda _descriptor: None)  # a busy disk takes seconds for each
    return folder


def outside(tmp_path: Path, folder: Path) -> list[Path]:
    """Return what lies in the test's folder and not in this one."""
    return [path for path in tmp_path.rglob("*") if path != folder and folder not in path.parents]


@given(name=NAMES)
@SHARED
def test_study_of_any_name_has_one_folder_below_studies(name: str, tmp_path: Path) -> None:
    found = study_id(name, {})
    assert re.fullmatch(r"[a-z0-9-]+", found)
    with StudyFile(found, lambda _text: None) as file:
        file.write({})
    assert (studies_dir() / found / "state.json").is_file()
    assert outside(tmp_path, tmp_path / "state") == []


@given(name=NAMES)
@SHARED
def test_state_of_an_id_that_is_none_is_not_looked_for(name: str, tmp_path: Path) -> None:
    with StudyFile(name, lambda _text: None) as file, pytest.raises(ConfigError):
        file.read()
    assert outside(tmp_path, tmp_path / "state") == []


@given(name=NAMES.filter(lambda name: "\0" not in name))
@SHARED
def test_registered_model_that_is_accepted_has_one_folder_below_watch(
    name: str, tmp_path: Path
) -> None:
    try:
        TrackingConfig(registered_model=name)
    except ConfigError:
        return
    with WatchFile(name, lambda _text: None) as file:
        file.write({})
        assert file.path.parent.parent == tmp_path / "state" / "watch"
    assert outside(tmp_path, tmp_path / "state") == []


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
@pytest.mark.parametrize("key", ["name", "tracking.registered_model", "target.path", "load.salt"])
def test_text_that_no_file_system_holds_is_refused_by_its_key(text: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: "):
        load_config(CONF_DIR / "study" / "demo.yaml", [f"{key}={json.dumps(text)}"])


def registry(download: Callable[..., str]) -> Any:
    """Return a registry whose artifacts come from this function."""
    found: Any = MlflowRegistry.__new__(MlflowRegistry)
    found._client = SimpleNamespace(download_artifacts=download)
    return found


def version(source: str) -> Any:
    return SimpleNamespace(name="m", version="1", source=source, tags={}, run_id="ab")


@pytest.mark.parametrize(
    "source",
    [
        *("runs:/ab/../../etc", "runs:/ab/a/../../b", "runs:/ab/..", "runs:/ab//etc"),
        *("file:///etc", "runs:/../x", "models:/m/1", "runs:/ab/", "/etc", ""),
    ],
)
def test_version_whose_source_leads_out_is_refused_before_it_is_fetched(source: str) -> None:
    def download(*_: object) -> str:
        raise AssertionError("fetched")

    with pytest.raises(ConfigError, match="no serving configuration"):
        registry(download)._version(version(source))


def test_configuration_that_is_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"read": "outside"}')

    def download(_run: str, name: str, folder: str) -> str:
        path = Path(folder, name)
        path.parent.mkdir(parents=True)
        path.symlink_to(secret)
        return str(path)

    with pytest.raises(ConfigError, match="leads out"):
        registry(download)._version(version("runs:/ab/serving_config/1"))


@pytest.mark.parametrize("place", ["logs/x.log", "/var/../etc/x", "../x", "/a/b/..", "/a\0b"])
@pytest.mark.parametrize("name", ["log_path", "cache_dir"])
def test_engine_writes_in_no_place_that_leads_elsewhere(name: str, place: str) -> None:
    """A version's configuration comes from the registry, and others may write there."""
    good = {"model": "/m", "served_model_name": "m", "log_path": "/l/{boot_id}.log"}
    with pytest.raises(ValueError, match=name):
        EngineSpec.from_dict({**good, name: place})


@pytest.mark.parametrize("given", ["here", "a/../b", "/a/../b"])
def test_state_of_a_relative_folder_is_absolute(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECPILOT_STATE_DIR", given)
    assert state_dir().is_absolute()
    assert ".." not in state_dir().parts
    assert state_dir().name == Path(given).name


def test_cpu_launcher_writes_through_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder has a name that others can guess, in a place where they may write."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    missing = "no such distribution"
    genuine = SimpleNamespace(version="9", read_text=lambda _name: "Name: x\n")

    def no_version(_name: str) -> str:
        raise launch.importlib.metadata.PackageNotFoundError(missing)

    monkeypatch.setattr(launch.importlib.metadata, "version", no_version)
    monkeypatch.setattr(launch.importlib.metadata, "distribution", lambda _name: genuine)
    monkeypatch.setattr(launch, "missing_entry_points", lambda: "")
    made = launch.alias_directory()
    assert made is not None
    mine = tmp_path / "mine"
    made.rename(mine)
    made.symlink_to(mine)
    with pytest.raises(PermissionError, match=str(made)):
        launch.alias_directory()

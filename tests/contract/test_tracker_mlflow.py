"""The tracker and registry contracts, and MLflow's own limits, on an SQLite store."""

from __future__ import annotations

import json
import pickle
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow_store import EXPERIMENT, MlflowReader, open_store
from records import block, boot
from tracker_contract import RegistryContract, Store, TrackerContract

from orchestrator.adapters.mlflow_client import make_client
from orchestrator.adapters.mlflow_names import flatten_params
from orchestrator.adapters.mlflow_registry import MlflowRegistry
from orchestrator.adapters.mlflow_tracker import MlflowTracker
from orchestrator.core.failures import FailureKind
from orchestrator.core.types import BootStatus
from orchestrator.errors import ConfigError, TransientError

pytestmark = [
    # The tables take up to half a minute on two busy cores.
    pytest.mark.timeout(180),
    # MLflow 3.17 on SQLAlchemy 2.1.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with MLflow's tables, which take seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "empty.db"
    make_client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(empty_database: Path, tmp_path: Path) -> str:
    copy = tmp_path / "ml.db"
    shutil.copy(empty_database, copy)
    return f"sqlite:///{copy}"


@pytest.fixture
def store(uri: str) -> Store:
    return open_store(uri)


class TestMlflowTracker(TrackerContract):
    pass


class TestMlflowRegistry(RegistryContract):
    pass


def trial_of(store: Store) -> str:
    study = store.tracker.open_study("s1", "s", {})
    return store.tracker.open_trial(study, "t1", {})


def test_log_block_metrics_have_the_blocks_index_as_step(uri: str, store: Store) -> None:
    run = trial_of(store)
    store.tracker.log_block(run, block(0))
    store.tracker.log_block(run, block(1, output_tokens=800))

    history = MlflowReader(uri).client.get_metric_history(run, "block/output_throughput")
    assert [(point.step, point.value) for point in history] == [(0, 40.0), (1, 80.0)]


def test_log_block_invalid_block_shows_as_invalid_and_has_no_score(uri: str, store: Store) -> None:
    run = trial_of(store)
    store.tracker.log_block(run, block(0, invalid_reason="other traffic"))

    metrics = store.reader.run(run).metrics
    assert metrics["block/valid"] == 0.0
    assert "block/output_throughput" not in metrics


class CutOffError(Exception):
    """The connection broke, or the driver was killed."""


@pytest.mark.parametrize("num_calls", range(1, 20))
def test_call_that_was_cut_off_anywhere_and_is_made_again_stores_nothing_twice(
    uri: str, store: Store, num_calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost answer: the request was done, and nobody knows."""
    study = store.tracker.open_study("s1", "s", {})
    left = num_calls
    record = boot(block(0), block(1))

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **rest: Any) -> Any:
            nonlocal left
            result = real(*args, **rest)
            left -= 1
            if left == 0:
                raise CutOffError
            return result

        return call

    names = ("create_run", "log_batch", "log_text", "set_terminated", "search_runs", "get_run")
    with monkeypatch.context() as patched:
        for name in names:
            patched.setattr(MlflowClient, name, counted(getattr(MlflowClient, name)))
        with suppress(CutOffError):
            run = store.tracker.open_trial(study, "t1", {"a": 1})
            store.tracker.log_block(run, block(0))
            store.tracker.close_trial(run, record, {"a.txt": "x"})
    run = store.again.open_trial(study, "t1", {"a": 1})
    store.again.log_block(run, block(0))
    store.again.close_trial(run, record, {"a.txt": "x"})

    assert store.again.block_counts(study) == {item.block_id: 1 for item in record.blocks}
    assert store.reader.num_runs() == 2
    assert store.reader.run(run).status == "FINISHED"
    client = MlflowReader(uri).client
    for key in store.reader.run(run).metrics:
        steps = [point.step for point in client.get_metric_history(run, key)]
        assert len(steps) == len(set(steps)), key


def test_run_that_a_lost_answer_made_beside_the_one_in_use_goes_with_the_studys_end(
    uri: str, store: Store
) -> None:
    study = store.tracker.open_study("s1", "s", {})
    run = store.tracker.open_trial(study, "t1", {})
    found = MlflowReader(uri).client.get_run(run)
    again = MlflowReader(uri).client.create_run(
        found.info.experiment_id, tags=found.data.tags, start_time=found.info.start_time + 1
    )
    assert store.again.open_trial(study, "t1", {}) == run
    store.tracker.close_trial(run, boot(block(0)), {})

    store.tracker.close_study(study, succeeded=True, tags={}, metrics={}, artifacts={})

    assert store.reader.num_runs() == 2
    assert MlflowReader(uri).client.get_run(again.info.run_id).info.lifecycle_stage == "deleted"
    assert store.reader.run(run).status == "FINISHED"


def test_block_whose_points_came_without_its_name_is_stored_once(uri: str, store: Store) -> None:
    """MLflow stores a batch's points before its tags."""
    run = trial_of(store)
    begun_ms = MlflowReader(uri).client.get_run(run).info.start_time
    point = Metric("block/streams", 2.0, begun_ms, 0)
    MlflowReader(uri).client.log_batch(run, metrics=[point])
    store.tracker.log_block(run, block(0))

    assert store.reader.run(run).num_blocks == 1


def test_close_trial_all_cells_are_retrievable_by_streams_and_by_cell(
    uri: str, store: Store
) -> None:
    run = trial_of(store)
    cells = [(streams, temp) for streams in (1, 2, 4, 8, 16) for temp in (0.7, 1.0)]
    blocks = [
        block(i, streams=streams, temperature=temp, output_tokens=100 * (i + 1))
        for i, (streams, temp) in enumerate(cells)
    ]
    store.tracker.close_trial(run, boot(*blocks), {})

    metrics = store.reader.run(run).metrics
    for i, (streams, temp) in enumerate(cells):
        assert metrics[f"c{streams}_t{temp:g}/output_throughput"] == 10.0 * (i + 1)
    history = MlflowReader(uri).client.get_metric_history(run, "output_throughput/t0.7")
    assert [point.step for point in history] == [1, 2, 4, 8, 16]
    assert [point.value for point in history] == [10.0, 30.0, 50.0, 70.0, 90.0]


def test_close_trial_pools_the_valid_blocks_of_a_cell(store: Store) -> None:
    run = trial_of(store)
    blocks = [
        block(0, output_tokens=400),
        block(1, output_tokens=600, duration_s=15.0),
        block(2, output_tokens=9, invalid_reason="other traffic"),
    ]
    store.tracker.close_trial(run, boot(*blocks), {})

    metrics = store.reader.run(run).metrics
    assert metrics["c2_t0.7/output_throughput"] == pytest.approx(40.0)
    assert metrics["c2_t0.7/acceptance_length"] == pytest.approx(2.0)
    assert metrics["c2_t0.7/acceptance_rate"] == pytest.approx(0.5)
    assert metrics["c2_t0.7/step_time_s"] == pytest.approx(0.25)
    assert metrics["c2_t0.7/ttft_p50_s"] == pytest.approx(0.2)
    assert (metrics["accept/pos_0"], metrics["accept/pos_1"]) == (0.6, 0.4)
    assert (metrics["kv_cache_tokens"], metrics["kv_max_concurrency"]) == (1000.0, 2.5)
    assert metrics["boot_time_s"] == 420.0
    assert "weights_bytes" not in metrics


def test_close_trial_stores_blocks_and_facts_as_json(store: Store) -> None:
    run = trial_of(store)
    store.tracker.close_trial(run, boot(block(0)), {})

    blocks = json.loads(store.reader.artifact(run, "blocks.json"))
    facts = json.loads(store.reader.artifact(run, "engine_facts.json"))
    assert blocks[0]["block_id"] == "boot-a/c2_t0.7/0"
    assert facts["resolved_config"] == {"max_num_seqs": 16}


def test_close_trial_says_why_in_tags(store: Store) -> None:
    run = trial_of(store)
    reason = "out of memory " * 1000
    store.tracker.close_trial(run, boot(status=BootStatus.INFEASIBLE, reason=reason), {})

    tags = store.reader.run(run).tags
    assert tags["specpilot.status"] == "infeasible"
    assert tags["specpilot.reason"].startswith("out of memory")
    assert "specpilot.failure" not in tags


def test_close_trial_tags_the_kind_of_a_failure(store: Store) -> None:
    run = trial_of(store)
    ended = boot(status=BootStatus.INFEASIBLE, reason="no room")
    store.tracker.close_trial(run, replace(ended, failure=FailureKind.KV_CACHE), {})

    assert store.reader.run(run).tags["specpilot.failure"] == "kv_cache"


def test_close_study_drops_values_that_are_no_numbers(store: Store) -> None:
    study = store.tracker.open_study("s1", "s", {})
    metrics = {"gain": float("nan"), "worst": float("inf"), "best[7]": 1.0}
    store.tracker.close_study(study, succeeded=True, tags={}, metrics=metrics, artifacts={})

    assert store.reader.run(study).metrics == {"best_7_": 1.0}


def test_params_of_any_kind_are_stored_within_the_limits(store: Store) -> None:
    params: dict[str, object] = {
        "depth": 7,
        "share": 0.5,
        "on": True,
        "none": None,
        "streams": [1, 2],
        "engine": {"args": {"max_model_len": 4096}},
        "name[with]=bad@signs": "x",
        "long": "y" * 10_000,
        "k" * 400: "z",
    }
    many = {f"p{i}": i for i in range(250)}
    study = store.tracker.open_study("s1", "s", {**params, **many})

    seen = store.reader.run(study).params
    assert (seen["depth"], seen["share"], seen["on"], seen["streams"]) == (
        "7",
        "0.5",
        "true",
        "[1, 2]",
    )
    assert seen["engine.args.max_model_len"] == "4096"
    assert seen["name_with__bad_signs"] == "x"
    assert len(seen["long"]) == 6000
    assert "none" not in seen
    assert seen["p249"] == "249"
    assert len(seen) == len(flatten_params(params)) + 250


def test_study_ids_with_quotes_are_found_again(store: Store) -> None:
    for study_id in ("it's", 'a "b"', "x' or '1' = '1"):
        first = store.tracker.open_study(study_id, "s", {})
        assert store.tracker.open_study(study_id, "s", {}) == first
    with pytest.raises(ConfigError, match="quotes"):
        store.tracker.open_study("'\"", "s", {})


def test_tracker_survives_pickling_to_another_process(uri: str, store: Store) -> None:
    study = store.tracker.open_study("s1", "s", {})
    copy = pickle.loads(pickle.dumps(store.tracker))

    assert copy.open_study("s1", "s", {}) == study


def test_two_trackers_may_create_the_experiment_at_once(uri: str) -> None:
    found: list[str] = []

    def open_study(number: int) -> None:
        tracker = MlflowTracker(uri, experiment="fresh")
        found.append(tracker.open_study(f"s{number}", "s", {}))

    threads = [threading.Thread(target=open_study, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert len(found) == 4


def test_sixteen_threads_lose_no_block(uri: str, store: Store) -> None:
    study = store.tracker.open_study("s1", "s", {})
    runs = [store.tracker.open_trial(study, f"t{i}", {}) for i in range(16)]
    errors: list[TransientError] = []

    def log(run: str) -> None:
        try:
            for index in range(5):
                store.tracker.log_block(run, block(index))
        except TransientError as error:
            errors.append(error)

    threads = [threading.Thread(target=log, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)

    assert errors == []
    assert [store.reader.run(run).num_blocks for run in runs] == [5] * 16


def test_nothing_is_printed_by_mlflow(
    store: Store, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = trial_of(store)
    store.tracker.log_block(run, block(0))
    store.tracker.close_trial(run, boot(block(0)), {"a.txt": "x"})
    created = store.registry.create_version("model", run, {"a": 1}, {})
    store.registry.set_alias("model", "champion", created.version)
    store.registry.by_alias("model", "champion")

    assert capfd.readouterr() == ("", "")


def test_artifacts_of_a_local_store_lie_beside_its_database(uri: str, store: Store) -> None:
    run = trial_of(store)
    store.tracker.close_trial(run, boot(block(0)), {"a.txt": "x"})

    folder = Path(uri.removeprefix("sqlite:///")).parent
    assert len(list(folder.rglob("a.txt"))) == 1
    experiment = MlflowReader(uri).client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    assert experiment.artifact_location.startswith(folder.as_uri())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000], ids=lambda c: c[:4]
)
def test_damaged_configuration_is_one_line_that_names_its_version(
    uri: str, store: Store, content: bytes, tmp_path: Path
) -> None:
    run = store.tracker.open_study("s1", "s", {})
    store.registry.create_version(store.model, run, {"depth": 7}, {})
    store.registry.set_alias(store.model, "champion", 1)
    found = [path for path in tmp_path.rglob("config.json") if "serving_config" in str(path)]
    found[0].write_bytes(content)

    for read in (
        lambda: store.registry.by_number(store.model, 1),
        lambda: MlflowRegistry(uri).by_alias(store.model, "champion"),
    ):
        with pytest.raises(ConfigError) as caught:
            read()
        told = str(caught.value)
        assert told.startswith(f"version 1 of '{store.model}': its config.json is damaged (")
        assert f"artifacts of run {run}" in told
        assert "\n" not in told


@pytest.mark.parametrize("what", ["file", "run"])
def test_version_whose_configuration_was_deleted_is_not_taken_for_none(
    uri: str, store: Store, what: str, tmp_path: Path
) -> None:
    """A champion that seems to be none would have production ended."""
    run = store.tracker.open_study("s1", "s", {})
    store.registry.create_version(store.model, run, {"depth": 7}, {})
    store.registry.set_alias(store.model, "champion", 1)
    if what == "file":
        for path in tmp_path.rglob("serving_config"):
            shutil.rmtree(path)
    else:
        client = MlflowReader(uri).client
        client.delete_run(run)
        client._tracking_client.store._hard_delete_run(run)  # as `mlflow gc` does

    for read in (
        lambda: store.registry.by_number(store.model, 1),
        lambda: MlflowRegistry(uri).by_alias(store.model, "champion"),
    ):
        with pytest.raises(ConfigError) as caught:
            read()
        assert str(caught.value) == (
            f"version 1 of '{store.model}': its config.json is gone from the artifacts of run "
            f"{run}; put the file back there, or remove the version if it is "
            "not the champion"
        )


def test_file_that_is_no_database_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "ml.db"
    path.write_bytes(b"something else " * 500)

    with pytest.raises(ConfigError, match=r"tracking\.uri: sqlite:.* is damaged") as caught:
        MlflowRegistry(f"sqlite:///{path}")
    assert "\n" not in str(caught.value)


def test_database_that_is_cut_off_while_it_is_used_is_one_line(tmp_path: Path, uri: str) -> None:
    registry = MlflowRegistry(uri)
    assert registry.by_alias("m", "champion") is None
    path = tmp_path / "ml.db"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    with pytest.raises(TransientError) as caught:
        registry.by_alias("m", "champion")
    assert "\n" not in str(caught.value)

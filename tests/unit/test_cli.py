"""The command line, up to where it would need a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from orchestrator import cli, commands
from orchestrator.config import CONF_DIR, StudyConfig
from orchestrator.errors import ConfigError, PromotionError, StudyStopped
from orchestrator.exit_status import ExitStatus
from orchestrator.version import VERSION

PROJECT = CONF_DIR.parent
DEMO = str(CONF_DIR / "study" / "demo.yaml")
QWEN = str(CONF_DIR / "study" / "qwen38_gb10.yaml")
NOBODY = "http://127.0.0.1:1"
"""Nothing listens on port 1."""

Captured = pytest.CaptureFixture[str]


class Healthy(BaseHTTPRequestHandler):
    """Answers as a tracking server that is up."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its base says so
        del format, args


@pytest.fixture
def tracking_server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Healthy) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def inputs(target_folder: Path, draft_folder: Path, workload_file: Path) -> list[str]:
    return [
        f"target.path={target_folder}",
        f"draft.path={draft_folder}",
        f"load.workload={workload_file}",
    ]


@pytest.fixture(autouse=True)
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for state, which no refused command may make; nobody's Ray is found."""
    folder = tmp_path / "state"
    monkeypatch.setenv("SPECPILOT_STATE_DIR", str(folder))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return folder


def assert_one_error(captured: Captured, *words: str) -> None:
    output = captured.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 1, output.err
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
    assert output.out == ""


def test_plan_of_the_demo_says_what_it_would_do(
    capsys: Captured, inputs: list[str], state_dir: Path
) -> None:
    assert cli.main(["plan", DEMO, *inputs]) == 0

    output = capsys.readouterr()
    assert output.err == ""
    assert "study demo" in output.out
    assert "9 arms on vLLM 0.32.0" in output.out
    assert "MODELLED by gb10_model" in output.out
    assert not state_dir.exists()


@pytest.mark.timeout(300)  # some hundred studies are simulated, on whatever the machine has left
def test_plan_of_qwen_works_without_its_models(capsys: Captured) -> None:
    assert cli.main(["plan", QWEN]) == 0

    output = capsys.readouterr().out
    assert "17 arms" in output
    assert "not on this machine" in output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["plan", "none.yaml"], ("none.yaml", "cannot be read")),
        (["plan", DEMO, "colour=red"], ("colour", "unknown")),
        (["plan", DEMO, "load.streams=[a]"], ("load.streams[0]",)),
        (["plan", DEMO, "load.workload=none.jsonl"], ("load.workload",)),
        (["study", QWEN], ("target.path",)),
        (["status", DEMO], ("tracking.uri", "MLFLOW_TRACKING_URI")),
        (["promote", DEMO], ("tracking.uri",)),
        (["promote", DEMO, "--dry-run"], ("tracking.uri",)),
        (["rollback", DEMO], ("tracking.uri",)),
        (["sync", DEMO], ("tracking.uri",)),
        (["premises", DEMO], ("tracking.uri",)),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    args: list[str], words: tuple[str, ...], capsys: Captured, state_dir: Path
) -> None:
    assert cli.main(args) == 2

    assert_one_error(capsys, *words)
    assert not state_dir.exists()


@pytest.mark.parametrize("command", ["study", "promote", "status", "sync", "premises"])
def test_tracking_server_that_does_not_answer_is_status_2_with_its_address(
    command: str, inputs: list[str], capsys: Captured, state_dir: Path
) -> None:
    assert cli.main([command, DEMO, *inputs, f"tracking.uri={NOBODY}"]) == 2

    assert_one_error(capsys, "tracking.uri", NOBODY, "mlflow server")
    assert not state_dir.exists()


def test_ray_that_does_not_answer_is_status_2_with_its_address_and_leaves_nothing(
    inputs: list[str],
    tracking_server: str,
    capsys: Captured,
    state_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)

    assert cli.main(["study", DEMO, *inputs, f"tracking.uri={tracking_server}"]) == 2

    assert_one_error(capsys, "127.0.0.1:1", "no running Ray answers", "RAY_ADDRESS")
    assert sorted(tmp_path.rglob("*")) == before
    assert not state_dir.exists()


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (ConfigError("a", "b", "c"), 2, "error: a: b; c"),
        (PromotionError("did not start"), 1, "error: did not start"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (StudyStopped("the study was stopped after 3 boots"), 130, "error: the study was stopped"),
        (RuntimeError("bug"), 1, "Traceback"),
    ],
)
def test_status_tells_how_a_command_ended(
    error: BaseException,
    status: int,
    text: str,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ending(config: StudyConfig) -> int:
        raise error from ValueError(config.name)

    monkeypatch.setattr(commands, "plan", ending)

    assert cli.main(["plan", DEMO]) == status
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["study", "promote", "rollback", "sync", "status"])
def test_sigterm_ends_a_command_in_order(
    command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back: list[str] = []

    def terminated(_config: StudyConfig, *_rest: object, **_options: object) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            put_back.append(command)
        return 0

    monkeypatch.setattr(commands, command, terminated)

    assert cli.main([command, DEMO]) == 130
    assert put_back == [command]
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", ["decide", "measure", "clean", "workload import"])
def test_signal_ends_a_command_without_a_study_in_order(
    command: str, number: int, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back: list[str] = []

    def ended(_args: object) -> int:
        try:
            os.kill(os.getpid(), number)
        finally:
            put_back.append(command)
        return 0

    before = signal.getsignal(number)
    monkeypatch.setattr(cli.WITHOUT_STUDY[command.split()[0]], "run", ended)
    needs = {
        "decide": ["x.csv"], "measure": ["--url", NOBODY],
        "workload import": ["x", "--format", "text", "--out", "y"],
    }  # fmt: skip

    assert cli.main([*command.split(), *needs.get(command, [])]) == ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == "interrupted\n"
    assert put_back == [command]
    assert signal.getsignal(number) is before


def heeding_all_signals() -> None:
    """Undo what a background job or nohup, in which the tests may run, hands down."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_the_command_line_is_imported_is_one_line(number: int) -> None:
    code = (
        "import os, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'orchestrator.errors':\n"
        f"            os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from orchestrator.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "node"],
        cwd=PROJECT, capture_output=True, text=True, timeout=50, check=False,
        preexec_fn=heeding_all_signals,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("text", ["5", "true", "1.5", "word", "[1, 2]"])
def test_study_file_that_is_no_mapping_is_told_so(
    text: str, tmp_path: Path, capsys: Captured, state_dir: Path
) -> None:
    (tmp_path / "study.yaml").write_text(text)

    assert cli.main(["plan", str(tmp_path / "study.yaml")]) == 2
    assert_one_error(capsys, "study.yaml: is not a mapping; write keys and values")
    assert not state_dir.exists()


def _nothing_promoted(_config: StudyConfig, **_options: object) -> int:
    return ExitStatus.NO_GO


def test_nothing_promoted_is_status_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "study", _nothing_promoted)

    assert cli.main(["study", DEMO]) == 3


def test_promote_and_rollback_hand_over_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int | None, dict[str, bool]]] = []

    def record(config: StudyConfig, number: int | None, **options: bool) -> int:
        asked.append((number, options))
        return 0

    monkeypatch.setattr(commands, "promote", record)
    monkeypatch.setattr(commands, "rollback", record)

    assert cli.main(["promote", DEMO, "--registered-version", "3", "--allow-outage"]) == 0
    assert cli.main(["promote", DEMO, "--dry-run"]) == 0
    assert cli.main(["rollback", DEMO]) == 0
    assert cli.main(["rollback", DEMO, "--to", "2", "--allow-outage"]) == 0
    assert asked == [
        (3, {"allow_outage": True, "dry_run": False}),
        (None, {"allow_outage": False, "dry_run": True}),
        (None, {"allow_outage": False}),
        (2, {"allow_outage": True}),
    ]


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["fly"],
        ["plan"],
        ["promote", DEMO, "--registered-version", "x"],
        ["rollback", DEMO, "--to", "x"],
        ["rollback", DEMO, "--to", "0"],
        ["rollback", DEMO, "--to", "-1"],
        ["promote", DEMO, "--registered-version", "9" * 5000],
        ["promote", DEMO, "--registered-version", "\N{SUPERSCRIPT TWO}"],
        ["promote", DEMO, "--dry-run", "load.block_s=3", "--fly"],
        ["node", "load.block_s=3"],
        ["study", DEMO, "--allow-outage"],
    ],
)
def test_call_that_is_no_command_is_status_2_and_shows_the_usage(
    args: list[str], capsys: Captured
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(args)

    assert caught.value.code == 2
    assert "usage: python -m orchestrator" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        ["study", DEMO, "a=1", "--resume", "x", "b=2"],
        ["study", "--resume", "x", DEMO, "a=1", "b=2"],
        ["study", DEMO, "--resume", "x", "a=1", "b=2"],
        ["promote", DEMO, "--dry-run", "a=1", "--registered-version", "3", "b=2"],
        ["rollback", DEMO, "--to", "3", "a=1", "b=2"],
    ],
    ids=" ".join,
)
def test_overrides_are_taken_wherever_they_stand(
    typed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[list[str]] = []

    def load(_file: Path, overrides: list[str]) -> StudyConfig:
        taken.append(list(overrides))
        raise ConfigError("a", "b", "c")

    monkeypatch.setattr(cli, "load_config", load)

    assert cli.main(typed) == 2
    assert taken == [["a=1", "b=2"]]


def test_help_teaches_how_a_study_is_submitted_and_what_a_status_means(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])

    assert caught.value.code == 0
    text = capsys.readouterr().out
    for words in (
        "ray job submit --working-dir . -- python -m orchestrator study",
        "exit status: 0 done; 2 bad input",
        "3 finished, nothing was promoted",
        "premises, a conclusion is stale",
        "MLFLOW_TRACKING_URI",
        *cli.COMMANDS,
    ):
        assert words in text


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_each_command_says_what_it_does(command: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])

    assert cli.COMMANDS[command][:30] in " ".join(capsys.readouterr().out.split())


def test_version_is_the_packages(capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])

    assert capsys.readouterr().out.strip() == VERSION


def test_module_runs_and_refuses_bad_input_without_importing_ray(tmp_path: Path) -> None:
    """A typing error costs a second, not the imports of Ray and MLflow."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "orchestrator", "plan", str(tmp_path / "none")],
        cwd=PROJECT, env=dict(os.environ), capture_output=True, text=True, timeout=50, check=False,
    )  # fmt: skip

    said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 2
    assert len(said) == 1
    assert said[0].startswith("error: ")
    assert " ray\n" not in done.stderr
    assert " orchestrator.config\n" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    "arguments", [["node"], ["workload", "show", str(CONF_DIR / "workload" / "code.jsonl")]]
)
def test_output_that_has_no_room_is_told_in_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *arguments],
            cwd=PROJECT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device\n"


def test_plan_says_what_a_route_for_other_machines_needs(
    capsys: Captured, inputs: list[str]
) -> None:
    lan = "production.http_host=10.0.0.10"
    assert cli.main(["plan", DEMO, *inputs, lan]) == 2
    assert_one_error(capsys, "production.api_keys", "10.0.0.10")

    assert cli.main(["plan", DEMO, *inputs, lan, "production.api_keys=file:/etc/keys"]) == 0
    said = capsys.readouterr().out
    assert "a key of file:/etc/keys" in said
    assert "RAY_AUTH_MODE=token" in said

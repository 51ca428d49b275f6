"""``measure`` when it cannot measure: faults of the server, bad input, an interrupt."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from measure_calls import (
    DEPTH,
    KEY,
    PACE,
    QUICK,
    Capture,
    causes,
    measure,
    refusal,
    write_workload,
)

from orchestrator.cli import main
from orchestrator.fakes.openai import (
    Act,
    EngineSettings,
    Script,
    SseServer,
    engine_server,
    failure,
    serving,
    text,
)
from serve_apps.engine.sockets import free_port

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[SseServer]:
    with serving(engine_server(EngineSettings(**PACE, num_speculative_tokens=DEPTH))) as running:
        yield running


def test_server_that_dies_in_the_middle_is_an_invalid_block(capsys: Capture) -> None:
    server = engine_server(EngineSettings(**PACE, num_speculative_tokens=DEPTH))
    context: AbstractContextManager[SseServer] = serving(server)
    answer = server.behaviour

    def dying(number: int, body: dict[str, Any]) -> Script:
        if number == 20:
            threading.Thread(target=context.__exit__, args=(None, None, None)).start()
        return answer(number, body)

    server.behaviour = dying
    context.__enter__()

    status, record = measure(capsys, server.url, "--duration", "50")

    assert status == 1
    assert causes(record) == {"counters", "requests"}
    assert record["block"]["num_lost_streams"] >= 1
    assert record["block"]["audit"]["client_total"] > 0


def test_server_that_resets_now_and_then_is_counted(server: SseServer, capsys: Capture) -> None:
    """B19."""
    answer = server.behaviour
    reset = Script(parts=(text("a"), Act.RESET))
    server.behaviour = lambda number, body: reset if number == 18 else answer(number, body)

    _, record = measure(capsys, server.url, "--endpoint", "completions", "--tokens", "600",
                        "--duration", "50")  # fmt: skip

    assert causes(record) == set()
    assert record["block"]["num_failed"] == 1
    assert record["block"]["errors"] != {}


def test_answer_of_plain_json_keeps_the_server_s_message(
    server: SseServer, capsys: Capture
) -> None:
    body = b'{"error": {"message": "model is\\nloading"}}'
    server.behaviour = lambda _number, _body: Script(parts=(body,), content_type="application/json")

    assert main(["measure", "--url", server.url, *QUICK]) == 1
    out = capsys.readouterr().out
    assert "no event in an answer of application/json: model is loading" in out


def test_key_is_sent_and_never_shown(
    server: SseServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", KEY)
    _, record = measure(capsys, server.url, "--api-key-env", "MINE", "--requests")
    assert server.headers[-1]["Authorization"] == f"Bearer {KEY}"
    assert "sk-planted" not in json.dumps(record)

    server.behaviour = lambda _number, _body: failure(401, f"Incorrect API key provided: {KEY}")
    status, record = measure(capsys, server.url, "--api-key-env", "MINE", "--requests")
    assert status == 1
    assert "Incorrect API key provided: (secret)" in json.dumps(record)
    assert "sk-planted" not in json.dumps(record)

    main(["measure", "--url", server.url, *QUICK, "--api-key-env", "MINE"])
    assert "sk-planted" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--concurrency", "0"], "--concurrency: 0 is out of range"),
        (["--concurrency", "-3"], "--concurrency: -3"),
        (["--concurrency", "1000000"], "--concurrency: 1000000"),
        (["--request-rate", "0"], "--request-rate: 0"),
        (["--request-rate", "-1"], "--request-rate: -1"),
        (["--request-rate", "nan"], "--request-rate: nan"),
        (["--request-rate", "inf"], "--request-rate: inf"),
        (["--concurrency", "16385"], "--concurrency: 16385 is out of range"),
        (["--request-rate", "1", "--max-in-flight", "16385"], "--max-in-flight: 16385"),
        (["--request-rate", "1", "--max-in-flight", "0"], "--max-in-flight: 0"),
        (["--max-in-flight", "9"], "--max-in-flight: there is no --request-rate"),
        (["--workload", "poems"], "--workload: there is no workload 'poems'"),
        (["--workload", "/no/such.jsonl"], "no workload"),
        (["--duration", "0"], "--duration: 0"),
        (["--duration", "inf"], "--duration: inf"),
        (["--duration", "nan"], "--duration: nan"),
        (["--tokens", "0"], "--tokens: 0"),
        (["--max-tokens", "1"], "--max-tokens: 1"),
        (["--timeout", "-1"], "--timeout: -1"),
        (["--stall-timeout", "inf"], "--stall-timeout: inf"),
        (["--temperature", "2.1"], "--temperature: 2.1"),
        (["--temperature", "nan"], "--temperature: nan"),
        (["--top-p", "0"], "--top-p: 0"),
        (["--top-k", "-1"], "--top-k: -1"),
        (["--top-k", "5", "--dialect", "openai"], "--dialect: top_k"),
        (["--endpoint", "completions", "--workload", "tools"], "use --endpoint chat"),
        (["--client-default", "/no/such"], "--client-default: /no/such is no folder"),
        (["--client-default", ".", "--top-k", "1"], "--client-default: --top-k is stated"),
        (["--api-key-env", "NO_SUCH_NAME"], "--api-key-env: the variable NO_SUCH_NAME"),
        (["--metrics-url", "host:1/metrics"], "write it as http://host:port/metrics"),
        (["--metrics-url", "http://127.0.0.1:1/metrics"], "--metrics-url: http://127.0.0.1:1"),
        (["--requests"], "--requests: belongs to the record; add --json"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_sent(
    server: SseServer, capsys: Capture, arguments: list[str], says: str
) -> None:
    assert says in refusal(capsys, "--url", server.url, *arguments)
    assert server.num_requests == 0


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--url"],
        ["--url", "http://x", "--concurrency", "two"],
        ["--url", "http://x", "--concurrency", "1.5"],
        ["--url", "http://x", "--concurrency", "2", "--request-rate", "1"],
        ["--url", "http://x", "--temperature", "warm"],
        ["--url", "http://x", "--endpoint", "embeddings"],
        ["--url", "http://x", "--seed", "x"],
        ["--url", "http://x", "extra"],
    ],
)
def test_usage_error_is_status_2(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["measure", *arguments])

    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("url", ["host:8000", "http://[::1", "http://a..b", "http://h:port", ""])
def test_url_that_is_none_is_bad_input(capsys: Capture, url: str) -> None:
    assert "http://host:port/v1" in refusal(capsys, "--url", url, "--model", "m")


def test_nobody_at_the_address_is_bad_input(capsys: Capture) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"

    assert "start the server" in refusal(capsys, "--url", url)


def test_nobody_at_the_address_of_a_named_model_is_an_invalid_block(capsys: Capture) -> None:
    status, record = measure(capsys, f"http://127.0.0.1:{free_port()}", "--model", "m")

    assert status == 1
    assert causes(record) == {"requests"}


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\r", f"{KEY}\u2028", f"{KEY} "])
def test_key_with_a_line_break_is_refused_in_one_line(
    server: SseServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("MINE", key)

    line = refusal(capsys, "--url", server.url, "--api-key-env", "MINE")

    assert line.startswith("error: --api-key-env: the key has a line break")
    assert "planted" not in line
    assert server.num_requests == 0


def test_generation_config_with_min_p_is_refused(
    server: SseServer, capsys: Capture, tmp_path: Path
) -> None:
    """A19: min_p is only a warning upstream, and has no effect under speculation."""
    (tmp_path / "generation_config.json").write_text('{"min_p": 0.05}')

    line = refusal(capsys, "--url", server.url, "--client-default", str(tmp_path))

    assert "min_p is 0.05" in line


def test_prompt_that_the_dialect_cannot_send_is_refused_before_any_is(
    server: SseServer, capsys: Capture, tmp_path: Path
) -> None:
    thinking = {"chat_template_kwargs": {"enable_thinking": False}}
    messages = [{"role": "user", "content": "hi"}]
    path = write_workload(
        tmp_path, *({"prompt": f"p{i}"} for i in range(60)), {"messages": messages} | thinking
    )

    line = refusal(capsys, "--url", server.url, "--workload", path, "--dialect", "openai")

    assert "--dialect: extra.chat_template_kwargs" in line
    assert server.num_requests == 0


def test_measure_needs_neither_ray_nor_mlflow(server: SseServer) -> None:
    code = (
        "import sys\n"
        "from orchestrator.cli import main\n"
        "main(sys.argv[1:])\n"
        "print(*sorted({'ray', 'mlflow', 'vllm', 'torch', 'transformers'} & set(sys.modules)),\n"
        "      file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "measure", "--url", server.url, *QUICK, "--json"],
        cwd=PROJECT, capture_output=True, text=True, timeout=50, check=True,
    )  # fmt: skip

    assert done.stderr.strip() == ""
    assert causes(json.loads(done.stdout)) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_measurement_that_is_interrupted_ends_with_one_line(
    server: SseServer, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "measure", "--url", server.url, "--duration", "50"],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # Whoever started the tests in the background had it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 40
        while server.num_requests < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        out, err = process.communicate(timeout=15)

    assert (out, err) == ("", "interrupted\n")
    assert process.returncode == 130


def test_model_that_the_server_does_not_offer_is_refused_before_any_request(
    capsys: Capture,
) -> None:
    with serving(engine_server(EngineSettings(models=("tiny",)))) as server:
        text = refusal(capsys, "--url", server.url, "--model", "tinny")

    assert "--model: the server does not offer 'tinny'; use one of tiny" in text
    assert server.num_requests == 0

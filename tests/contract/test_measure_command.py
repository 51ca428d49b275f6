"""``measure`` as people run it: against the shipped server, in this process and in one of its own.

Whether this machine was too busy for a valid block decides no test: the status is the record's.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from orchestrator.cli import main
from orchestrator.fakes.openai import (
    Act,
    Engine,
    EngineSettings,
    Script,
    SseServer,
    engine_server,
    failure,
    free_port,
    serving,
    text,
)

PROJECT = Path(__file__).resolve().parents[2]
DEPTH = 3
PACE: dict[str, Any] = {"ttft_s": 0.004, "gap_s": 0.002, "tokens_per_chunk": 3}
QUICK = ("--duration", "0.2", "--max-tokens", "16")
KEY = "sk-planted-0123456789"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def server() -> Iterator[SseServer]:
    with serving(engine_server(EngineSettings(**PACE, num_speculative_tokens=DEPTH))) as running:
        yield running


@contextmanager
def behind(server: SseServer, prefix: str = "", *, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the same answers under a path, without counters: a proxy, or an engine of another."""
    app = web.Application()
    app.router.add_post(f"{prefix}/v1/completions", server.handle)
    app.router.add_post(f"{prefix}/v1/chat/completions", server.handle)
    app.router.add_get(f"{prefix}/v1/models", server.models)
    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def run() -> None:
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        await web.TCPSite(runner, host, 0).start()
        port = runner.addresses[0][1]
        started.set_result((port, lambda: loop.call_soon_threadsafe(ended.set)))
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    port, end = started.result(10)
    shown = f"[{host}]" if ":" in host else host
    try:
        yield f"http://{shown}:{port}{prefix}"
    finally:
        end()
        thread.join(10)


def measure(capsys: Capture, url: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the record."""
    load = () if "--request-rate" in arguments else ("--concurrency", "2")
    status = main(["measure", "--url", url, *QUICK, *load, *arguments, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    record: dict[str, Any] = json.loads(out)
    assert status == (0 if record["valid"] else 1)
    return status, record


def refusal(capsys: Capture, *arguments: str) -> str:
    """Return the one line with which bad input ends."""
    assert main(["measure", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: --")
    assert err.count("\n") == 1
    return err


def causes(record: dict[str, Any]) -> set[str]:
    """Return the reasons that no lag of this machine can have made."""
    return {
        item["kind"]
        for item in record["invalid"]
        if item["kind"] != "concurrency" and not item["detail"].startswith("within the window")
    }


def test_record_has_the_documented_keys_and_the_engine_s_tokens(
    server: SseServer, capsys: Capture
) -> None:
    _, record = measure(capsys, f"{server.url}/v1")

    assert list(record) == [
        *("schema", "valid", "invalid", "url", "model", "workload", "sampling", "load"),
        *("measured", "acceptance_note", "warnings", "block"),
    ]
    assert record["schema"] == "specpilot.measure/1"
    assert causes(record) == set()
    assert (record["url"], record["model"]) == (server.url, "fake")
    assert record["workload"].keys() == {"name", "digest", "num_prompts", "categories"}
    assert (record["acceptance_note"], record["warnings"]) == (None, [])
    assert list(record["measured"]) == [
        *("output_throughput", "stream_throughput", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s"),
        *("tpot_p50_s", "tpot_p95_s", "acceptance_length", "acceptance_rate"),
        *("acceptance_rate_per_position", "step_time_s", "effective_concurrency"),
    ]
    assert 1 < record["measured"]["acceptance_length"] <= DEPTH + 1
    audit = record["block"]["audit"]
    assert audit["engine_total"] == audit["client_total"] > 0
    assert record["block"]["cell"]["streams"] == 2
    assert "requests" not in record


def test_record_with_requests_has_every_one(server: SseServer, capsys: Capture) -> None:
    _, record = measure(capsys, server.url, "--requests")

    requests = record["requests"]
    assert len(requests) == record["block"]["num_requests"] > 2
    assert (
        sum(item["output_tokens"] for item in requests)
        == (record["block"]["audit"]["client_total"])
    )
    assert all(item["text"] and item["token_source"] == "usage" for item in requests)


def test_table_names_every_quantity_and_the_verdict(server: SseServer, capsys: Capture) -> None:
    status = main(["measure", "--url", server.url, *QUICK])

    lines = capsys.readouterr().out.splitlines()
    names = [line.split("  ")[0] for line in lines]
    assert names[:15] == [
        *("server", "load", "sampling", "window", "output throughput", "stream throughput"),
        *("ttft", "tpot", "gap between chunks", "acceptance length", "accepted by position"),
        *("step time", "requests", "tokens", "running at a time"),
    ]
    assert ("valid" in lines) == (status == 0)


def test_counters_that_live_elsewhere_are_read_there(server: SseServer, capsys: Capture) -> None:
    with behind(server) as url:
        _, record = measure(capsys, url, "--metrics-url", f"{server.url}/metrics")

    assert causes(record) == set()
    assert record["measured"]["acceptance_length"] > 1
    audit = record["block"]["audit"]
    assert audit["engine_total"] == audit["client_total"]


def test_server_without_counters_has_no_acceptance_and_says_why(
    server: SseServer, capsys: Capture
) -> None:
    """C15: what cannot be read is not available, and never 0."""
    with behind(server) as url:
        status, record = measure(capsys, url)

    assert status == 0
    measured = record["measured"]
    for name in ("acceptance_length", "acceptance_rate", "step_time_s", "effective_concurrency"):
        assert measured[name] is None
    assert measured["output_throughput"] > 0
    assert record["acceptance_note"] == (
        f"{url}/metrics answers HTTP 404; --metrics-url names another place"
    )
    assert record["block"]["audit"]["engine_total"] is None


def test_engine_that_does_not_speculate_has_no_acceptance_and_says_why(capsys: Capture) -> None:
    with serving(engine_server(EngineSettings(**PACE))) as server:
        _, record = measure(capsys, server.url)

    assert record["measured"]["acceptance_length"] is None
    assert record["measured"]["step_time_s"] > 0
    assert record["acceptance_note"] == "the engine drafted nothing in the window"


def test_engine_that_restarts_has_no_acceptance_for_another_reason(
    server: SseServer, capsys: Capture
) -> None:
    answer = server.behaviour

    def restarting(number: int, body: dict[str, Any]) -> Script:
        if number == 6:
            server.engine.restart()
        return answer(number, body)

    server.behaviour = restarting

    status, record = measure(capsys, server.url)

    assert status == 1
    assert "restarted" in causes(record)
    assert record["acceptance_note"] == "there are no counters of this window"


@pytest.mark.parametrize(
    ("prefix", "ending"), [("", "/"), ("", "/v1/"), ("/team/llm", ""), ("/team/llm", "/v1")]
)
def test_url_is_understood_however_it_is_written(
    server: SseServer, capsys: Capture, prefix: str, ending: str
) -> None:
    with behind(server, prefix) as url:
        status, record = measure(capsys, url + ending)

    assert (status, record["url"]) == (0, url)
    assert set(server.paths) == {f"{prefix}/v1/chat/completions"}


def test_url_of_ipv6_is_asked(server: SseServer, capsys: Capture) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with behind(server, host="::1") as url:
        assert url.startswith("http://[::1]:")
        assert measure(capsys, url)[0] == 0


def test_proxies_of_the_environment_are_not_asked(
    server: SseServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

    _, record = measure(capsys, server.url)

    assert causes(record) == set()
    assert record["block"]["num_failed"] == 0


# What is asked


def test_arrivals_at_a_rate_are_an_open_loop(server: SseServer, capsys: Capture) -> None:
    _, record = measure(capsys, server.url, "--request-rate", "60", "--duration", "0.4")

    cell = record["block"]["cell"]
    assert (cell["request_rate"], cell["streams"]) == (60.0, 256)
    assert causes(record) == set()


def test_token_budget_ends_the_window_before_its_time(server: SseServer, capsys: Capture) -> None:
    _, record = measure(capsys, server.url, "--tokens", "64", "--duration", "50")

    assert record["block"]["audit"]["client_total"] >= 64
    assert record["block"]["duration_s"] < 40
    assert record["load"]["block_tokens"] == 64


def test_strict_server_gets_only_what_openai_knows(capsys: Capture) -> None:
    settings = EngineSettings(**PACE, is_strict=True)
    with serving(engine_server(settings)) as server:
        _, record = measure(capsys, server.url, "--dialect", "openai")
        assert causes(record) == set()
        assert record["block"]["num_failed"] == 0
        assert "top_k" not in record["sampling"]

        status, record = measure(capsys, server.url)

    assert status == 1
    assert causes(record) == {"requests"}
    assert "Unrecognized request argument" in record["invalid"][0]["detail"]


def test_answers_that_may_end_by_themselves_are_not_truncated(capsys: Capture) -> None:
    """B06: actual tokens and reasons are recorded."""
    with serving(engine_server(EngineSettings(**PACE, eos_after=5))) as server:
        _, record = measure(capsys, server.url, "--stop-at-eos", "--requests")

    assert causes(record) == set()
    assert record["sampling"]["ignore_eos"] is False
    ended = [item for item in record["requests"] if item["finish_reason"] == "stop"]
    assert {item["output_tokens"] for item in ended} == {5}
    assert record["block"]["finish_reasons"]["stop"] == len(ended) > 0


def test_client_default_is_the_model_s_own_sampling_in_full(
    server: SseServer, capsys: Capture, tmp_path: Path
) -> None:
    """H09: a named profile, resolved, written into every request and into the record."""
    given = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
    folder = tmp_path / "qwen"
    folder.mkdir()
    (folder / "generation_config.json").write_text(json.dumps(given))

    _, record = measure(capsys, server.url, "--client-default", str(folder))

    assert record["sampling"].items() >= {**given, "profile": "client default of qwen"}.items()
    assert all(body.items() >= given.items() for body in server.bodies)


def test_stated_sampling_is_in_every_request(server: SseServer, capsys: Capture) -> None:
    options = (
        "--temperature",
        "0.7",
        "--top-p",
        "0.9",
        "--top-k",
        "5",
        "--endpoint",
        "completions",
    )

    _, record = measure(capsys, server.url, *options, "--no-salt")

    expected = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "ignore_eos": True}
    assert all(body.items() >= expected.items() for body in server.bodies)
    assert set(server.paths) == {"/v1/completions"}
    assert record["sampling"]["profile"] == "explicit"
    assert (record["load"]["salt"], record["load"]["endpoint"]) == (False, "completions")


@pytest.mark.parametrize("name", ["chat", "tools"])
def test_workload_by_name_is_sent(server: SseServer, capsys: Capture, name: str) -> None:
    _, record = measure(capsys, server.url, "--workload", name)

    assert record["workload"]["name"] == name
    assert causes(record) == set()


def write_workload(folder: Path, *lines: dict[str, Any]) -> str:
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_workload_by_path_is_sent(server: SseServer, capsys: Capture, tmp_path: Path) -> None:
    path = write_workload(tmp_path, {"prompt": "say alpha"}, {"prompt": "say beta"})

    _, record = measure(capsys, server.url, "--workload", path)

    assert (record["workload"]["name"], record["workload"]["num_prompts"]) == ("mine", 2)
    sent = {body["messages"][0]["content"].split("\n")[1] for body in server.bodies}
    assert sent == {"say alpha", "say beta"}


def test_workload_of_random_tokens_is_measured_with_a_warning(
    server: SseServer, capsys: Capture, tmp_path: Path
) -> None:
    """B07: 2 % acceptance where chat gives 16 %; of another's server nobody knows if it drafts."""
    rng = random.Random(1)
    lines = [
        {"prompt": " ".join(f"{rng.randrange(16**6):x}" for _ in range(400))} for _ in range(20)
    ]
    path = write_workload(tmp_path, *lines)

    _, record = measure(capsys, server.url, "--workload", path)
    main(["measure", "--url", server.url, *QUICK, "--workload", path])
    table = capsys.readouterr().out

    (warning,) = record["warnings"]
    assert "look like random tokens" in warning
    assert f"warning: {warning}" in table.splitlines()
    assert causes(record) == set()


class PoorDraft(Engine):
    """Accepts one first position in twenty."""

    def generate(self, tokens: int, *, is_first: bool) -> None:
        self.counters.generation_tokens += tokens
        if is_first:
            return
        for _ in range(tokens):
            hit = self.counters.generation_tokens % 20 == 0
            self.counters.num_drafts += 1
            self.counters.num_draft_tokens += DEPTH
            self.counters.accepted_per_pos[0] += hit


def test_draft_that_hardly_accepts_its_first_position_is_doubted(capsys: Capture) -> None:
    """A16: "draft broken?", and not that speculation does not help."""
    engine = PoorDraft(EngineSettings(**PACE, num_speculative_tokens=DEPTH))
    server = SseServer(engine=engine, behaviour=lambda _number, body: engine.answer(body))
    with serving(server):
        engine.counters.generation_tokens = 1
        _, record = measure(capsys, server.url, "--tokens", "600", "--duration", "50")

    assert any("draft broken?" in warning for warning in record["warnings"])


# What goes wrong at the server


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


# Bad input


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
        (["--request-rate", "1", "--max-in-flight", "0"], "--max-in-flight: 0"),
        (["--max-in-flight", "9"], "--max-in-flight: there is no --request-rate"),
        (["--workload", "poems"], "there is no workload 'poems'"),
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
    assert says in says_of_workload(capsys, server.url, arguments)
    assert server.num_requests == 0


def says_of_workload(capsys: Capture, url: str, arguments: list[str]) -> str:
    assert main(["measure", "--url", url, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


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


# In a process of its own


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


def test_interrupt_from_the_keyboard_is_one_line(server: SseServer) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "measure", "--url", server.url, "--duration", "50"],
        cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 40
        while server.num_requests < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)

    assert (out, err) == ("", "error: interrupted; nothing was measured\n")
    assert process.returncode == 1

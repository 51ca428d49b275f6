"""``measure`` as people run it, against the shipped server: what it asks, prints and records."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from measure_calls import (
    DEPTH,
    PACE,
    QUICK,
    Capture,
    behind,
    causes,
    measure,
    write_workload,
)

from orchestrator.cli import main
from orchestrator.fakes.openai import (
    Engine,
    EngineSettings,
    Script,
    SseServer,
    engine_server,
    failure,
    one_fault,
    serving,
)
from serve_apps.engine.sockets import free_port


@pytest.fixture
def server() -> Iterator[SseServer]:
    with serving(engine_server(EngineSettings(**PACE, num_speculative_tokens=DEPTH))) as running:
        yield running


def test_record_has_the_documented_keys_and_the_engine_s_tokens(
    server: SseServer, capsys: Capture
) -> None:
    _, record = measure(capsys, f"{server.url}/v1")

    assert record.keys() == {
        *("schema", "valid", "invalid", "url", "model", "workload", "sampling", "load"),
        *("measured", "acceptance_note", "warnings", "block"),
    }
    assert record["schema"] == "specpilot.measure/1"
    assert causes(record) == set()
    assert (record["url"], record["model"]) == (server.url, "fake")
    assert record["workload"].keys() == {"name", "digest", "num_prompts", "categories"}
    assert (record["acceptance_note"], record["warnings"]) == (None, [])
    assert record["measured"].keys() == {
        *("output_throughput", "stream_throughput", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s"),
        *("tpot_p50_s", "tpot_p95_s", "acceptance_length", "acceptance_rate"),
        *("acceptance_rate_per_position", "step_time_s", "effective_concurrency"),
    }
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
        if number == 3:
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
        _, record = measure(capsys, url + ending)

    assert (causes(record), record["url"]) == (set(), url)
    assert set(server.paths) == {f"{prefix}/v1/chat/completions"}


def test_url_of_ipv6_is_asked(server: SseServer, capsys: Capture) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with behind(server, host="::1") as url:
        assert url.startswith("http://[::1]:")
        assert causes(measure(capsys, url)[1]) == set()


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


def test_requests_that_fail_leave_a_doubt_and_are_counted(
    server: SseServer, capsys: Capture
) -> None:
    """The longest prompts of a workload may be the ones that a small context refuses."""
    server.behaviour = one_fault(
        9, failure(400, "too long"), lambda body: server.engine.answer(body)
    )

    _, record = measure(capsys, server.url)

    assert record["block"]["num_failed"] == 1
    if record["valid"]:
        assert "too long; if those are the longest prompts" in record["warnings"][0]

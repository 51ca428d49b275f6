"""The load benchmark: what it reads of each tool, its error arithmetic and its tables."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from infra.bench.load.__main__ import write_document
from infra.bench.load.cells import Load, matrix, only_start
from infra.bench.load.machine import cpu_model
from infra.bench.load.processes import Cost, ToolError, run
from infra.bench.load.reports import (
    Figure,
    Report,
    ReportError,
    read_aiperf,
    read_guidellm,
    read_report,
    read_vllm,
)
from infra.bench.load.run import Failure, Results, Run, Start
from infra.bench.load.server import STAGGER_STEPS, staggered
from infra.bench.load.table import (
    aligned,
    cpu_ratio,
    findings,
    report_lines,
    worse,
)
from infra.bench.load.tools import BARE, OURS, TOOLS, Order
from infra.bench.load.truth import Answered, Errors, TruthError, compare, read_truth
from orchestrator.fakes.openai import Chunk, Engine, EngineSettings, Script

CELL = Load(streams=16, tokens_per_chunk=4, gap_s=0.04, output_tokens=64, num_requests=208)

VLLM = """{"date": "20261130-004339", "backend": "openai-chat", "num_prompts": 3,
 "max_concurrency": 8, "duration": 0.41, "completed": 2, "failed": 1, "total_input_tokens": 10,
 "total_output_tokens": 128, "output_throughput": 312.2, "input_lens": [5, 5, 5],
 "output_lens": [64, 64, 0], "ttfts": [0.0693, 0.0674, 0.0],
 "itls": [[0.0196, 0.0251], [0.0160, 0.0185], []], "errors": ["", "", "reset"],
 "mean_ttft_ms": 68.35, "median_ttft_ms": 68.35, "p50_ttft_ms": 68.35, "p99_ttft_ms": 69.28,
 "mean_tpot_ms": 4.79, "p50_tpot_ms": 4.82, "mean_itl_ms": 18.78, "p50_itl_ms": 20.02}"""

GUIDELLM = """{"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [{"metrics": {
 "request_totals": {"successful": 40, "errored": 0, "incomplete": 0, "total": 40},
 "output_token_count": {"successful": {"mean": 64.0, "count": 40, "total_sum": 2560.0}},
 "time_to_first_token_ms": {"successful": {"mean": 69.3451, "median": 69.16, "count": 40,
   "percentiles": {"p50": 69.16, "p99": 108.8514}}},
 "time_per_output_token_ms": {"successful": {"mean": 5.7702, "count": 2560}},
 "inter_token_latency_ms": {"successful": {"mean": 4.7611, "count": 2520}},
 "output_tokens_per_second": {"successful": {"mean": 1288.498, "count": 2560}}}}]}"""

AIPERF = """{"schema_version": "1.4", "aiperf_version": "0.13.0",
 "request_count": {"unit": "requests", "avg": 2.0},
 "time_to_first_token": {"unit": "ms", "avg": 65.43, "p50": 64.69, "p99": 77.5, "count": 2},
 "inter_token_latency": {"unit": "ms", "avg": 4.836, "p50": 4.8, "count": 2},
 "inter_chunk_latency": {"unit": "ms", "avg": 20.31, "p50": 19.98, "count": 30},
 "output_token_throughput": {"unit": "tokens/sec", "avg": 1335.37},
 "total_output_tokens": {"unit": "tokens", "avg": 128.0}}"""

AIPERF_RECORDS = """\
{"metadata":{"session_num":1,"x_request_id":"ffca674c","benchmark_phase":"profiling"},\
"metrics":{"time_to_first_token":{"value":70.023072,"unit":"ms"},\
"output_sequence_length":{"value":64,"unit":"tokens"}},"error":null}
{"metadata":{"session_num":2,"x_request_id":"956de791","benchmark_phase":"profiling"},\
"metrics":{"error_isl":{"value":64,"unit":"tokens"}},"error":{"code":500}}
"""

TRUTH = """\
{"request_id": "a", "received_s": 10.0, "chunk_sent_s": [10.05, 10.09, 10.13], \
"output_tokens": 10, "prompt_tokens": 9}
{"request_id": "b", "received_s": 10.1, "chunk_sent_s": [10.17, 10.21, 10.25], \
"output_tokens": 10, "prompt_tokens": 9}
{"request_id": "refused", "received_s": 10.1, "chunk_sent_s": [], "output_tokens": 0, \
"prompt_tokens": 9}
"""


def made_report(**changes: object) -> Report:
    fields: dict[str, object] = {
        "num_requests": 2,
        "output_tokens": 20,
        "output_throughput": 80.0,
        "ttft_p50_s": 0.06,
        "ttft_p99_s": 0.07,
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


def figure(value: Figure | None) -> tuple[str, object]:
    assert value is not None
    return value.name, value.value_s


def made_errors(**changes: object) -> Errors:
    fields: dict[str, object] = {
        "requests": 0,
        "tokens": 0,
        "throughput": 0.0,
        "ttft_p50_s": 0.0004,
        "ttft_p99_s": 0.0008,
        "ttft_each_p99_s": None,
        "chunk_gap": None,
        "token_time": None,
    }
    return Errors(**(fields | changes))  # type: ignore[arg-type]


def made_run(tool: str = OURS, *, loop_cpu_s: float | None = None, **changes: object) -> Run:
    fields: dict[str, object] = {
        "tool": tool,
        "load": CELL,
        "round": 0,
        "report": made_report(loop_cpu_s=loop_cpu_s),
        "errors": made_errors(),
        "cost": Cost(cpu_s=2.5, wall_s=9.0),
        "start_cpu_s": 0.5,
        "true_tokens": 10_000,
    }
    return Run(**(fields | changes))  # type: ignore[arg-type]


def made_results(*runs: Run, failures: tuple[Failure, ...] = ()) -> Results:
    return Results(runs=runs, failures=failures, starts=(), num_rounds=1)


def test_read_vllm_failed_request_is_left_out_of_the_named_ones(tmp_path: Path) -> None:
    path = tmp_path / "vllm.json"
    path.write_text(VLLM, encoding="utf-8")
    report = read_vllm(path, id_prefix="bench-")
    assert report.num_requests == 2
    assert report.output_tokens == 128
    assert report.ttft_by_id == {"bench-0": 0.0693, "bench-1": 0.0674}
    assert report.ttft_p99_s == pytest.approx(0.06928)
    assert figure(report.chunk_gap) == ("ITL", pytest.approx(0.01878))
    assert figure(report.token_time) == ("TPOT", pytest.approx(0.00479))


def test_read_guidellm_pace_is_its_itl_and_not_its_tpot(tmp_path: Path) -> None:
    path = tmp_path / "guidellm.json"
    path.write_text(GUIDELLM, encoding="utf-8")
    report = read_guidellm(path)
    assert (report.num_requests, report.output_tokens) == (40, 2560)
    assert report.output_throughput == pytest.approx(1288.498)
    assert report.ttft_p99_s == pytest.approx(0.1088514)
    assert figure(report.token_time) == ("ITL", pytest.approx(0.0047611))
    assert report.chunk_gap is None
    assert report.ttft_by_id is None


def test_read_aiperf_both_paces_and_named_requests(tmp_path: Path) -> None:
    summary, records = tmp_path / "s.json", tmp_path / "r.jsonl"
    summary.write_text(AIPERF, encoding="utf-8")
    records.write_text(AIPERF_RECORDS, encoding="utf-8")
    report = read_aiperf(summary, records)
    assert (report.num_requests, report.output_tokens) == (2, 128)
    assert report.ttft_by_id is not None
    assert dict(report.ttft_by_id) == pytest.approx({"ffca674c": 0.070023072})
    assert figure(report.chunk_gap) == ("ICL", pytest.approx(0.02031))
    assert figure(report.token_time) == ("ITL", pytest.approx(0.004836))


def test_read_report_of_our_own_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = made_report(
        window=(1.0, 2.0), ttft_by_id={"a": 0.1}, chunk_gap=Figure(name="gap", value_s=0.04)
    )
    path.write_text(json.dumps(asdict(report)), encoding="utf-8")
    assert read_report(path) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"benchmarks": []}'])
def test_read_something_else_is_an_error_and_never_zero(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ReportError):
        read_vllm(path, id_prefix="")
    with pytest.raises(ReportError):
        read_guidellm(path)
    with pytest.raises(ReportError):
        read_aiperf(path, path)
    with pytest.raises(ReportError):
        read_report(path)


def test_read_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="cannot be read"):
        read_guidellm(tmp_path / "none.json")


def test_compare_whole_run_errors_are_against_the_server() -> None:
    report = made_report(
        output_tokens=22,
        output_throughput=88.0,
        chunk_gap=Figure(name="ITL", value_s=0.03),
        token_time=Figure(name="TPOT", value_s=0.08 / 9),
        ttft_by_id={"a": 0.052, "b": 0.069},
    )
    errors = compare(report, read_truth(TRUTH), tokens_per_chunk=4)
    assert (errors.requests, errors.tokens) == (0, 2)
    # 20 tokens left the server between 10.0 and 10.25.
    assert errors.throughput == pytest.approx(88 / 80 - 1)
    assert errors.ttft_p50_s == pytest.approx(0.0)
    assert errors.ttft_each_p99_s == pytest.approx(0.00199)
    assert errors.chunk_gap == pytest.approx(-0.25)
    assert errors.token_time == pytest.approx(0.0, abs=1e-9)


def test_compare_window_counts_chunks_sent_inside_it() -> None:
    # Inside: 4 + 2 tokens of a, 4 of b.
    report = made_report(output_throughput=110.0, window=(10.08, 10.18))
    errors = compare(report, read_truth(TRUTH), tokens_per_chunk=4)
    assert errors.throughput == pytest.approx(110 / 100 - 1)


def test_compare_named_requests_set_the_quantiles() -> None:
    report = made_report(ttft_p50_s=0.07, ttft_p99_s=0.07, ttft_by_id={"b": 0.07})
    errors = compare(report, read_truth(TRUTH), tokens_per_chunk=4)
    assert errors.ttft_p50_s == pytest.approx(0.0)
    assert errors.ttft_p99_s == pytest.approx(0.0)


def test_compare_without_a_figure_has_no_error_of_it() -> None:
    errors = compare(made_report(), read_truth(TRUTH), tokens_per_chunk=4)
    assert errors.ttft_each_p99_s is None
    assert errors.chunk_gap is None
    assert errors.token_time is None


def test_compare_one_chunk_answers_have_no_gap() -> None:
    rows = [Answered(request_id=None, received_s=0.0, sent_s=(0.1,), output_tokens=1)]
    report = made_report(
        chunk_gap=Figure(name="ITL", value_s=0.0),
        token_time=Figure(name="TPOT", value_s=0.0),
        window=(0.0, 1.0),
    )
    errors = compare(report, rows, tokens_per_chunk=4)
    assert errors.chunk_gap is None
    assert errors.token_time is None


def test_compare_without_truth_is_an_error() -> None:
    with pytest.raises(TruthError, match="no request"):
        compare(made_report(), [], tokens_per_chunk=4)
    with pytest.raises(TruthError, match="knows none"):
        compare(made_report(ttft_by_id={"z": 1.0}), read_truth(TRUTH), tokens_per_chunk=4)
    with pytest.raises(TruthError, match="window"):
        compare(made_report(window=(1.0, 2.0)), read_truth(TRUTH), tokens_per_chunk=4)


def test_matrix_has_the_six_cells_and_enough_requests() -> None:
    cells = matrix()
    assert [cell.key for cell in cells] == ["1x1", "1x4", "16x1", "16x4", "256x1", "256x4"]
    assert all(cell.num_requests >= 200 for cell in cells if cell.streams > 1)
    assert sum(cell.expected_s for cell in cells) < 60
    assert all(q.expected_s < c.expected_s for q, c in zip(matrix(quick=True), cells, strict=True))
    assert only_start(cells[-1]).num_requests == 1


def test_load_request_takes_first_token_and_gaps() -> None:
    assert CELL.chunks == 16
    assert CELL.request_s == pytest.approx(0.05 + 0.02 + 15 * 0.04)
    assert CELL.expected_s == pytest.approx(13 * CELL.request_s)


def test_tools_commands_carry_the_load(tmp_path: Path) -> None:
    order = Order(load=CELL, url="http://127.0.0.1:1", folder=tmp_path)
    for tool in TOOLS:
        words = " ".join(tool.command(order))
        assert "http://127.0.0.1:1" in words
        assert "16" in words
        assert str(tmp_path) in words
        assert (tool.requirement is None) == (tool.name in (BARE, OURS))
        assert tool.requirement is None or "==" in tool.requirement


def shift_of(script: Script) -> float:
    return next(p.at_s for p in script.parts if isinstance(p, Chunk) and p.at_s is not None)


def test_server_staggers_first_tokens_and_keeps_the_gaps() -> None:
    engine = Engine(EngineSettings(ttft_s=0.05, gap_s=0.04, tokens_per_chunk=4))
    answer = staggered(engine, stagger_s=0.04)
    body = {"messages": [], "model": "m", "stream": True, "max_tokens": 10}
    scripts = [answer(number, body) for number in range(2 * STAGGER_STEPS)]
    starts = [shift_of(script) for script in scripts]
    assert len({round(start, 6) for start in starts}) == STAGGER_STEPS
    assert min(starts) == pytest.approx(0.05)
    assert max(starts) < 0.09
    assert scripts[0] is scripts[STAGGER_STEPS]
    assert all(script.output_tokens == 10 for script in scripts)
    moments = [p.at_s for p in scripts[1].parts if isinstance(p, Chunk) and p.tokens and p.at_s]
    gaps = [b - a for a, b in pairwise(moments)]
    assert gaps == [pytest.approx(0.04)] * 2


def test_server_answers_of_another_length_are_made_anew() -> None:
    answer = staggered(Engine(EngineSettings(ttft_s=0.05)), stagger_s=0.04)
    body = {"messages": [], "model": "m", "stream": True}
    assert answer(0, body | {"max_tokens": 10}).output_tokens == 10
    assert answer(0, body | {"max_completion_tokens": 12}).output_tokens == 12


def test_run_cpu_per_10k_leaves_the_start_out() -> None:
    assert made_run().cpu_per_10k == pytest.approx(2.0)
    assert made_run(start_cpu_s=None).cpu_per_10k is None


def test_cpu_ratio_pairs_rounds_and_takes_the_median() -> None:
    runs = [
        *(made_run(BARE, loop_cpu_s=1.0, round=number) for number in range(3)),
        made_run(OURS, loop_cpu_s=1.2, round=0),
        made_run(OURS, loop_cpu_s=1.4, round=1),
        made_run(OURS, loop_cpu_s=9.0, round=2),
        made_run(OURS, loop_cpu_s=9.0, round=3),
    ]
    ratio = cpu_ratio(made_results(*runs), CELL)
    assert ratio is not None
    assert ratio[0] == pytest.approx(1.4)
    assert ratio[1] == 3


def test_cpu_ratio_without_a_pair_is_none() -> None:
    assert cpu_ratio(made_results(made_run(OURS, loop_cpu_s=1.0)), CELL) is None


def test_findings_say_what_holds_and_what_does_not() -> None:
    good = findings(
        made_results(made_run(OURS, loop_cpu_s=1.2), made_run(BARE, loop_cpu_s=1.0)), [CELL]
    )
    assert good == [
        "- 16 streams, 4 tokens a chunk: tokens exact; TTFT p99 0.80 ms off, within 1 ms; "
        "CPU 1.20 x bare loop, within 1.5 x."
    ]
    bad = findings(
        made_results(
            made_run(OURS, loop_cpu_s=2.0, errors=made_errors(tokens=1, ttft_p99_s=-0.002)),
            made_run(BARE, loop_cpu_s=1.0),
        ),
        [CELL],
    )
    assert "NOT EXACT" in bad[0]
    assert "2.00 ms off, NOT WITHIN 1 ms" in bad[0]
    assert "2.00 x bare loop, NOT WITHIN" in bad[0]


def test_worse_names_the_tool_that_is_nearer_the_truth() -> None:
    results = made_results(
        made_run(OURS, errors=made_errors(ttft_p50_s=-0.002)),
        made_run("vllm", errors=made_errors(ttft_p50_s=0.001), cost=Cost(cpu_s=9.0, wall_s=9.0)),
    )
    assert worse(results, [CELL], [OURS, "vllm"]) == [
        "- 16 streams, 4 tokens a chunk, TTFT p50 ms: specpilot -2.00, vllm +1.00"
    ]


def test_worse_equal_as_shown_is_not_worse() -> None:
    results = made_results(
        made_run(OURS, errors=made_errors(throughput=0.00001)),
        made_run("vllm", errors=made_errors(throughput=0.0)),
    )
    assert worse(results, [CELL], [OURS, "vllm"]) == []


def test_report_lines_show_every_tool_failures_and_starts() -> None:
    results = Results(
        runs=(made_run(OURS), made_run("vllm", true_tokens=500)),
        failures=(Failure(tool="aiperf", load=CELL, reason="ended with 1"),),
        starts=(Start(tool="vllm", streams=16, cost=Cost(cpu_s=9.2, wall_s=9.1)),),
        num_rounds=1,
    )
    text = "\n".join(report_lines(results, [CELL], [OURS, "vllm", "aiperf"]))
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line[:1] == "|"}
    assert "9.1 / 9.2" in rows["vllm"]
    assert "- aiperf, 16 streams, 4 tokens a chunk: ended with 1" in text
    assert "208 requests of 64 tokens, 40 ms between chunks." in text
    assert "2.00 |" in text


def test_report_lines_cpu_of_few_tokens_is_not_shown() -> None:
    text = "\n".join(report_lines(made_results(made_run(true_tokens=500)), [CELL], [OURS]))
    row = next(line for line in text.splitlines() if line.startswith("| specpilot"))
    assert row.endswith("- |")


def test_aligned_columns_line_up() -> None:
    lines = aligned([["", "tokens"], ["vllm", "+0"], ["guidellm", "-12"]])
    assert lines == [
        "|          | tokens |",
        "| -------- | -----: |",
        "| vllm     |     +0 |",
        "| guidellm |    -12 |",
    ]


def test_write_document_replaces_what_stands_between_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    path.write_text("head\n<!-- last run -->\nold\n<!-- end of last run -->\ntail\n")
    write_document(path, ["new", "lines"])
    assert path.read_text() == (
        "head\n<!-- last run -->\n\nnew\nlines\n\n<!-- end of last run -->\ntail\n"
    )
    path.write_text("no marks")
    with pytest.raises(ValueError, match="lacks the marks"):
        write_document(path, ["new"])


def test_document_of_the_repository_has_the_marks(tmp_path: Path) -> None:
    path = tmp_path / "doc.md"
    source = Path(__file__).resolve().parents[2] / "docs" / "bench-load.md"
    path.write_text(source.read_text(encoding="utf-8"), encoding="utf-8")
    write_document(path, ["x"])


def test_cpu_model_is_read_or_none() -> None:
    assert cpu_model("processor : 0\nmodel name\t: Some  Chip (R)\n") == "Some Chip (R)"
    assert cpu_model("Hardware : board\n") is None


def test_run_process_counts_the_cpu_of_its_children(tmp_path: Path) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])"
    cost = run(
        [sys.executable, "-c", code],
        folder=tmp_path, log=tmp_path / "log", environment={}, limit_s=50,
    )  # fmt: skip
    assert cost.cpu_s >= 0.3


def test_run_process_that_fails_says_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"ended with 3; its last words: no such model"):
        run(
            [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"],
            folder=tmp_path, log=tmp_path / "log", environment={}, limit_s=50,
        )  # fmt: skip


def test_run_process_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no end within"):
        run(
            [sys.executable, "-c", "import time; time.sleep(100)"],
            folder=tmp_path, log=tmp_path / "log", environment={}, limit_s=0.2,
        )  # fmt: skip


def test_run_command_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot be started"):
        run(
            [str(tmp_path / "none")],
            folder=tmp_path, log=tmp_path / "log", environment={}, limit_s=1,
        )  # fmt: skip

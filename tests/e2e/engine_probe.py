"""Pass command lines through vLLM's own parser and validation; runs in an engine build's Python.

    python -m tests.e2e.engine_probe CASES.json ANSWERS.json

CASES.json maps names to arguments after ``serve``; ANSWERS.json maps each name to what vLLM made
of it, or to the error that it ended with. One process for all, since vLLM's imports take long.
"""

import contextlib
import importlib.metadata
import io
import json
import sys
from pathlib import Path
from typing import Any

from serve_apps.cpu.launch import alias_directory


def resolve(parser: Any, serve: Any, engine_args_class: Any, argv: list[str]) -> dict[str, Any]:
    """Return what vLLM resolves of one command line."""
    args = parser.parse_args(["serve", *argv])
    serve.validate(args)
    args.model = args.model_tag
    engine_args = engine_args_class.from_cli_args(args)
    model = engine_args.create_model_config()
    from vllm.config import ParallelConfig  # noqa: PLC0415

    speculative = engine_args.create_speculative_config(model, ParallelConfig())
    answer: dict[str, Any] = {
        "model": args.model,
        "served_model_name": args.served_model_name,
        "max_model_len": model.max_model_len,
        "max_num_seqs": engine_args.max_num_seqs,
        "speculative": None,
    }
    if speculative is not None:
        answer["speculative"] = {
            "method": speculative.method,
            "num_speculative_tokens": speculative.num_speculative_tokens,
            "draft_sample_method": speculative.draft_sample_method,
            "rejection_sample_method": speculative.rejection_sample_method,
            "architectures": speculative.draft_model_config.hf_config.architectures,
        }
    return answer


def attempt(parser: Any, serve: Any, engine_args_class: Any, argv: list[str]) -> dict[str, Any]:
    """Return what vLLM resolves, or how it refuses."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return resolve(parser, serve, engine_args_class, argv)
    except SystemExit:  # argparse
        return {"error": said.getvalue().strip().splitlines()[-1]}
    except (ValueError, TypeError, NotImplementedError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Answer all cases."""
    alias = alias_directory()
    if alias is not None:
        sys.path.append(str(alias))
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415
    from vllm.entrypoints.cli.serve import cmd_init  # noqa: PLC0415
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    make_parser: Any = FlexibleArgumentParser
    parser = make_parser(prog="vllm")
    subparsers = parser.add_subparsers(dest="subparser")
    serve = cmd_init()[0]
    serve.subparser_init(subparsers)
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = {name: attempt(parser, serve, AsyncEngineArgs, argv) for name, argv in cases.items()}
    version = importlib.metadata.version("vllm")
    Path(sys.argv[2]).write_text(json.dumps({"version": version, "answers": answers}))


if __name__ == "__main__":
    main()

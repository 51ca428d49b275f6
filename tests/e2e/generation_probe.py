"""Let vLLM resolve sampling defaults; runs in an engine build's Python.

    python -m tests.e2e.generation_probe MODEL CASES.json ANSWERS.json

CASES.json maps names to arguments of vLLM's ModelConfig.
"""

import json
import sys
from pathlib import Path

from serve_apps.cpu.launch import alias_directory


def main() -> None:
    """Answer all cases with what differs from vLLM's neutral values."""
    alias = alias_directory()
    if alias is not None:
        sys.path.append(str(alias))
    from vllm.config import ModelConfig  # noqa: PLC0415

    model, cases, answers = sys.argv[1:]
    found = {
        name: ModelConfig(model=model, **args).get_diff_sampling_param()
        for name, args in json.loads(Path(cases).read_text(encoding="utf-8")).items()
    }
    Path(answers).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()

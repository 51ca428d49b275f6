"""One scored task on one server through lm-evaluation-harness, in a process of its own.

    python -P harness.py REQUEST.json ANSWER.json

The only place that imports the harness, which brings datasets and pandas; it is run as a file, in
the task's folder, and imports nothing else of this project. A process runs one task: tasks of one
run share state of the harness, and the settings of one have overwritten another's.

A task's YAML cannot run code by itself. Its templates are rendered in Jinja's sandbox, which the
harness does not use, and ``!function`` names a function in a Python file beside it and nothing
else; the harness would take one of any module that Python finds, ``os.system`` too.

REQUEST.json: ``task`` (path of its YAML), ``url``, ``model``, ``endpoint``, ``tokenizer`` (a folder
or null), ``limit`` (items or null), ``num_concurrent``, ``max_model_len``, ``timeout_s``. The API
key comes as OPENAI_API_KEY.

ANSWER.json: ``asked`` (the YAML as it stands), ``reported`` (the harness's own record of the task's
settings), ``sent`` (every set of settings that requests were seen to carry), ``aggregate`` (the
harness's own score), ``items`` (one record an item), ``version`` (of the harness).
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval.models
import lm_eval.utils
import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment
from lm_eval.api.registry import get_model
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

ENDPOINTS = {
    "completions": ("local-completions", "/v1/completions"),
    "chat": ("local-chat-completions", "/v1/chat/completions"),
}
CONTENTS = ("prompt", "messages", "model")
"""Keys of a request that are no settings."""

NUM_RETRIES = 2
MAX_EXAMPLE_CHARS = 500


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no stubs
    """Reads a task's YAML without running what it names."""


class _Function(dict[str, str]):
    """What ``!function`` names; a filter of a task is a mapping with this key, too."""


def _function(_loader: yaml.SafeLoader, node: yaml.Node) -> _Function:
    return _Function(function=str(node.value))


_Loader.add_constructor("!function", _function)
_BESIDE = re.compile(r"[^\W\d]\w*\.[^\W\d]\w*")


class UnsafeTaskError(Exception):
    """A task's YAML names code that does not lie beside it."""


def loaded(task: Path) -> dict[str, Any]:
    """Return a task's YAML as it stands, after a look at it and at all that it includes.

    Raises:
        UnsafeTaskError: It names a function of another place than a file beside it.
    """
    asked: dict[str, Any] = yaml.load(task.read_text(encoding="utf-8"), _Loader)
    for name in _functions(asked):
        module = name.partition(".")[0]
        if not _BESIDE.fullmatch(name) or not (task.parent / f"{module}.py").is_file():
            raise UnsafeTaskError(f"{task.name}: !function {name} is in no Python file beside it")
    included = asked.get("include", [])
    for name in included if isinstance(included, list) else [included]:
        loaded(task.parent / name)
    return asked


def _functions(value: object) -> Iterator[str]:
    if isinstance(value, _Function):
        yield value["function"]
    elif isinstance(value, dict):
        for below in value.values():
            yield from _functions(below)
    elif isinstance(value, list):
        for below in value:
            yield from _functions(below)


def use_sandbox() -> None:
    """Let the harness render templates where they reach nothing of Python."""
    sandbox = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    sandbox.filters.update(lm_eval.utils.env.filters)
    lm_eval.utils.env = sandbox


def watched(endpoint: str, sent: list[dict[str, Any]]) -> Any:
    """Return the harness's client for an endpoint, made to note the settings of its requests."""
    name, _ = ENDPOINTS[endpoint]
    parent: Any = get_model(name)

    class Watched(parent):  # type: ignore[misc]  # known at run time only
        def _create_payload(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            payload: dict[str, Any] = super()._create_payload(*args, **kwargs)
            settings = {key: payload[key] for key in payload if key not in CONTENTS}
            if settings not in sent:
                sent.append(json.loads(json.dumps(settings)))
            return payload

    return Watched


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Run the task and return what ANSWER.json holds."""
    asked = loaded(Path(request["task"]))
    use_sandbox()
    endpoint, tokenizer = request["endpoint"], request["tokenizer"]
    sent: list[dict[str, Any]] = []
    is_chat = endpoint == "chat"
    client = watched(endpoint, sent)(
        model=request["model"],
        base_url=request["url"] + ENDPOINTS[endpoint][1],
        tokenizer=None if is_chat else tokenizer,
        tokenizer_backend=None if is_chat or tokenizer is None else "huggingface",
        trust_remote_code=False,
        tokenized_requests=not is_chat and tokenizer is not None,
        num_concurrent=request["num_concurrent"],
        max_length=request["max_model_len"],
        max_retries=NUM_RETRIES,
        timeout=request["timeout_s"],
    )
    results: Any = simple_evaluate(
        model=client,
        tasks=[request["task"]],
        task_manager=TaskManager(include_defaults=False),
        limit=request["limit"],
        apply_chat_template=is_chat,
        bootstrap_iters=0,
    )
    ((name, samples),) = results["samples"].items()
    first_filter = samples[0]["filter"]
    metric = results["configs"][name]["metric_list"][0]["metric"]
    return {
        "asked": asked,
        "reported": results["configs"][name],
        "sent": sent,
        "metric": metric,
        "aggregate": results["results"][name][f"{metric},{first_filter}"],
        "items": [_item(s, metric) for s in samples if s["filter"] == first_filter],
        "version": importlib.metadata.version("lm_eval"),
    }


def _item(sample: dict[str, Any], metric: str) -> dict[str, Any]:
    answer = sample["filtered_resps"][0]
    return {
        "id": sample["doc_id"],
        "hit": sample[metric],
        "parsed": sample.get("parsed", 1),
        "num_choices": len(sample["arguments"]),
        "answer": answer[:MAX_EXAMPLE_CHARS] if isinstance(answer, str) else "",
    }


def main() -> None:
    """Answer the request."""
    asked, answered = (Path(argument) for argument in sys.argv[1:])
    answer = evaluate(json.loads(asked.read_text(encoding="utf-8")))
    answered.write_text(json.dumps(answer, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()

"""What no source of ours may do: give a shell a string, run what it reads, listen for everybody."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
OURS = ("orchestrator", "serve_apps", "infra")
SOURCES = sorted(path for name in OURS for path in (PROJECT / name).rglob("*.py"))

SHELLS = {
    *("os.system", "os.popen", "pty.spawn", "asyncio.create_subprocess_shell"),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
}
STARTERS = {
    *("subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call"),
    *("subprocess.check_output",),
}
UNPICKLERS = {
    *("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib"),
}
RUNNERS = {
    *("eval", "exec", "torch.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
    *("shutil.unpack_archive",),
}
RUNS = {"serve_apps/cpu/lockstep/tape.py": "exec"}
"""By file, the one thing it may do: a tape is made of register numbers, never of what is read."""
EVERYBODY = {"0.0.0.0", "::"}
COMPARES = {
    "orchestrator/adapters/serve_production.py",  # asks over loopback what listens on all
}
"""Files that know the name of all interfaces without listening on them."""


def faults(source: str, name: str = "") -> Iterator[str]:
    """Yield every rule that a source breaks, with its line."""
    for node in ast.walk(ast.parse(source)):
        found = None
        if isinstance(node, ast.Call):
            found = _call_fault(node, name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found = _import_fault(node)
        elif isinstance(node, ast.List | ast.Tuple):
            found = _list_fault(node)
        elif isinstance(node, ast.Constant) and node.value in EVERYBODY and name not in COMPARES:
            found = "names all interfaces"
        if found is not None:
            yield f"{name}:{node.lineno}: {found}"


def _call_fault(node: ast.Call, name: str) -> str | None:
    called = ast.unparse(node.func)
    given = {item.arg: item.value for item in node.keywords}
    if called in SHELLS or ("shell" in given and ast.unparse(given["shell"]) != "False"):
        return f"{called} starts a shell"
    if called in STARTERS:
        command = node.args[0] if node.args else given.get("args")
        if command is None or _is_text(command):
            return f"{called} is given a text"
    is_np = called.endswith((".load", ".fromfile")) and "allow_pickle" in given
    if (called in RUNNERS or is_np) and RUNS.get(name) != called:
        return f"{called} may run what it reads"
    if called == "yaml.load" and len(node.args) + len(node.keywords) < 2:
        return "yaml.load without a safe loader"
    return f"{called} writes where the archive says" if called.endswith(".extractall") else None


def _is_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("join", "format")
    if isinstance(node, ast.BinOp):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _import_fault(node: ast.Import | ast.ImportFrom) -> str | None:
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
        below = {f"{module}.{alias.name}" for alias in node.names}
        if below & (SHELLS | STARTERS | RUNNERS):
            return f"takes {sorted(below)[0]} by name, where the other rules do not see it"
        modules = [module]
    else:
        modules = [alias.name for alias in node.names]
    found = UNPICKLERS & {module.partition(".")[0] for module in modules}
    return f"imports {sorted(found)[0]}" if found else None


def _list_fault(node: ast.List | ast.Tuple) -> str | None:
    texts = [item.value for item in node.elts if isinstance(item, ast.Constant)]
    shell = next((t for t in texts if str(t).rpartition("/")[2] in ("sh", "bash", "dash")), None)
    return f"has {shell} -c" if shell is not None and "-c" in texts else None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_source_starts_no_shell_runs_nothing_it_reads_and_listens_for_nobody(path: Path) -> None:
    name = str(path.relative_to(PROJECT))
    assert list(faults(path.read_text(encoding="utf-8"), name)) == []


@pytest.mark.parametrize(
    "source",
    [
        *("os.system('x')", "os.popen(x)", "subprocess.run(x, shell=True)", "run(x, shell=flag)"),
        *("subprocess.run('ls')", "subprocess.Popen(f'ls {x}')", "subprocess.run(args='ls')"),
        *("subprocess.run(' '.join(x))", "subprocess.run('ls ' + x)", "subprocess.getoutput(x)"),
        *("from subprocess import run", "from os import system", "import pickle", "eval(x)"),
        *("from cloudpickle import loads", "torch.load(x)", "np.load(x, allow_pickle=True)"),
        *("yaml.load(x)", "yaml.unsafe_load(x)", "archive.extractall(x)", "exec(x)"),
        *("['/bin/sh', '-c', x]", "('bash', '-c', x)", "serve('0.0.0.0')", "bind(('::', 1))"),
        "asyncio.create_subprocess_shell(x)",
    ],
)
def test_rule_is_broken_by(source: str) -> None:
    assert len(list(faults(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        *("subprocess.run(['ls', x])", "subprocess.run(x, shell=False)", "yaml.load(x, Safe)"),
        *("re.compile(x)", "model.eval()", "np.load(x)", "bind(('127.0.0.1', 0))", "['sh', x]"),
    ],
)
def test_rule_is_kept_by(source: str) -> None:
    assert list(faults(source)) == []

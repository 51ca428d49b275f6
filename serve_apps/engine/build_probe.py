"""Says what is installed beside an interpreter, as JSON on standard output.

Runs inside an engine build's own Python: standard library only, and nothing of the engine is
imported. `serve_apps.engine.build` hands it over as text.
"""

import base64
import csv
import hashlib
import json
import platform
import re
import sys
from pathlib import Path

_DIST_INFO = re.compile(r"(?P<name>[\w.]+)-(?P<version>[^-]+)\.dist-info")
# What compiles, computes or samples; versions of the rest cannot change a number.
_PACKAGES = re.compile(
    r"torch|triton|pytorch[_-]triton|transformers|tokenizers|flashinfer[\w-]*|flash-attn[\w-]*"
    r"|xformers|xgrammar|llguidance|outlines-core|compressed-tensors|deep-gemm|deep-ep|numpy"
    r"|quack-kernels|tilelang|apache-tvm-ffi|helion|nvidia-(?!ml-py)[\w-]+|cuda-[\w-]+"
)
_ENGINE = "vllm/__init__.py"


def installed() -> "dict[str, tuple[str, Path]]":
    """Return version and dist-info folder by normalised name; the first on the path counts."""
    found: dict[str, tuple[str, Path]] = {}
    for entry in sys.path:
        folder = Path(entry or ".")
        if not folder.is_dir():
            continue
        for info in sorted(folder.glob("*.dist-info")):
            match = _DIST_INFO.fullmatch(info.name)
            if match is not None:
                name = re.sub(r"[-_.]+", "-", match["name"]).lower()
                found.setdefault(name, (match["version"], info))
    return found


def records(info: Path) -> "list[tuple[str, str, str]]":
    """Return path, hash and size of each file of a wheel, without what an installer adds.

    Scripts lie outside of the folder and carry the path of their interpreter.
    """
    try:
        with (info / "RECORD").open(encoding="utf-8", newline="") as stream:
            rows = [tuple(row[:3]) for row in csv.reader(stream) if len(row) >= 3]
    except OSError:
        return []
    return sorted(
        (path, digest, size)
        for path, digest, size in rows
        if digest and not path.startswith((f"{info.name}/", "../", "/"))
    )


def content(file: Path, digest: str, size: str) -> str:
    """Return what identifies a file as it lies there: source by its content, others by size.

    A wheel's libraries have gigabytes; its source has some ten megabytes, and is what gets patched.
    """
    try:
        if file.suffix in (".py", ".json", ".jinja"):
            algorithm, _, _ = digest.partition("=")
            seen = hashlib.new(algorithm, file.read_bytes()).digest()
            return f"{algorithm}={base64.urlsafe_b64encode(seen).rstrip(b'=').decode()}"
        return digest if file.stat().st_size == int(size) else f"size={file.stat().st_size}"
    except (OSError, ValueError):
        return "missing"


def wheel(name: str, version: str, info: Path) -> "dict[str, object]":
    """Return the engine's distribution: name, version, digest of its files, and what was changed.

    An editable install lists none of its files, so that it has no digest.
    """
    rows = records(info)
    told: dict[str, object] = {"name": name, "version": version, "digest": None, "changed": []}
    if _ENGINE not in {path for path, _, _ in rows}:
        return told
    seen = hashlib.sha256()
    changed = []
    for path, digest, size in rows:
        found = content(info.parent / path, digest, size)
        seen.update(f"{path}\0{found}\n".encode())
        if found != digest:
            changed.append(path)
    told["digest"] = seen.hexdigest()
    told["changed"] = changed[:20]
    return told


def engine_wheel(found: "dict[str, tuple[str, Path]]") -> "dict[str, object] | None":
    """Return the distribution that holds the engine, whatever it is named; None without one.

    The first on the path with files of the engine is the one that is imported.
    """
    named = [(name, *found[name]) for name in found if name.split("-")[0] == "vllm"]
    wheels = [wheel(*each) for each in named]
    return next((each for each in wheels if each["digest"]), wheels[0] if wheels else None)


def torch_build(info: Path) -> "dict[str, object]":
    """Return what torch was built with, from its version file, which is read and not run."""
    try:
        text = (info.parent / "torch" / "version.py").read_text(encoding="utf-8")
    except OSError:
        return {}
    pattern = r"^(\w+)(?:\s*:[^=]*)?\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|None)"
    values = {m[0]: m[1] or m[2] or None for m in re.findall(pattern, text, re.MULTILINE)}
    return {name: values.get(name) for name in ("cuda", "hip", "git_version")}


def main() -> None:
    """Print the facts."""
    found = installed()
    build = torch_build(found["torch"][1]) if "torch" in found else {}
    facts = {
        "python": platform.python_version(),
        "wheel": engine_wheel(found),
        "packages": {
            name: version for name, (version, _) in found.items() if _PACKAGES.fullmatch(name)
        },
        "cuda": build.get("cuda"),
        "hip": build.get("hip"),
        "torch_commit": build.get("git_version"),
    }
    print(json.dumps(facts, sort_keys=True))  # noqa: T201  the answer


if __name__ == "__main__":
    main()

"""Says what is installed beside an interpreter, as JSON on standard output.

Runs inside an engine build's own Python: standard library only, and nothing of the engine is
imported. `serve_apps.engine.build` hands it over as text.
"""

import base64
import csv
import hashlib
import json
import os
import platform
import re
import sys
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

_DIST_INFO = re.compile(r"(?P<name>[\w.]+)-(?P<version>[^-]+)\.dist-info")
# What compiles, computes or samples; versions of the rest cannot change a number.
_PACKAGES = re.compile(
    r"torch|triton|pytorch[_-]triton|transformers|tokenizers|flashinfer[\w-]*|flash-attn[\w-]*"
    r"|xformers|xgrammar|llguidance|outlines-core|compressed-tensors|deep-gemm|deep-ep|numpy"
    r"|quack-kernels|tilelang|apache-tvm-ffi|helion|nvidia-(?!ml-py)[\w-]+|cuda-[\w-]+"
)
_ENGINE = "vllm/__init__.py"
_SOURCE = (".py", ".json", ".jinja")
# Groups such as vllm.general_plugins, whose code runs inside of the engine.
_PLUGIN = re.compile(r"^\[vllm\.[\w.]+\]$", re.MULTILINE)
_ENTRY = re.compile(r"^[^\[#=\n]+=\s*(?P<module>\w+)[\w.]*\s*(?::|$)", re.MULTILINE)


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
        if file.suffix in _SOURCE:
            algorithm, _, _ = digest.partition("=")
            seen = hashlib.new(algorithm, file.read_bytes()).digest()
            return f"{algorithm}={base64.urlsafe_b64encode(seen).rstrip(b'=').decode()}"
        return digest if file.stat().st_size == int(size) else f"size={file.stat().st_size}"
    except (OSError, ValueError):
        return "missing"


def wheel(name: str, version: str, info: Path) -> "dict[str, object]":
    """Return the engine's distribution: name, version, digest of its files, and what was changed.

    An editable install lists none of its files: they are looked up where they lie. Where they are
    not found the digest is like no other, that of the next look included.
    """
    rows = records(info)
    told: dict[str, object] = {"name": name, "version": version, "digest": None, "changed": []}
    if _ENGINE not in {path for path, _, _ in rows}:
        told["digest"] = module_digest("vllm", info)
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
    known = (each for each in wheels if each["digest"])
    return next(known, {**wheels[0], "digest": f"unknown {uuid.uuid4().hex}"} if wheels else None)


def module_digest(module: str, info: Path) -> "str | None":
    """Return the digest of a module's files where it would be imported from; None: not found.

    Source counts by its content, libraries by their size; no path enters.
    """
    for folder in (*map(Path, sys.path), *editable_folders(info)):
        if (folder / module / "__init__.py").is_file():
            return tree_digest(folder / module)
        if (folder / f"{module}.py").is_file():
            return hashlib.sha256((folder / f"{module}.py").read_bytes()).hexdigest()
    return None


def editable_folders(info: Path) -> "list[Path]":
    """Return the folders that an editable install may have its modules in."""
    try:
        told = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
        place = urlsplit(told["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    root = Path(unquote(place.path))
    return [root, root / "src"] if place.scheme == "file" else []


def tree_digest(root: Path) -> str:
    """Return the digest of source and libraries below a folder."""
    seen = hashlib.sha256()
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and name[0] != ".")
        for name in sorted(files):
            file = Path(place, name)
            if not (file.suffix in (*_SOURCE, ".so", ".cu", ".cuh") and file.is_file()):
                continue
            found = f"size={file.stat().st_size}"
            if file.suffix in _SOURCE:
                found = hashlib.sha256(file.read_bytes()).hexdigest()
            seen.update(f"{file.relative_to(root)}\0{found}\n".encode(errors="backslashreplace"))
    return seen.hexdigest()


def plugins(found: "dict[str, tuple[str, Path]]") -> "dict[str, dict[str, object]]":
    """Return version and digest of what adds code to the engine by an entry point of its own."""
    told: dict[str, dict[str, object]] = {}
    for name, (version, info) in sorted(found.items()):
        try:
            text = (info / "entry_points.txt").read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        sections = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
        texts = [each for each in sections if _PLUGIN.match(each.partition("\n")[0].strip())]
        modules = {match["module"] for each in texts for match in _ENTRY.finditer(each)} - {"vllm"}
        if modules:
            unknown = f"unknown {uuid.uuid4().hex}"
            digests = {module: module_digest(module, info) or unknown for module in sorted(modules)}
            told[name] = {"version": version, "modules": digests}
    return told


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
        "plugins": plugins(found),
        "cuda": build.get("cuda"),
        "hip": build.get("hip"),
        "torch_commit": build.get("git_version"),
    }
    print(json.dumps(facts, sort_keys=True))  # noqa: T201  the answer


if __name__ == "__main__":
    main()

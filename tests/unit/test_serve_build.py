from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from serve_apps.engine.build import (
    build_facts,
    cache_key,
    cache_variables,
    driver_version,
    gpu_models,
    kernel_variables,
)
from serve_apps.engine.spec import EngineSpec

SECRET = "PlantedSecret0123456789"
CLOSED = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26 02:10:07 UTC 2025\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\n"
    "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)\n"
)


def spec(python: str | None = None) -> EngineSpec:
    return EngineSpec(model="/m", served_model_name="served", log_path="/l", python=python)


def write_wheel(site: Path, name: str, files: dict[str, str], version: str = "9.9.0") -> Path:
    """Lay out an installed wheel as pip does, with what an installer adds."""
    info = site / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    rows = []
    for path, text in files.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        seen = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={seen.decode()},{len(text)}")
    rows += [
        f"{info.name}/INSTALLER,sha256=xx,4",
        f"{info.name}/RECORD,,",
        f"../../../bin/{name},sha256={len(str(site))},9",
    ]
    (info / "RECORD").write_text("\n".join(rows) + "\n")
    return info


ENGINE = {
    "vllm/__init__.py": "raise RuntimeError('must not be imported')",
    "vllm/_C.abi3.so": "library",
    "vllm/a.py": "x = 1",
}


def facts_of(site: Path, **env: str) -> dict[str, Any]:
    return build_facts(spec(sys.executable), {"PYTHONPATH": str(site), **env})


def test_engine_is_known_by_its_files_and_not_imported(tmp_path: Path) -> None:
    write_wheel(tmp_path, "vllm", ENGINE)
    write_wheel(tmp_path, "vllm_ascend", {"vllm_ascend/__init__.py": ""})
    write_wheel(tmp_path, "torch", {"torch/__init__.py": ""}, version="2.99.0+cu130")
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.99.0+cu130'\ndebug = False\n"
        "cuda: Optional[str] = '13.0'\ngit_version = 'abc'\nhip: Optional[str] = None\n"
    )
    facts = facts_of(tmp_path)

    assert facts["wheel"]["name"] == "vllm"
    assert facts["wheel"]["version"] == "9.9.0"
    assert len(facts["wheel"]["digest"]) == 64
    assert facts["wheel"]["changed"] == []
    assert facts["packages"]["torch"] == "2.99.0+cu130"
    assert (facts["cuda"], facts["hip"], facts["torch_commit"]) == ("13.0", None, "abc")
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))


def test_wheel_digest_is_that_of_the_same_wheel_elsewhere(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "somewhere/else/b"):
        site = tmp_path / name
        write_wheel(site, "vllm", ENGINE)
        digests.add(facts_of(site)["wheel"]["digest"])

    assert len(digests) == 1


@pytest.mark.parametrize("file", ["vllm/a.py", "vllm/_C.abi3.so"])
def test_file_that_was_patched_in_place_changes_the_digest(tmp_path: Path, file: str) -> None:
    whole, patched = tmp_path / "whole", tmp_path / "patched"
    for site in (whole, patched):
        write_wheel(site, "vllm", ENGINE)
    (patched / file).write_text("x = 2 or more")

    wheel = facts_of(patched)["wheel"]

    assert wheel["digest"] != facts_of(whole)["wheel"]["digest"]
    assert wheel["changed"] == [file]


def bare_wheel(site: Path) -> dict[str, Any]:
    # The interpreter beneath this environment has no engine of its own.
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    wheel = build_facts(spec(bare), {"PYTHONPATH": str(site)})["wheel"]
    assert isinstance(wheel, dict)
    return wheel


def write_editable(site: Path, source: Path, text: str) -> None:
    info = write_wheel(site, "vllm", {"__editable___vllm_finder.py": ""})
    (source / "vllm").mkdir(parents=True)
    (source / "vllm" / "__init__.py").write_text(text)
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))


def test_editable_install_is_known_by_its_files_where_they_lie(tmp_path: Path) -> None:
    digests = []
    for number, text in enumerate(("x = 1", "x = 1", "x = 2")):
        site = tmp_path / str(number)
        write_editable(site, tmp_path / f"source {number}", text)
        digests.append(bare_wheel(site)["digest"])

    assert len(digests[0]) == 64
    assert digests[0] == digests[1] != digests[2]


def test_editable_install_whose_files_are_not_found_equals_no_other(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        write_wheel(tmp_path / name, "vllm", {"__editable___vllm_finder.py": ""})
        wheel = bare_wheel(tmp_path / name)
        assert (wheel["version"], wheel["digest"][:8]) == ("9.9.0", "unknown ")
        digests.add(wheel["digest"])

    assert len(digests) == 2


def write_plugin(site: Path, version: str, text: str, group: str = "vllm.general_plugins") -> None:
    info = write_wheel(site, "patches", {"patching/__init__.py": text}, version)
    (info / "entry_points.txt").write_text(
        f"[console_scripts]\nrun = other:main\n\n[{group}]\nx = patching.sub:patch\n"
    )


def test_plugin_of_the_engine_is_known_by_version_and_files(tmp_path: Path) -> None:
    sites = [("1.0", "x = 1"), ("1.0", "x = 2"), ("2.0", "x = 1"), ("1.0", "x = 1")]
    told, keys = [], set()
    for number, (version, text) in enumerate(sites):
        site = tmp_path / str(number)
        write_plugin(site, version, text)
        facts = facts_of(site)
        told.append(facts["plugins"]["patches"])
        keys.add(cache_key(facts))

    assert told[0] == told[3]
    assert told[0]["version"] == "1.0"
    assert list(told[0]["modules"]) == ["patching"]
    assert len({json.dumps(each) for each in told}) == 3
    assert len(keys) == 3


def test_package_with_other_entry_points_is_no_plugin(tmp_path: Path) -> None:
    write_plugin(tmp_path, "1.0", "x = 1", group="pytest11")
    assert "patches" not in facts_of(tmp_path)["plugins"]


@pytest.mark.parametrize("python", ["/none/bin/python", "/bin/false"])
def test_interpreter_that_does_not_answer_leaves_nulls(python: str) -> None:
    facts = build_facts(spec(python), {})

    assert facts["wheel"] is None
    assert facts["packages"] is None
    assert facts["machine"]


def test_facts_are_plain_json_with_the_image_and_the_machine(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, SPECPILOT_IMAGE_DIGEST="sha256:aa", VLLM_USE_X="1")

    assert json.loads(json.dumps(facts)) == facts
    assert facts["image_digest"] == "sha256:aa"
    assert facts["launcher"] == "vllm.entrypoints.cli.main"
    assert facts["environment"] == {"VLLM_USE_X": "1"}
    assert facts["kernel"]
    assert facts_of(tmp_path)["image_digest"] is None


@pytest.mark.parametrize(
    "name",
    [
        *("VLLM_ATTENTION_BACKEND", "VLLM_CPU_KVCACHE_SPACE", "VLLM_DISABLE_COMPILE_CACHE"),
        *("CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_P2P_DISABLE", "TORCHINDUCTOR_MAX_AUTOTUNE"),
        *("TRITON_INTERPRET", "FLASHINFER_CUDA_ARCH_LIST", "PYTORCH_CUDA_ALLOC_CONF"),
        *("OMP_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"),
        *("TORCH_CUDA_ARCH_LIST", "VLLM_MAX_TOKENS_PER_EXPERT_FUSED_MOE_CHUNK"),
        "VLLM_MULTI_STREAM_GEMM_TOKEN_THRESHOLD",
    ],
)
def test_variable_that_changes_kernels_is_kept(name: str) -> None:
    assert kernel_variables({name: "1"}) == {name: "1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOME", "/root"), ("PATH", "/bin"), ("VLLM_HOST_IP", "10.0.0.1"), ("VLLM_PORT", "1"),
        ("VLLM_CACHE_ROOT", "/c"), ("TRITON_CACHE_DIR", "/c"), ("VLLM_LOGGING_LEVEL", "DEBUG"),
        ("CUDA_VISIBLE_DEVICES", "GPU-1234"), ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("CUDA_HOME", "/u"),
        ("NCCL_SOCKET_IFNAME", "eth0"), ("NCCL_DEBUG", "INFO"), ("VLLM_SERVER_DEV_MODE", "1"),
        ("VLLM_RPC_TIMEOUT", "1"), ("VLLM_NO_USAGE_STATS", "1"),
        ("FLASHINFER_WORKSPACE_BASE", "/w"),
        ("VLLM_API_KEY", SECRET), ("VLLM_HF_TOKEN", SECRET), ("NVIDIA_PASSWORD", SECRET),
        ("VLLM_AUTH_HEADER", SECRET), ("TORCH_CREDENTIALS", SECRET), ("OMP_CLIENT_SECRET", SECRET),
        ("VLLM_X", f"http://user:{SECRET}@h"), ("VLLM_X", f"hf_{SECRET}"), ("VLLM_TOKENS", SECRET),
    ],
)  # fmt: skip
def test_place_log_or_secret_is_not_told(name: str, value: str) -> None:
    assert kernel_variables({name: value}) == {}


def test_file_of_a_variable_is_told_by_its_content(tmp_path: Path) -> None:
    names = ("a", "moved/a", "b")
    for name, text in zip(names, ("one", "one", "two"), strict=True):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    a, moved, b = (kernel_variables({"LD_PRELOAD": str(tmp_path / name)}) for name in names)

    assert a == moved != b
    assert str(tmp_path) not in repr(a)
    both = kernel_variables({"LD_PRELOAD": f"{tmp_path / 'a'}:{tmp_path / 'b'}"})
    assert both == {"LD_PRELOAD": f"{a['LD_PRELOAD']}:{b['LD_PRELOAD']}"}


def test_folder_of_libraries_or_settings_is_told_by_what_counts_in_it(tmp_path: Path) -> None:
    files = ("libcudart.so.13", "libcudart.so.13", "libcudart.so.12", "tuned.json")
    told = []
    for number, name in enumerate(files):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / name).write_text("content")
        (folder / f"note{number}.txt").write_text("no matter")
        told.append(kernel_variables({"LD_LIBRARY_PATH": str(folder)})["LD_LIBRARY_PATH"])

    assert told[0] == told[1]
    assert len(set(told)) == 3
    (tmp_path / "3" / "tuned.json").write_text("another")
    assert kernel_variables({"VLLM_TUNED_CONFIG_FOLDER": str(tmp_path / "3")}) != {
        "VLLM_TUNED_CONFIG_FOLDER": told[3]
    }


def test_path_of_a_variable_that_is_not_there_differs_from_every_other() -> None:
    a, b = (kernel_variables({"LD_LIBRARY_PATH": f"/none/{name}"}) for name in "ab")
    assert a != b
    assert "none" not in repr(a)
    assert kernel_variables({"VLLM_X": "\udcff"}) == {"VLLM_X": "\\udcff"}


@pytest.mark.parametrize("name", ["VLLM_FLASH_ATTN_VERSION", "ATEN_CPU_CAPABILITY", "MALLOC_CONF"])
def test_variable_that_names_a_kernels_kind_is_kept(name: str) -> None:
    assert kernel_variables({name: "2", "CUDA_VERSION": "13.0"}) == {name: "2"}


@pytest.mark.parametrize(
    ("text", "version"), [(CLOSED, "570.124.06"), (OPEN, "580.95.05"), ("odd", None)]
)
def test_driver_version_is_read_from_proc(tmp_path: Path, text: str, version: str | None) -> None:
    assert driver_version(tmp_path) is None
    folder = tmp_path / "driver" / "nvidia"
    folder.mkdir(parents=True)
    (folder / "version").write_text(text)
    assert driver_version(tmp_path) == version


def test_gpu_models_are_read_from_proc(tmp_path: Path) -> None:
    assert gpu_models(tmp_path) is None
    for number in (1, 2):
        folder = tmp_path / "driver" / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(
            f"Model: \t\t NVIDIA GB10\nIRQ: 1{number}\nGPU UUID: \t GPU-{number}\n"
        )
    assert gpu_models(tmp_path) == ["NVIDIA GB10", "NVIDIA GB10"]


def test_compile_caches_of_two_builds_never_meet(tmp_path: Path) -> None:
    """Case E15."""
    a, b = tmp_path / "a", tmp_path / "b"
    write_wheel(a, "vllm", ENGINE)
    write_wheel(b, "vllm", {**ENGINE, "vllm/a.py": "x = 2"})
    of_a, of_b = facts_of(a), facts_of(b)

    assert cache_key(of_a) == cache_key(facts_of(a, VLLM_USE_X="1"))
    assert cache_key(of_a) != cache_key(of_b)
    assert cache_key(of_a) != cache_key({**of_a, "driver": "other"})
    folders = set(cache_variables("/caches", of_a).values())
    assert len(folders) == 4
    assert all(folder.startswith(f"/caches/{cache_key(of_a)}/") for folder in folders)
    assert not folders & set(cache_variables("/caches", of_b).values())

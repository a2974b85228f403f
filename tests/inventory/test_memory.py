"""Predicted memory beside what llama-server says it took."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from inventory.core.model_fit import Memory, Setting, fit_of, memory_of
from inventory.core.model_shape import ModelShape, shape_of
from tests.conftest import wait_until
from tests.inventory import loadable_models
from tests.inventory.test_gguf import header_of
from tests.lab.sshd_host import free_port

SETTINGS = [
    Setting(2048),
    Setting(2048, slots=4),
    Setting(1024, slots=4, kv_type="q8_0"),
    Setting(2048, slots=2, micro_batch_tokens=256),
    Setting(2048, slots=4, full_cache=True),
]
MODELS = {
    "dense": loadable_models.DENSE,
    "mixture": loadable_models.MIXTURE,
    "windowed": loadable_models.WINDOWED,
}


@pytest.fixture(scope="module")
def model_paths(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    made = {name: model.write(folder / f"{name}.gguf", small_model) for name, model in MODELS.items()}
    return made | {"SmolLM2": small_model}


def allocated(path: Path, setting: Setting, llama_server: Path, log: Path) -> Memory:
    """The buffers of the load log."""
    argv = [llama_server, "-m", path, "--host", "127.0.0.1", "--port", str(free_port("127.0.0.1"))]
    argv += [
        "-c",
        str(setting.cache_tokens),
        "-np",
        str(setting.slots),
        "-ub",
        str(setting.micro_batch_tokens),
    ]
    argv += ["-kvu", "-fa", "on", "-fit", "off", "-t", "1", "-dev", "none", "-lv", "4", "--no-warmup"]
    argv += ["-ctk", setting.kv_type, "-ctv", setting.kv_type, "--cache-ram", "0"]
    argv += ["--swa-full"] if setting.full_cache else []
    with log.open("wb") as sink:
        process = subprocess.Popen(argv, stdout=sink, stderr=sink)
        try:
            wait_until(lambda: b"compute buffer size" in log.read_bytes(), "the model is loaded", seconds=60)
        finally:
            process.kill()
            process.wait()
    text = log.read_text(errors="replace")
    sizes = dict.fromkeys(("model", "KV", "compute", "output"), 0.0)
    for kind, size in re.findall(r"(model|KV|compute|output) buffer size = +([\d.]+) MiB", text):
        sizes[kind] += float(size) * 2**20
    return Memory(*(round(sizes[kind]) for kind in ("model", "KV", "compute", "output")))


@pytest.mark.parametrize("name", [*MODELS, "SmolLM2"])
def test_predicted_memory_is_what_the_load_log_says(
    name: str, model_paths: dict[str, Path], llama_server: Path, tmp_path: Path
) -> None:
    shape = shape_of([header_of(model_paths[name])])
    for setting in SETTINGS:
        predicted = memory_of(shape, setting)
        found = allocated(model_paths[name], setting, llama_server, tmp_path / "log")
        assert predicted.weight_bytes == pytest.approx(found.weight_bytes, rel=0.002), setting
        assert predicted.kv_bytes == pytest.approx(found.kv_bytes, rel=0.002), setting
        assert predicted.total_bytes == pytest.approx(found.total_bytes, rel=0.03), setting


def shape_with(blocks: int, **changes: int) -> ModelShape:
    block = {
        "kind": "full",
        "tensor_bytes": {},
        "size_bytes": 100_000_000,
        "resident_bytes": 0,
        "kv_bytes_per_token": 4096,
        "window_tokens": None,
        "state_bytes": 0,
    } | changes
    whole = {
        "architecture": "llama",
        "name": "x",
        "quantisation": "F16",
        "blocks": [block] * blocks,
        "embedding_length": 1024,
        "output_bytes": 0,
        "embedding_bytes": 0,
        "vocabulary": 1000,
        "context_train": 8192,
        "has_chat_template": True,
        "shards": 1,
        "file_bytes": 1,
        "weight_bytes": 1,
        "parameters": 1,
        "experts": 0,
        "experts_used": 0,
        "is_tied": False,
        "is_mla": False,
        "feed_forward_length": 1024,
        "notes": [],
    }
    return ModelShape.from_dict(whole)


def test_dense_blocks_move_whole_and_experts_in_part() -> None:
    gb = 10**9
    dense = fit_of(shape_with(20), gpu_bytes=gb, ram_bytes=10 * gb, context_tokens=8192)
    assert (dense.main_blocks, dense.second_blocks, dense.is_whole) == (7, 13, True)
    experts = fit_of(
        shape_with(20, resident_bytes=10_000_000), gpu_bytes=gb, ram_bytes=10 * gb, context_tokens=2048
    )
    assert experts.is_whole and 0 < experts.main_blocks < 20
    alone = fit_of(shape_with(20), gpu_bytes=gb, ram_bytes=0, context_tokens=8192)
    assert (alone.main_blocks, alone.second_blocks, alone.is_whole) == (7, 0, False)
    none = fit_of(shape_with(20), gpu_bytes=0, ram_bytes=0, context_tokens=8192)
    assert none.main_blocks == 0

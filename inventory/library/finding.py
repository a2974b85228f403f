"""Finds GGUF files on devices and in the server's library, reads their headers and recognises equal models."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from inventory.core.gguf import GgufError, GgufTruncated, Header, header_from_bytes
from inventory.core.model_shape import ModelShape, shape_of
from inventory.core.quantities import counted, visible
from inventory.models import Device, LanguageModel, ModelFile
from inventory.remote import Connection, RemoteError, connect
from jobs.progress import Progress

FIRST_READ_BYTES, MAX_READ_BYTES = 8 * 1024 * 1024, 256 * 1024 * 1024
SAMPLE_BYTES = 64 * 1024
MAX_FILES = 2_000
FIND_SECONDS = 120.0
SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")
USUAL_ROOTS = ("models", ".cache/llama.cpp", ".cache/huggingface/hub", ".lmstudio/models", "llama.cpp/models")
SHARED_ROOTS = ("/models", "/opt/models", "/srv/models")

FIND_PROGRAM = r"""
for root; do
  [ -d "$root" ] || continue
  real=$(cd -P -- "$root" && pwd) || continue
  find -L "$root" -maxdepth 8 -type f -name '*.gguf' -exec sh -c '
    real=$1; shift; line=$(printf "\nx"); line=${line%x}
    for f; do
      to=$(readlink -f "$f" 2>/dev/null || echo "$f")
      case $to in "$real"/*) ;; *) continue ;; esac
      size=$(stat -L -c %s "$f" 2>/dev/null || stat -L -f %z "$f") || continue
      case $f in *"$line"*) printf "odd\t%s\t%s\n" "$size" "$(printf %s "$f" | tr "\n" "?")"; continue ;; esac
      printf "gguf\t%s\t%s\n" "$size" "$f"
    done' sh "$real" {} +
done 2>/dev/null
exit 0
"""


@dataclass(frozen=True)
class FoundFile:
    """A file and its size; for a split model the first shard and the bytes of all.

    A file whose name no line can carry has no shards, and `?` in its path where the line breaks.
    """

    path: str
    size_bytes: int
    shards: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Inspected:
    """What the headers say, and the beginning of the first file, from which slices are cut."""

    shape: ModelShape
    headers: tuple[Header, ...]
    beginning: bytes
    fingerprint: str


@dataclass(frozen=True)
class ScanResult:
    files: list[ModelFile]
    problems: list[str]


Known = dict[tuple[int | None, str], ModelFile]
Looked = list[tuple[FoundFile, Inspected | GgufError | None]]


def library_device() -> Device:
    """The server's library folder, read like a device; it has no row."""
    return Device(name="library", connection=Device.Connections.LOCAL, model_roots=[str(library_folder())])


def library_folder() -> PurePosixPath:
    return PurePosixPath(settings.DATA_DIR) / "models"


def scan(devices: Sequence[Device], progress: Progress, *, with_library: bool = True) -> ScanResult:
    """Look through `devices` and the library, and save what was found; what is gone is forgotten."""
    places = [*devices, *([library_device()] if with_library else [])]
    known = {(file.device_id, file.path): file for file in ModelFile.objects.select_related("model")}
    result = ScanResult([], [])
    progress.report(f"Looking through {counted(len(places), 'place')}")
    for device, found in zip(places, asyncio.run(_look_everywhere(places, known)), strict=True):
        progress.check()
        if isinstance(found, RemoteError):
            result.problems.append(f"{device.name}: {found}")
        else:
            _save(device, found, result)
    for problem in result.problems:
        progress.log(problem)
    progress.report(
        f"{counted(len(result.files), 'file')} of {counted(len({file.model_id for file in result.files}), 'model')}",
        1.0,
    )
    return result


async def inspect(connection: Connection, found: FoundFile) -> Inspected:
    """Read the headers of a model's files; GgufError says what is wrong with the file."""
    beginning, first = await _header(connection, found.shards[0])
    headers = [first]
    for shard in found.shards[1:]:
        headers.append((await _header(connection, shard))[1])
    samples = await _samples(connection, found.shards[0], first)
    digest = hashlib.sha256(beginning[: first.data_start])
    digest.update(f"{found.size_bytes}".encode())
    digest.update(samples)
    return Inspected(shape_of(headers), tuple(headers), beginning[: first.data_start], digest.hexdigest())


async def find(connection: Connection, roots: Sequence[str]) -> list[FoundFile]:
    """GGUF files under `roots`; links that lead out of them are not followed."""
    for root in roots:
        if not root.startswith("/") or ".." in PurePosixPath(root).parts:
            raise RemoteError(f"the model folder {root!r} is not an absolute path without '..'")
    done = await connection.script(FIND_PROGRAM, list(roots), timeout_seconds=FIND_SECONDS)
    rows = re.findall(r"^gguf\t(\d+)\t(/.+\.gguf)$", done.stdout, re.MULTILINE)
    sizes = dict(sorted((path, int(size)) for size, path in rows)[:MAX_FILES])
    odd = re.findall(r"^odd\t(\d+)\t(/.+)$", done.stdout, re.MULTILINE)[:MAX_FILES]
    return [
        *(file for path in sizes if (file := _with_shards(path, sizes)) is not None),
        *(FoundFile(path, int(size), ()) for size, path in odd),
    ]


def file_at(path: str, sizes: dict[str, int]) -> FoundFile:
    """One file that somebody names, without its sister shards."""
    return FoundFile(path, sizes[path], ((path, sizes[path]),))


async def found_again(connection: Connection, path: str) -> FoundFile:
    """The file at a known path with its shards; RemoteError when it is gone."""
    folder = str(PurePosixPath(path).parent)
    for file in await find(connection, [folder]):
        if file.path == path and file.shards:
            return file
    raise RemoteError(f"{path} is no longer on {connection.name}. Look for models again.")


def default_roots(home: str) -> list[str]:
    return [f"{home}/{root}" for root in USUAL_ROOTS] + list(SHARED_ROOTS)


def _name(path: str) -> str:
    """People know a model by its file; what `general.name` says is often a training run."""
    name = PurePosixPath(path).name
    match = SHARD.match(name)
    return visible(match["stem"] if match else name.removesuffix(".gguf"))[:200]


def _with_shards(path: str, sizes: dict[str, int]) -> FoundFile | None:
    """A split model stands for all its shards, under the name of the first."""
    folder, name = PurePosixPath(path).parent, PurePosixPath(path).name
    match = SHARD.match(name)
    if match is None:
        return file_at(path, sizes)
    if match["number"] != "00001":
        return None
    names = [
        f"{match['stem']}-{number:05d}-of-{match['count']}.gguf"
        for number in range(1, int(match["count"]) + 1)
    ]
    paths = [str(folder / shard) for shard in names]
    shards = tuple((shard, sizes[shard]) for shard in paths if shard in sizes)
    return FoundFile(path, sum(size for _, size in shards), shards)


async def _look_everywhere(places: Sequence[Device], known: Known) -> list[Looked | RemoteError]:
    async def look(device: Device) -> Looked | RemoteError:
        try:
            return await _look(device, known)
        except RemoteError as error:
            return error

    return await asyncio.gather(*(look(device) for device in places))


async def _look(device: Device, known: Known) -> Looked:
    """Every file of a device; None where a known file has not changed its size."""
    async with connect(device) as connection:
        home = (
            device.hardware.get("home") or (await connection.run(["sh", "-c", 'echo "$HOME"'])).stdout.strip()
        )
        roots = device.model_roots or default_roots(home)
        results: Looked = []
        for found in await find(connection, roots):
            if not found.shards:
                results.append((found, GgufError("its path holds a line break; rename it")))
                continue
            row = known.get((device.pk, found.path))
            if row is not None and row.size_bytes == found.size_bytes and not _shape(row).problem:
                results.append((found, None))
                continue
            try:
                results.append((found, await inspect(connection, found)))
            except GgufError as error:
                results.append((found, error))
        return results


def _shape(row: ModelFile) -> ModelShape:
    return ModelShape.from_dict(row.model.shape)


async def _header(connection: Connection, shard: tuple[str, int]) -> tuple[bytes, Header]:
    path, size = shard
    wanted = FIRST_READ_BYTES
    while True:
        beginning = await connection.read_file(path, wanted)
        try:
            return beginning, header_from_bytes(beginning, size)
        except GgufTruncated:
            if wanted >= MAX_READ_BYTES:
                raise GgufError(f"the header of {path} is longer than {MAX_READ_BYTES >> 20} MiB") from None
            wanted *= 4


async def _samples(connection: Connection, shard: tuple[str, int], header: Header) -> bytes:
    """Bytes from the beginning, middle and end of the tensors: the same header may stand before other weights."""
    path, size = shard
    if size <= header.data_start:
        return b""
    middle = (header.data_start + size) // 2
    starts = {header.data_start, middle, max(header.data_start, size - SAMPLE_BYTES)}
    parts = [await connection.read_part(path, start, SAMPLE_BYTES) for start in sorted(starts)]
    return b"".join(parts)


@transaction.atomic
def _save(device: Device, found: Looked, result: ScanResult) -> None:
    now = timezone.now()
    kept = []
    for file, outcome in found:
        if isinstance(outcome, GgufError):
            result.problems.append(
                f"{device.name}: {visible(file.path)} cannot be used: {visible(str(outcome))}"
            )
            continue
        row = ModelFile.objects.filter(device_id=device.pk, path=file.path).first()
        if outcome is not None:
            row = remember(device, file, outcome)
        assert row is not None, "a file that was not inspected has a row"
        ModelFile.objects.filter(pk=row.pk).update(seen_at=now)
        kept.append(row.pk)
        result.files.append(row)
    ModelFile.objects.filter(device_id=device.pk).exclude(pk__in=kept).delete()


def remember(device: Device, file: FoundFile, inspected: Inspected) -> ModelFile:
    """Save a file and its model; a model with the same content is the same row wherever it lies."""
    shape = inspected.shape
    values = {"architecture": shape.architecture, "size_bytes": file.size_bytes, "shape": shape.to_dict()}
    model, _ = LanguageModel.objects.update_or_create(
        fingerprint=inspected.fingerprint,
        defaults=values,
        create_defaults={**values, "name": _name(file.path)},
    )
    row, _ = ModelFile.objects.update_or_create(
        device_id=device.pk,
        path=file.path,
        defaults={"model": model, "size_bytes": file.size_bytes, "seen_at": timezone.now()},
    )
    return row

"""Copies a model to a device, going on where an earlier copy stopped, and compares hashes at the end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath
from time import perf_counter

from django.utils import timezone

from inventory.core.quantities import bytes_text
from inventory.library.finding import FoundFile, found_again, library_device
from inventory.models import Device, LanguageModel, ModelFile
from inventory.remote import Connection, RemoteError, connect
from jobs.core.errors import JobFailed
from jobs.progress import Progress

PIECE_BYTES = 16 * 1024 * 1024
SPARE_DISK_BYTES = 1024**3
HASH_SECONDS = 3600.0
PREPARE_PROGRAM = r"""
umask 022
mkdir -p -- "${1%/*}" || exit 1
[ -f "$1" ] && { echo "there $(wc -c < "$1")"; exit 0; }
[ -f "$1.part" ] && echo "part $(wc -c < "$1.part")" || echo "part 0"
df -Pk "${1%/*}" | tail -n 1 | sed 's/^/disk /'
"""
APPEND_PROGRAM = 'cat >> "$1.part"'
HASH_PROGRAM = 'if command -v sha256sum >/dev/null 2>&1; then sha256sum < "$1"; else shasum -a 256 < "$1"; fi'
FINISH_PROGRAM = 'chmod 644 "$1.part" && mv -f -- "$1.part" "$1"'


@dataclass(frozen=True)
class Place:
    """What the target folder holds already: bytes of a whole or of a begun file, and free space."""

    whole_bytes: int | None
    begun_bytes: int
    free_bytes: int | None


@dataclass
class Meter:
    """Bytes of all files of the model, and how long the rest takes at the rate so far."""

    progress: Progress
    total_bytes: int
    done_bytes: int = 0
    skipped_bytes: int = 0

    def __post_init__(self) -> None:
        self.began = perf_counter()

    def add(self, count: int, *, skipped: bool = False) -> None:
        self.done_bytes += count
        self.skipped_bytes += count if skipped else 0
        self.progress.check()
        moved = self.done_bytes - self.skipped_bytes
        rate = moved / max(perf_counter() - self.began, 1e-3)
        left = (self.total_bytes - self.done_bytes) / rate if moved else None
        text = f"{bytes_text(self.done_bytes)} of {bytes_text(self.total_bytes)}"
        self.progress.report(text, self.done_bytes / self.total_bytes, left)


def copy_model(model: LanguageModel, device: Device, progress: Progress) -> ModelFile:
    """Put a copy on the device and remember it; an interrupted copy goes on where it stopped."""
    sources = ModelFile.objects.filter(model=model).exclude(device=device).select_related("device__identity")
    if not sources:
        raise JobFailed(f"No copy of {model.name} is known to copy from. Look for models again.")
    nearest = sorted(sources, key=lambda file: file.device_id is not None)
    try:
        path, size = asyncio.run(_copy(nearest[0], device, progress))
    except RemoteError as error:
        raise JobFailed(str(error)) from error
    row, _ = ModelFile.objects.update_or_create(
        device=device, path=path, defaults={"model": model, "size_bytes": size, "seen_at": timezone.now()}
    )
    return row


async def _copy(source: ModelFile, target: Device, progress: Progress) -> tuple[str, int]:
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(connect(source.device or library_device()))
        goal = await stack.enter_async_context(connect(target))
        found = await found_again(origin, source.path)
        folder = await _folder(goal, target)
        meter = Meter(progress, found.size_bytes)
        await _refuse_without_space(goal, folder, found)
        for path, size in found.shards:
            await _copy_file(origin, goal, path, f"{folder}/{PurePosixPath(path).name}", size, meter)
        return f"{folder}/{PurePosixPath(found.path).name}", found.size_bytes


async def _folder(connection: Connection, device: Device) -> str:
    """The first of the device's model folders, or ~/models."""
    if device.model_roots:
        return str(device.model_roots[0])
    home = (await connection.run(["sh", "-c", 'echo "$HOME"'])).stdout.strip()
    return f"{home}/models"


async def _refuse_without_space(connection: Connection, folder: str, found: FoundFile) -> None:
    needed, free = 0, None
    for path, size in found.shards:
        place = await _look(connection, f"{folder}/{PurePosixPath(path).name}")
        needed += 0 if place.whole_bytes == size else size - place.begun_bytes
        free = place.free_bytes if place.free_bytes is not None else free
    if free is not None and needed + SPARE_DISK_BYTES > free:
        raise JobFailed(
            f"{connection.name} has {bytes_text(free)} free under {folder}; {bytes_text(needed)} are needed "
            f"and {bytes_text(SPARE_DISK_BYTES)} stay free. Remove files there, or set another folder on its page."
        )


async def _look(connection: Connection, path: str) -> Place:
    done = await connection.script(PREPARE_PROGRAM, [path])
    if not done.succeeded:
        raise RemoteError(f"{path} cannot be made on {connection.name}: {done.stderr.strip()[-200:]}")
    whole = re.search(r"^there\s+(\d+)$", done.stdout, re.MULTILINE)
    begun = re.search(r"^part\s+(\d+)$", done.stdout, re.MULTILINE)
    disk = re.search(r"^disk .+?\s(\d+)\s+\d+%\s", done.stdout, re.MULTILINE)
    return Place(
        int(whole[1]) if whole else None,
        int(begun[1]) if begun else 0,
        int(disk[1]) * 1024 if disk else None,
    )


async def _copy_file(
    origin: Connection, goal: Connection, source: str, target: str, size: int, meter: Meter
) -> None:
    place = await _look(goal, target)
    if place.whole_bytes is None:
        begun = place.begun_bytes if place.begun_bytes <= size else 0
        if begun == 0:
            await goal.remove([f"{target}.part"])
        meter.add(begun, skipped=True)
        async for piece in _pieces(origin, source, begun, size):
            done = await goal.run(
                ["/bin/sh", "-c", APPEND_PROGRAM, "sh", target], stdin=piece, timeout_seconds=600.0
            )
            if not done.succeeded:
                raise RemoteError(
                    f"{target} could not be written on {goal.name}: {done.stderr.strip()[-200:]}"
                )
            meter.add(len(piece))
    else:
        meter.add(size, skipped=True)
    await _compare(origin, goal, source, target, is_part=place.whole_bytes is None, meter=meter)


async def _pieces(origin: Connection, path: str, start: int, size: int) -> AsyncIterator[bytes]:
    """The file from `start` on; the next piece is read while the last is written."""
    reading = asyncio.create_task(origin.read_part(path, start, PIECE_BYTES))
    try:
        while start < size:
            piece = await reading
            if not piece:
                raise RemoteError(f"{path} on {origin.name} ends at byte {start}, before its {size} bytes")
            start += len(piece)
            reading = asyncio.create_task(origin.read_part(path, start, PIECE_BYTES))
            yield piece
    finally:
        reading.cancel()
        await asyncio.wait([reading])


async def _compare(
    origin: Connection, goal: Connection, source: str, target: str, *, is_part: bool, meter: Meter
) -> None:
    """Equal hashes, or the copy is thrown away."""
    meter.progress.report("Comparing hashes", meter.done_bytes / meter.total_bytes)
    written = f"{target}.part" if is_part else target
    wanted, found = await asyncio.gather(_hash(origin, source), _hash(goal, written))
    if wanted != found:
        if is_part:
            await goal.remove([written])
        raise RemoteError(
            f"{written} on {goal.name} differs from {source} on {origin.name} (SHA-256 {found[:12]}… instead of "
            f"{wanted[:12]}…). {'The copy was removed; try again.' if is_part else 'Move that file away first.'}"
        )
    if is_part:
        await goal.run(["/bin/sh", "-c", FINISH_PROGRAM, "sh", target])


async def _hash(connection: Connection, path: str) -> str:
    done = await connection.run(["/bin/sh", "-c", HASH_PROGRAM, "sh", path], timeout_seconds=HASH_SECONDS)
    found = re.match(r"([0-9a-f]{64})\b", done.stdout)
    if found is None:
        raise RemoteError(f"{path} on {connection.name} has no SHA-256: {done.stderr.strip()[-200:]}")
    return found[1]

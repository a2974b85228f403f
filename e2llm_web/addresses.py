"""Where the pages and the gateway listen, and under which names they are reached."""

import socket
from dataclasses import dataclass

OWN = {"127.0.0.1", "localhost", "::1"}
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not bound
SOMEWHERE_ELSE = ("192.0.2.1", 9)  # an address for documentation: nothing is sent there


@dataclass(frozen=True)
class Addresses:
    host: str
    port: int
    gateway_port: int

    @property
    def site(self) -> str:
        return f"http://{self.connect_host}:{self.port}"

    @property
    def gateway(self) -> str:
        return f"http://{self.connect_host}:{self.gateway_port}"

    @property
    def ports_by_option(self) -> dict[str, int]:
        return {"--port": self.port, "--gateway-port": self.gateway_port}

    @property
    def connect_host(self) -> str:
        """How this machine itself reaches them."""
        return bracketed(EVERYWHERE.get(self.host, self.host))

    @property
    def is_open(self) -> bool:
        return self.host not in OWN

    def names(self) -> list[str]:
        """The names for which the site has to answer, beyond those of the loopback."""
        if self.host in EVERYWHERE:
            return sorted({socket.gethostname(), socket.getfqdn(), outward_address()} - OWN)
        return [bracketed(self.host)] if self.is_open else []


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def outward_address() -> str:
    """The address that this machine has towards others; a connected UDP socket sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(SOMEWHERE_ELSE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])

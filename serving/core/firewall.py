"""What keeps strangers from an RPC worker, which has neither key nor encryption: rules for its host's packet filter."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

TABLE = "inet e2llm"
CHAIN = "workers"
HOOK = "{ type filter hook input priority 0 ; }"


@dataclass(frozen=True)
class WorkerPort:
    """An RPC worker that listens, and the master that alone has to reach it."""

    device: str
    address: str
    port: int
    master_address: str

    @property
    def is_public(self) -> bool:
        """Whether the whole internet can send packets to the address."""
        return ip_address(self.address).is_global

    @property
    def public_text(self) -> str:
        return (
            f"{self.device} listens on {self.address}, which is an address of the internet. Set up the rule before "
            "anything else, or give the device an address of your own network."
        )

    @property
    def key(self) -> str:
        return f"{self.address.replace('.', '-')}-{self.port}"

    @property
    def rules(self) -> tuple[str, ...]:
        """Commands for nftables on the worker's host; done twice they do no harm but a second rule."""
        allowed = ", ".join(dict.fromkeys((self.address, self.master_address)))
        return (
            f"nft add table {TABLE}",
            f"nft 'add chain {TABLE} {CHAIN} {HOOK}'",
            f"nft 'add rule {TABLE} {CHAIN} ip daddr {self.address} tcp dport {self.port} "
            f"ip saddr != {{ {allowed} }} drop'",
        )

    @property
    def text(self) -> str:
        return "\n".join(self.rules)

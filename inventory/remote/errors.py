"""What can go wrong on the way to a device, in words for a person."""

from inventory.remote.reasons import reason

CONNECT_SECONDS = 10.0


class RemoteError(Exception):
    """A device could not be reached or did not do what it was asked; the text is for a person."""


class HostUnreachable(RemoteError):
    pass


class AuthenticationRefused(RemoteError):
    pass


class CommandTimedOut(RemoteError):
    pass


class HostKeyChanged(RemoteError):
    """The host shows another key than the one pinned: never continue."""

    def __init__(self, name: str, old_fingerprint: str, new_fingerprint: str) -> None:
        super().__init__(
            f"{name} shows a different host key than the one confirmed. Confirmed: {old_fingerprint}. "
            f"Shown now: {new_fingerprint}. Nothing was sent to it. If the machine was reinstalled, "
            "confirm the new key on its page; if not, somebody may be standing between."
        )
        self.old_fingerprint = old_fingerprint
        self.new_fingerprint = new_fingerprint


def silent_text(host: str, port: int) -> str:
    return (
        f"{host} port {port} did not answer within {CONNECT_SECONDS:g} s. "
        "Check that the machine is on, that the address is right and that no firewall drops the port."
    )


def unreachable_text(host: str, port: int, error: Exception) -> str:
    return (
        f"{host} port {port} cannot be reached: {reason(error)}. "
        "Check the address and the port, and that sshd runs there."
    )

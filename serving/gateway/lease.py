"""Which of several gateways serves: one owns the slots of the replicas, the others stand by and name it.

The owner renews a row. Nobody's clock is compared with another's: a gateway that stands by watches whether the
row moves. A number that only grows, the fence, tells an owner that was asleep that it is none any more.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from django.db import DatabaseError, IntegrityError
from django.db.models import QuerySet

from serving.models import GatewayLease

log = logging.getLogger(__name__)

RENEW_SECONDS = 3.0
LIFE_SECONDS = 12.0
ROW = 1


class Lease:
    """Held by at most one gateway of a site, or by nobody for a few seconds after its owner vanished."""

    def __init__(self, name: str, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.address = address
        self.clock = clock
        self.fence = 0  # of the lease that is held; 0 while it is not
        self.owner = ""  # who has it, in words, while it is somebody else
        self._renewed = clock()
        self._is_database_away = False
        self._seen: tuple[int, int] = (0, 0)  # fence and beat of another owner
        self._seen_since = clock()

    def refusal(self) -> str:
        """Why no request may be served now; empty while one may.

        A database that is away takes the lease from nobody: whoever wants it needs the database, too.
        """
        if not self.fence:
            return (
                f"another gateway serves this site: {self.owner}; ask there"
                if self.owner
                else "just starting"
            )
        is_late = self.clock() - self._renewed > LIFE_SECONDS
        if is_late and not self._is_database_away:
            return "this gateway was asleep and first has to find out whether another one took over"
        return ""

    def keep(self) -> None:
        """Renew what is held, or take what nobody holds; DatabaseError when the database is away."""
        if self.fence and self.clock() - self._renewed < RENEW_SECONDS:
            return
        try:
            self._keep()
        except DatabaseError:
            self._is_database_away = True
            raise
        self._is_database_away = False

    def release(self) -> None:
        """Let another gateway take over at once."""
        if self.fence:
            self._mine().update(holder="", beat=0)
            self.fence = 0

    def _keep(self) -> None:
        asked = self.clock()
        if self.fence and self._renew(asked):
            return
        row = GatewayLease.objects.filter(pk=ROW).first()
        if row is None:
            self._create(asked)
        elif self._is_free(row):
            self._take(row, asked)
        else:
            self._stand_by(row)

    def _renew(self, asked: float) -> bool:
        row = self._mine().first()
        if row is None or not self._mine().filter(beat=row.beat).update(beat=row.beat + 1):
            log.warning("another gateway took over; this one stands by")
            self.fence = 0
            return False
        self._renewed = asked
        return True

    def _create(self, asked: float) -> None:
        try:
            GatewayLease.objects.create(pk=ROW, fence=1, **self._identity())
        except IntegrityError:
            return  # somebody else was faster; the next look tells who
        self._hold(1, asked)

    def _take(self, row: GatewayLease, asked: float) -> None:
        """Only from the state that was seen, so that of two who want it one gets it."""
        seen = GatewayLease.objects.filter(pk=ROW, fence=row.fence, beat=row.beat, holder=row.holder)
        if seen.update(fence=row.fence + 1, beat=0, **self._identity()):
            self._hold(row.fence + 1, asked)

    def _hold(self, fence: int, asked: float) -> None:
        self.fence, self.owner, self._renewed = fence, "", asked

    def _stand_by(self, row: GatewayLease) -> None:
        owner = f"{row.address} (process {row.pid} on {row.machine.split()[0]})"
        if owner != self.owner:
            log.warning("this gateway stands by: %s serves the site", owner)
        self.owner = owner

    def _is_free(self, row: GatewayLease) -> bool:
        if not row.holder:
            return True
        if row.machine == this_machine() and (row.pid == os.getpid() or not is_alive(row.pid)):
            return True
        if (row.fence, row.beat) != self._seen:
            self._seen, self._seen_since = (row.fence, row.beat), self.clock()
        return self.clock() - self._seen_since > LIFE_SECONDS

    def _mine(self) -> QuerySet[GatewayLease]:
        return GatewayLease.objects.filter(pk=ROW, holder=self.name, fence=self.fence)

    def _identity(self) -> dict[str, str | int]:
        return {
            "holder": self.name,
            "address": self.address,
            "machine": this_machine(),
            "pid": os.getpid(),
        }


def this_machine() -> str:
    """Name and boot of this machine; processes of containers with other names are not looked for."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}".strip()[:120]


def is_alive(pid: int) -> bool:
    """Whether a process of this machine runs; one that ended and was not yet collected does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        state = stat.read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists()  # without such files, the signal has to do
    return state != "Z"

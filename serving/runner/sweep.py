"""Remove what starts that were cut off left on the hosts: folders that no process and no row owns."""

from __future__ import annotations

import logging
import re

from inventory.models import Device
from inventory.remote import Connection, RemoteError, kept
from inventory.remote.kept import Question
from serving import from_inventory
from serving.models import ManagedProcess
from serving.processes import observe, whose
from serving.processes.observe import Folder
from serving.runner import states

log = logging.getLogger(__name__)

LIMIT_SECONDS = 30.0
MARKER = re.compile(r"e2llm-[0-9a-f]{12}")


def sweep() -> None:
    """Look at every device that answers; what cannot be removed now is left to the next time."""
    devices = Device.objects.filter(state=Device.States.ONLINE, probed_at__isnull=False)
    owned = set(states.left_on_hosts().values_list("marker", flat=True))
    ever = set(ManagedProcess.objects.values_list("marker", flat=True))

    async def one(connection: Connection) -> list[str]:
        folders = await observe.folders(connection, [from_inventory.SHARED_MEMORY])
        running = {process.marker for process in (await observe.observe(connection)).processes}
        needed = {folder.marker for folder in folders if not is_left(folder, owned | running, ever)}
        # All of one mark or none: the note that says whose they are lies in one of them.
        paths = [folder.path for folder in folders if folder.marker not in needed]
        await connection.remove(paths)
        return paths

    questions = [Question(device, one, LIMIT_SECONDS) for device in devices.select_related("identity")]
    answers = kept.ask(questions)
    for question, removed in zip(questions, answers, strict=True):
        if isinstance(removed, RemoteError):
            log.info("%s was not swept: %s", question.device, removed)
        elif removed:
            log.info("%s: removed %s", question.device, ", ".join(removed))


def is_left(folder: Folder, owned: set[str], ever: set[str]) -> bool:
    """Ours, of no process and no row that needs it, and empty for a while or untouched for a day."""
    marker = folder.marker
    if not MARKER.fullmatch(marker) or marker in owned:
        return False
    is_ours = folder.installation == whose.installation_id() or marker in ever
    return is_ours and (folder.age == "old" or (folder.is_empty and folder.age != "fresh"))

"""Keep the demo's three SSH hosts running until told to stop."""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from demo import hosts
from demo.packages import CANNOT_WORK, PartMissing


class Command(BaseCommand):
    help = (
        "Run the demo's three SSH hosts on 127.0.0.11 to 127.0.0.13 until Ctrl-C; what was detached lives on."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        # asyncio warns for every packet that comes through a tunnel after its end; sshd says nothing either.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        try:
            asyncio.run(self.serve())
        except PartMissing as reason:
            raise CommandError(str(reason), returncode=CANNOT_WORK) from None

    async def serve(self) -> None:
        stop = asyncio.Event()
        for sign in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sign, stop.set)
        async with AsyncExitStack() as stack:
            for host in hosts.hosts(settings.DATA_DIR / "demo"):
                await stack.enter_async_context(hosts.serving(host))
                self.stdout.write(
                    f"{host.name} answers on {host.address} port {host.port}, host key {host.key_text}"
                )
            await stop.wait()

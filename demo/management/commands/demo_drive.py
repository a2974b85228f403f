"""Register the demo's hosts, plan, deploy and ask the first question; what is done already is kept."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from demo.drive import DemoStopped, drive
from demo.packages import CANNOT_WORK, PartMissing


class Command(BaseCommand):
    help = "Bring the demo to its first answer; needs demo_hosts, the worker and the gateway to run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--manual", action="store_true", help="only make the hosts ready; the rest is left to you"
        )

    def handle(self, *args: Any, manual: bool, **options: Any) -> None:
        try:
            drive(settings.DATA_DIR / "demo", self.say, manual=manual)
        except PartMissing as reason:
            raise CommandError(str(reason), returncode=CANNOT_WORK) from None
        except DemoStopped as reason:
            self.say(f"the demo could not go on: {reason} The pages stay usable.")

    def say(self, text: str) -> None:
        self.stdout.write(text)
        self.stdout.flush()

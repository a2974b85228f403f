"""A command that answers `--json` with one document on stdout, also when it gives up."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError

from planner.core.errors import BadDocument

BAD_INPUT = 2


class JsonCommand(BaseCommand):
    def run_from_argv(self, argv: list[str]) -> None:
        """Options are looked at once before: argparse would tell a wrong one in words, on stderr."""
        if "--json" in argv[2:]:
            try:
                self.create_parser(argv[0], argv[1]).parse_args(argv[2:])
            except CommandError as error:
                problem = str(error).removeprefix("Error: ")
                self.give_up(BadDocument([problem]).to_dict(), [problem], BAD_INPUT, as_json=True)
        super().run_from_argv(argv)

    def give_up(self, document: dict[str, Any], lines: list[str], status: int, *, as_json: bool) -> NoReturn:
        if as_json:
            self.stdout.write(json.dumps(document, indent=1))
        else:
            self.stderr.write("\n".join(lines))
        sys.exit(status)

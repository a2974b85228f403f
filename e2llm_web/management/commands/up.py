"""Start everything on this machine and keep it running until Ctrl-C."""

import asyncio
import fcntl
import os
import shutil
import signal
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections
from django.urls import reverse

from accounts import vault
from accounts.core.roles import Role
from accounts.models import User
from accounts.services import create_login_link
from e2llm_web import embedded_redis, parts, ports, pulse
from e2llm_web.addresses import Addresses
from e2llm_web.supervisor import PartFailed, StopRequested, Supervisor
from jobs.core.errors import JobFailed
from serving.models import Deployment
from upkeep.runner.before_upgrade import copy_before_upgrade

LEAST_FREE_BYTES = 300 * 10**6


class Command(BaseCommand):
    help = "Start Redis, worker, beat, pages and gateway on this machine; Ctrl-C stops them."
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
        )
        parser.add_argument("--port", type=int, default=8000, help="port of the pages")
        parser.add_argument(
            "--gateway-port", type=int, default=8001, help="port of the OpenAI-compatible gateway"
        )
        parser.add_argument(
            "--demo",
            nargs="?",
            const="auto",
            choices=("auto", "manual"),
            help="add three small SSH hosts on this machine; =manual leaves registering and deploying to you",
        )

    def handle(
        self, *args: Any, host: str, port: int, gateway_port: int, demo: str | None, **options: Any
    ) -> None:
        addresses = Addresses(host, port, gateway_port)
        check_port_numbers(addresses)
        settings.DATA_DIR.mkdir(parents=True, exist_ok=True)
        with claim(settings.DATA_DIR / "up.lock", addresses):
            check_disk()
            check_ports(addresses)
            vault.create_key_file()
            os.chdir(settings.BASE_DIR)  # where the parts find their code
            try:
                asyncio.run(Session(addresses, demo).run())
            except (PartFailed, embedded_redis.NoRedis) as error:
                raise CommandError(str(error)) from None


class Session:
    """One run of `up`, from the first process to the last."""

    def __init__(self, addresses: Addresses, demo: str | None) -> None:
        self.addresses = addresses
        self.demo = demo
        self.environment = child_environment(addresses)

    async def run(self) -> None:
        supervisor = Supervisor(say)
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(sign, supervisor.stop_asked.set)
        try:
            await self.start(supervisor)
            await supervisor.wait()
        except StopRequested:
            say("up", "stopping")
        finally:
            await supervisor.stop()
        await asyncio.to_thread(farewell, is_demo=self.demo is not None)

    async def start(self, supervisor: Supervisor) -> None:
        await self.start_redis(supervisor)
        await asyncio.to_thread(migrate)
        await asyncio.to_thread(call_command, "collectstatic", interactive=False, clear=True, verbosity=0)
        environment = self.environment
        if self.demo:
            await supervisor.start(parts.demo_hosts(environment))
        say("up", "starting worker, beat, pages and gateway")
        await asyncio.to_thread(pulse.give)  # a beat that never ticks is silent from now on
        await supervisor.start(
            parts.worker(environment),
            parts.beat(environment),
            parts.web(self.addresses, environment),
            parts.gateway(self.addresses, environment),
        )
        await asyncio.to_thread(welcome, self.addresses, always_link=self.demo is not None)
        if self.demo:
            await supervisor.start(parts.demo_drive(environment, manual=self.demo == "manual"))
        say("up", "running; Ctrl-C stops")

    async def start_redis(self, supervisor: Supervisor) -> None:
        if os.environ.get("REDIS_URL"):
            if not await parts.redis_answers(settings.REDIS_URL):
                raise PartFailed(
                    "The Redis that REDIS_URL names does not answer. "
                    "Remedy: start it or correct the address; without REDIS_URL an embedded one is used."
                )
            return
        await asyncio.to_thread(embedded_redis.end_leftover, settings.DATA_DIR)
        say("up", "starting the embedded Redis")
        await supervisor.start(parts.redis(settings.DATA_DIR, self.environment))


def say(name: str, text: str) -> None:
    sys.stdout.write(f"{name:8}| {text}\n")
    sys.stdout.flush()


def claim(path: Path, addresses: Addresses) -> IO[str]:
    """The open lock file; CommandError when another instance holds it."""
    file = path.open("a+")
    file.seek(0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CommandError(
            f"E2LLM Web already runs on this data folder ({path.parent}): {file.read().strip()}. "
            "Remedy: use that one, stop it with Ctrl-C, or give this one another folder with E2LLM_DATA."
        ) from None
    file.truncate(0)
    file.write(f"pid {os.getpid()}, {addresses.site}/\n")
    file.flush()
    return file


def check_disk() -> None:
    free = shutil.disk_usage(settings.DATA_DIR).free
    if free < LEAST_FREE_BYTES:
        raise CommandError(
            f"The disk of the data folder {settings.DATA_DIR} has {free / 1e6:.0f} MB left, at least "
            f"{LEAST_FREE_BYTES / 1e6:.0f} MB are needed. "
            "Remedy: free some space, or set E2LLM_DATA to a folder elsewhere."
        )


def check_port_numbers(addresses: Addresses) -> None:
    for option, port in addresses.ports_by_option.items():
        if not ports.LOWEST <= port <= ports.HIGHEST:
            raise CommandError(
                f"{option} {port} is no port: give a number from {ports.LOWEST} to {ports.HIGHEST}."
            )
    if addresses.port == addresses.gateway_port:
        raise CommandError(
            f"--port and --gateway-port are both {addresses.port}, but pages and gateway need a port each. "
            "Remedy: change one of them."
        )


def check_ports(addresses: Addresses) -> None:
    for option, port in addresses.ports_by_option.items():
        try:
            is_free = ports.is_free(addresses.host, port)
        except OSError as error:
            raise CommandError(
                f"Nothing can listen on port {port} of {addresses.host}: {error.strerror}. Remedy: give an address "
                f"of this machine with --host, and a port above 1023 with {option}."
            ) from None
        if not is_free:
            raise CommandError(
                f"Port {port} on {addresses.host} is taken by {ports.holder(port)}. "
                f"Remedy: stop that program, or choose another port with {option}."
            )


def child_environment(addresses: Addresses) -> dict[str, str]:
    named = [host for host in os.environ.get("E2LLM_HOSTS", "").split(",") if host]
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "e2llm_web.settings",
        "E2LLM_DATA": str(settings.DATA_DIR),
        "E2LLM_GATEWAY_URL": addresses.gateway,
        "E2LLM_HOSTS": ",".join([*named, *addresses.names()]),
        "PYTHONUNBUFFERED": "1",
    }


def migrate() -> None:
    say("up", "bringing the database up to date")
    copy = None
    try:
        copy = copy_before_upgrade()
        call_command("migrate", interactive=False, verbosity=0)
    except (DatabaseError, JobFailed) as error:
        raise PartFailed(why_not_migrated(error, copy)) from None
    finally:
        connections.close_all()


def why_not_migrated(error: Exception, copy: Path | None) -> str:
    if isinstance(error, JobFailed):
        return f"The database was not upgraded, since it could not be copied before. {error}"
    if copy is not None:
        return (
            f"The database could not be upgraded: {str(error).strip()}\n"
            f"Remedy: it is as it was before in {copy}; start the old version with it in place of e2llm.sqlite3."
        )
    return (
        f"The database does not answer: {str(error).strip()}\n"
        "Remedy: start it or correct DATABASE_URL; without DATABASE_URL a file in the data folder is used."
    )


def welcome(addresses: Addresses, *, always_link: bool) -> None:
    """Where to go, how to get in, and what is risky about it."""
    say("up", f"pages    {addresses.site}/")
    say("up", f"gateway  {addresses.gateway}/v1")
    if os.geteuid() == 0:
        say("up", "this runs as root; give it a user of its own when it stays (docs/operations.md)")
    if addresses.is_open and not settings.HTTPS:
        say("up", "others reach this over plain HTTP, passwords included (docs/operations.md)")
    try:
        if always_link or not User.objects.filter(role=Role.ADMIN, last_login__isnull=False).exists():
            link = reverse("accounts:login_link", args=[create_login_link()])
            say("up", f"log in once with  {addresses.site}{link}")
    finally:
        connections.close_all()


def farewell(*, is_demo: bool) -> None:
    try:
        running = [
            str(deployment) for deployment in Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING)
        ]
    finally:
        connections.close_all()
    if running:
        say("up", f"{', '.join(running)} keeps running on its hosts; the next start takes it over")
        when = ", once its hosts run again" if is_demo else ""
        say("up", f"to end that too{when}: ./run manage stop_deployments")
    say("up", "stopped")

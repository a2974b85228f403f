"""The processes of the product: how each is started and how one sees that it is ready."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from e2llm_web import embedded_redis, ports, pulse
from e2llm_web.addresses import Addresses
from e2llm_web.supervisor import Part

WORKER_PROCESSES = 6  # jobs mostly wait for hosts; a plan must not keep the housekeeping waiting
WORKER_GRACE_SECONDS = 8.0
BEAT_START_SECONDS = 90.0  # until its first tick, on a busy machine
# The append-only file is small and may fail to be rewritten; the ends are ordered by `up`, which says so itself.
REDIS_UNSAID = ("Memory overcommit must be enabled", "Received SIGTERM", "is now ready to exit")
WORKER_UNSAID = ("Hitting Ctrl+C again", "Cold shutdown (MainProcess)", "Requeuing undeliverable message")
QUIET_ABOUT_ROOT = "ignore:You're running the worker"  # `up` says it once, in one line


async def redis_answers(url: str) -> bool:
    try:
        async with Redis.from_url(url) as client:
            return bool(await client.ping())
    except (RedisError, OSError):
        return False


def redis(data_folder: Path, environment: Mapping[str, str]) -> Part:
    async def is_ready() -> bool:
        return await redis_answers(embedded_redis.url(data_folder))

    return Part("redis", embedded_redis.command(data_folder), environment, is_ready, unsaid=REDIS_UNSAID)


def worker(environment: Mapping[str, str]) -> Part:
    """SIGQUIT: a job in hand is left to its lease and goes on after the next start, instead of holding up the stop."""
    argv = [
        *_celery("worker", "--concurrency", str(WORKER_PROCESSES)),
        *("--without-gossip", "--without-mingle"),
    ]
    return Part(
        "worker",
        argv,
        environment,
        stop_signal=signal.SIGQUIT,
        grace_seconds=WORKER_GRACE_SECONDS,
        unsaid=WORKER_UNSAID,
    )


def beat(environment: Mapping[str, str]) -> Part:
    """The clock of all that happens regularly. Inside a worker nothing starts it again when it is killed."""

    async def is_silent() -> bool:
        return await asyncio.to_thread(pulse.is_lost)

    return Part(
        "beat", _celery("beat"), environment, is_silent=is_silent, patience_seconds=BEAT_START_SECONDS
    )


def _celery(command: str, *options: str) -> list[str]:
    program = [sys.executable, "-W", QUIET_ABOUT_ROOT, "-m", "celery", "--app", "e2llm_web", "--quiet"]
    return [*program, command, "--loglevel", "WARNING", *options]


def web(addresses: Addresses, environment: Mapping[str, str]) -> Part:
    return _server("web", "e2llm_web.asgi:application", addresses.host, addresses.port, environment)


def gateway(addresses: Addresses, environment: Mapping[str, str]) -> Part:
    application, host, port = "serving.gateway.app:app", addresses.host, addresses.gateway_port
    connection = ("--http", "serving.gateway.doorway:Connection", "--no-proxy-headers")
    return _server("gateway", application, host, port, environment, *connection)


def _server(
    name: str, application: str, host: str, port: int, environment: Mapping[str, str], *options: str
) -> Part:
    async def is_ready() -> bool:
        return await ports.answers(host, port)

    argv = [
        *(sys.executable, "-m", "uvicorn", application, "--host", host, "--port", str(port)),
        *(
            "--timeout-graceful-shutdown",
            "4",
            "--log-level",
            "warning",
            "--no-access-log",
            "--no-server-header",
        ),
        *options,
    ]
    return Part(name, argv, environment, is_ready)


def demo_hosts(environment: Mapping[str, str]) -> Part:
    return Part("hosts", [sys.executable, "manage.py", "demo_hosts"], environment)


def demo_drive(environment: Mapping[str, str], *, manual: bool) -> Part:
    argv = [sys.executable, "manage.py", "demo_drive", *(["--manual"] if manual else [])]
    return Part("demo", argv, environment, may_finish=True)

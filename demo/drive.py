"""Takes the demo from nothing to an answer with the services behind the pages; what is done already is kept."""

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from django.conf import settings
from django.utils import timezone

from accounts.models import User
from accounts.services import internal_key
from demo import hosts, llamacpp, model
from demo.hosts import DemoHost
from demo.packages import Report
from inventory import services as inventory
from inventory.models import Device, LanguageModel, Link, ModelFile
from inventory.remote import HostKey, RemoteError, host_key
from inventory.services import NewDevice
from jobs import services as jobs
from jobs.models import Job, State
from serving.models import Deployment, Launch
from serving.services import launches

# One copy of the model with one slot needs about 209 MB on a single host. So box-1 holds it alone and the other two
# only together: every plan of two replicas has one on one host and one across two.
USABLE_BYTES = {"box-1": 900_000_000, "box-2": 150_000_000, "box-3": 150_000_000}
SPAN_HINT = "to see one replica span two hosts, set the memory of box-2 and box-3 to 0.15 GB on their pages"
WHY_SO_SMALL = "the demo's hosts share this machine's memory"
WORKLOAD = {
    "input_tokens": 128,
    "output_tokens": 512,
    "arrival_seconds": 1.5,
    "requests": 50,
    "context_tokens": 2048,
}
POLICY = {
    "min_tokens_per_second": 1.0,
    "max_slots": 4,
    "runtime": "serial",
    "topology": "star",
    "allow_mixed": False,
    "allow_idle": False,
    "handover": True,
    "seed": 0,
}
QUESTION = "Say hello in one short sentence."
CONFIRM_COMES_WITHIN = timedelta(seconds=10)
LOOK_SECONDS, TELL_SECONDS = 0.25, 2.0
UNDER_WAY = (Launch.Stages.PREPARING, Launch.Stages.PLANNING, Launch.Stages.CONFIRM)
BROKEN_OFF = (State.FAILED, State.CANCELLED, State.INTERRUPTED)
HOSTS_SECONDS, JOB_SECONDS, READY_SECONDS, ANSWER_SECONDS = 60.0, 900.0, 600.0, 120.0


Found = TypeVar("Found")


class DemoStopped(Exception):
    """The demo cannot go on; the text says at what, why, and what to do."""


@dataclass(frozen=True)
class Answer:
    """What the gateway said, and how."""

    text: str
    timing: dict[str, Any]


def drive(folder: Path, say: Report, *, manual: bool) -> None:
    """Bring the demo to the point where the playground answers, or with `manual` to where a person takes over."""
    lab = hosts.hosts(folder)
    prepare(lab, folder, say)
    until(
        lambda: all(answers(host) for host in lab),
        HOSTS_SECONDS,
        "the demo hosts did not start; see the lines of `hosts`",
    )
    if manual:
        say(by_hand(lab))
        say(SPAN_HINT)
        return
    user = User.objects.filter(username="admin").first()
    # A failed one has left nothing on the hosts, so it is no reason not to try again.
    deployment = Deployment.objects.exclude(state=Deployment.States.FAILED).first() or deploy(lab, user, say)
    if deployment.wanted == Deployment.Wanted.STOPPED:
        say(f"{deployment} was stopped; Plan and deploy on the home page starts it again")
        return
    wait_until_ready(deployment, say)
    answer = ask(deployment, user)
    say(f"asked “{QUESTION}”, got “{answer.text.strip()}” ({path_text(answer.timing)})")
    say("playground answers")


def by_hand(lab: Sequence[DemoHost]) -> str:
    """What is left to a person: the hosts that are not registered yet, with everything to type and to compare."""
    known = set(Device.objects.values_list("host", flat=True))
    missing = [host for host in lab if host.address not in known]
    if not missing:
        return "the hosts are ready, and all of them are on the Devices page"
    return "the hosts are ready; add them on the Devices page:\n" + hosts.as_table(missing)


def prepare(lab: Sequence[DemoHost], folder: Path, say: Report) -> None:
    """llama.cpp on the path of every host, the model in its home."""
    file = model.fetch(folder / "models", say)
    llamacpp.expose(llamacpp.find(folder / "llama.cpp", file, say), folder / "programs")
    for host in lab:
        place = host.home / "models" / file.name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            put(file, place)


def put(file: Path, place: Path) -> None:
    """The same bytes at a second place; without taking space where the file system can."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copy(file, place)


def answers(host: DemoHost) -> bool:
    """Whether the host is up, and not something else at its address."""
    try:
        return host.port_file.exists() and inventory.look_up(host.address, host.port) == own_key(host)
    except RemoteError:
        return False


def own_key(host: DemoHost) -> HostKey:
    return host_key(host.public_key)


def deploy(lab: Sequence[DemoHost], user: User | None, say: Report) -> Deployment:
    """Everything from the first log-in to the start of the roll-out; what is already there is kept."""
    devices = [register(host, user, say) for host in lab]
    for device in devices:
        probe(device, user, say)
    measure_links(devices, user, say)
    language_model = find_model(devices, user, say)
    launch = launch_of(language_model, devices, user, say)
    finish(launch.job, say)
    launch = until(lambda: decided(launch), JOB_SECONDS, "the plan was made but its deployment did not start")
    if launch.deployment is None:
        raise DemoStopped(
            "The plan was dropped on its page. Plan and deploy on the home page makes a new one."
        )
    return launch.deployment


def register(host: DemoHost, user: User | None, say: Report) -> Device:
    """The host as a device whose pinned key is the one that lies in its folder, not what the network shows."""
    device = Device.objects.filter(name=host.name).first()
    if device is None:
        say(f"registering {host.name} ({host.username}@{host.address} port {host.port})")
        new = NewDevice(host.name, host.address, host.port, host.username)
        device = inventory.register_device(new, own_key(host).line, user, password=host.password)
    if device.port != host.port:
        inventory.settle(device, {"port": host.port}, user)
    return device


def probe(device: Device, user: User | None, say: Report) -> None:
    if device.probed_at is None:
        say(f"probing {device}")
        finish(started(lambda: inventory.start_probe(device, user)), say)
        device.refresh_from_db()
    if not device.llama:
        raise DemoStopped(f"No usable llama.cpp was found on {device}: {device.state_reason}")
    if not device.memory_override_reason:
        inventory.override_memory(device, USABLE_BYTES[device.name], 0, WHY_SO_SMALL, user)


def measure_links(devices: Sequence[Device], user: User | None, say: Report) -> None:
    if not Link.objects.filter(source__in=devices, target__in=devices).exists():
        say("measuring the links")
        finish(started(lambda: inventory.start_links(devices, user)), say)


def find_model(devices: Sequence[Device], user: User | None, say: Report) -> LanguageModel:
    known = ModelFile.objects.filter(device__in=devices, path__endswith=model.FILE)
    if known.count() < len(devices):
        say("looking for the model")
        finish(started(lambda: inventory.start_scan(devices, user)), say)
    found = known.select_related("model").first()
    if found is None:
        raise DemoStopped(
            f"{model.FILE} was put in the hosts' homes but not found there. Look at the Models page."
        )
    return found.model


def launch_of(
    language_model: LanguageModel, devices: Sequence[Device], user: User | None, say: Report
) -> Launch:
    """The launch under way, or a new one that profiles what is missing, plans and deploys."""
    under_way = Launch.objects.exclude(stage=Launch.Stages.ENDED).first()
    if under_way is not None and under_way.job.state not in (
        State.FAILED,
        State.CANCELLED,
        State.INTERRUPTED,
    ):
        return under_way
    say("profiling, planning and deploying: follow it on the home page")
    try:
        return launches.start_launch(language_model, devices, WORKLOAD, POLICY, user, deploys_unasked=True)
    except jobs.AlreadyRunning as running:
        return Launch.objects.get(job=running.job)


def decided(launch: Launch) -> Launch | None:
    """The launch once it has deployed or was dropped; a confirm that a stop of the worker swallowed is given again."""
    launch.refresh_from_db()
    ended_at = launch.job.ended_at
    if (
        launch.stage == Launch.Stages.CONFIRM
        and ended_at
        and timezone.now() - ended_at > CONFIRM_COMES_WITHIN
    ):
        launches.confirm_launch(launch, launch.job.started_by)
    return launch if launch.deployment or launch.stage == Launch.Stages.ENDED else None


def started(start: Callable[[], Job]) -> Job:
    """The job, or the one that does the same already."""
    try:
        return start()
    except jobs.AlreadyRunning as running:
        return running.job


def finish(job: Job, say: Report) -> None:
    """Wait for a job and pass on what it reports."""
    said, told = "", time.monotonic()
    end = told + JOB_SECONDS
    while job.is_active:
        if job.message != said and time.monotonic() - told > TELL_SECONDS:
            said, told = job.message, time.monotonic()
            say(f"{job.label}: {said}")
        if time.monotonic() > end:
            raise DemoStopped(f"“{job.label}” did not end within {JOB_SECONDS / 60:.0f} min. See its page.")
        time.sleep(LOOK_SECONDS)
        job.refresh_from_db()
    if job.state != State.SUCCEEDED:
        raise DemoStopped(f"“{job.label}” {job.get_state_display().lower()}. {job.error}")


def wait_until_ready(deployment: Deployment, say: Report) -> None:
    """Return when all replicas are ready; a roll-out under way passes on what it reports."""
    running = jobs.active_for(deployment.subject)
    if running is not None:
        finish(running, say)
    until(lambda: is_ready(deployment), READY_SECONDS, f"{deployment} did not become ready; see its page")


def is_ready(deployment: Deployment) -> bool:
    deployment.refresh_from_db()
    if deployment.state == Deployment.States.FAILED:
        raise DemoStopped(f"{deployment} failed: {deployment.state_reason}")
    return deployment.state == Deployment.States.RUNNING


def until(condition: Callable[[], Found | None], seconds: float, otherwise: str) -> Found:
    """The first true answer of `condition`."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise DemoStopped(f"Within {seconds:.0f} s {otherwise}.")
        time.sleep(LOOK_SECONDS)
    return found


def ask(deployment: Deployment, user: User | None) -> Answer:
    """One question to the gateway, as a client would; asked again while it is getting to know the replicas."""
    assert user is not None, "`up` makes the first admin before it starts the demo"
    body = {
        "model": deployment.name,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 40,
        "temperature": 0,
    }
    request = urllib.request.Request(  # noqa: S310  our own gateway
        f"{settings.GATEWAY_URL}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {internal_key(user)}",
            "Content-Type": "application/json",
            "X-E2LLM-Timing": "1",
        },
    )
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:  # noqa: S310
                return answer_of(json.load(answer))
        except OSError as error:
            if time.monotonic() > end:
                raise DemoStopped(f"The gateway did not answer: {fault_text(error)}") from None
        time.sleep(LOOK_SECONDS)


def answer_of(document: dict[str, Any]) -> Answer:
    return Answer(document["choices"][0]["message"]["content"], document["e2llm"])


def fault_text(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.read(500).decode(errors='replace')}"
    return str(error)


def path_text(timing: dict[str, Any]) -> str:
    """How the answer came, such as `first token after 0.41 s, prefill P1 (box-1), decode D2 (box-2, box-3)`."""
    words = [f"first token after {timing['ttft_seconds']:.2f} s"]
    if timing["prefill_replica"]:
        words.append(f"prompt on {timing['prefill_replica']}, hand-over: {timing['handover']}")
    return ", ".join([*words, f"answer from {timing['decode_replica']}"])

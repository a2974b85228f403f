"""What runs: deployments, their processes on the hosts, and the requests they served."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models

from accounts.models import ApiKey
from accounts.vault import EncryptedTextField
from inventory.models import Device, LanguageModel
from jobs.models import Job
from planner.models import PlanRun
from serving.core import tally


class Deployment(models.Model):
    """One plan put on the hosts. `wanted` is what people asked for, `state` what was last observed."""

    class Wanted(models.TextChoices):
        RUNNING = "running", "Running"
        STOPPED = "stopped", "Stopped"

    class States(models.TextChoices):
        STARTING = "starting", "Starting"
        RUNNING = "running", "Running"
        DEGRADED = "degraded", "Running in part"
        STOPPING = "stopping", "Stopping"
        STOPPED = "stopped", "Stopped"
        FAILED = "failed", "Failed"

    plan_run = models.ForeignKey(PlanRun, null=True, on_delete=models.SET_NULL, related_name="deployments")
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="deployments")
    name = models.CharField(max_length=200, help_text="how the endpoint names the model")
    plan = models.JSONField(help_text="e2llm-plan/1, frozen")
    cluster = models.JSONField(help_text="e2llm-cluster/1, frozen")
    wanted = models.CharField(max_length=16, choices=Wanted, default=Wanted.RUNNING)
    state = models.CharField(max_length=16, choices=States, default=States.STARTING)
    state_reason = models.TextField(blank=True)
    context_tokens = models.PositiveIntegerField(help_text="context of one slot")
    handover_on = models.BooleanField(default=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} #{self.pk}"

    @property
    def makes_embeddings(self) -> bool:
        return bool(self.model.shape.get("pooling"))  # rows from before it was read make text

    @property
    def subject(self) -> str:
        return f"deployment:{self.pk}"


class Replica(models.Model):
    """One copy of the model: a master and its RPC workers, one unit that starts and fails together."""

    class Roles(models.TextChoices):
        PREFILL = "prefill", "Prefill"
        DECODE = "decode", "Decode"
        MIXED = "mixed", "Mixed"

    class States(models.TextChoices):
        WAITING = "waiting", "Not started"
        STARTING = "starting", "Starting"
        LOADING = "loading", "Loading the model"
        READY = "ready", "Ready"
        DRAINING = "draining", "Draining"
        STOPPING = "stopping", "Stopping"
        FAILED = "failed", "Failed"
        STOPPED = "stopped", "Stopped"

    deployment = models.ForeignKey(Deployment, on_delete=models.CASCADE, related_name="replicas")
    index = models.PositiveSmallIntegerField(help_text="position in the plan")
    role = models.CharField(max_length=8, choices=Roles)
    slots = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=16, choices=States, default=States.WAITING)
    state_reason = models.TextField(blank=True)
    restarts = models.PositiveSmallIntegerField(default=0)
    host = models.GenericIPAddressField(
        protocol="IPv4", null=True, help_text="where the master's HTTP answers"
    )
    port = models.PositiveIntegerField(null=True)
    api_key = EncryptedTextField(help_text="random key that the master asks for")
    ready_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["deployment", "index"]
        constraints = [models.UniqueConstraint(fields=["deployment", "index"], name="one_replica_per_index")]

    def __str__(self) -> str:
        return f"{self.get_role_display()} {self.index + 1} of {self.deployment}"

    @property
    def label(self) -> str:
        """Short name on charts and in answers: role letter, number and devices, such as `D2 (box-1, box-2)`."""
        devices = [stage["device"] for stage in self.deployment.plan["replicas"][self.index]["stages"]]
        return f"{self.role[0].upper()}{self.index + 1} ({', '.join(devices)})"


class ManagedProcess(models.Model):
    """One process of ours on a host; written before the host is touched."""

    class Kinds(models.TextChoices):
        WORKER = "worker", "RPC worker"
        MASTER = "master", "llama-server"

    class States(models.TextChoices):
        WANTED = "wanted", "To be started"
        STARTED = "started", "Started"
        READY = "ready", "Ready"
        EXITED = "exited", "Exited"
        STOPPED = "stopped", "Stopped"
        UNKNOWN = "unknown", "Host not reachable"

    replica = models.ForeignKey(Replica, on_delete=models.CASCADE, related_name="processes")
    device = models.ForeignKey(Device, null=True, on_delete=models.SET_NULL, related_name="processes")
    kind = models.CharField(max_length=8, choices=Kinds)
    marker = models.CharField(
        max_length=32,
        unique=True,
        help_text="in the environment and the alias of the process",
    )
    argv = models.JSONField(default=list, help_text="the command line, without secrets")
    port = models.PositiveIntegerField(null=True)
    run_folder = models.TextField(blank=True)
    slot_folder = models.TextField(blank=True)
    pid = models.PositiveIntegerField(null=True)
    start_ticks = models.CharField(
        max_length=64, blank=True, help_text="start time as the host's kernel gives it"
    )
    boot_id = models.CharField(max_length=64, blank=True)
    state = models.CharField(max_length=16, choices=States, default=States.WANTED)
    exit_reason = models.TextField(blank=True, help_text="exit status and last log lines")
    measured = models.JSONField(default=dict, help_text="buffer sizes read back from the load log")
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["replica", "kind", "pk"]
        verbose_name_plural = "managed processes"

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.marker}"


class Launch(models.Model):
    """One click on Plan and deploy: what was missing is done, the plan is shown, one confirm deploys it."""

    class Stages(models.TextChoices):
        PREPARING = "preparing", "Measuring what is missing"
        PLANNING = "planning", "Planning"
        CONFIRM = "confirm", "Waiting for your confirmation"
        DEPLOYING = "deploying", "Deploying"
        READY = "ready", "Ready"
        ENDED = "ended", "Ended"

    job = models.OneToOneField(
        Job,
        on_delete=models.CASCADE,
        related_name="launch",
        help_text="prepares and plans",
    )
    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE)
    devices = models.ManyToManyField(Device)
    workload = models.JSONField(help_text="workload part of the cluster file")
    policy = models.JSONField(help_text="policy part of the cluster file")
    stage = models.CharField(max_length=16, choices=Stages, default=Stages.PREPARING)
    deploys_unasked = models.BooleanField(default=False, help_text="the confirm was given at the start")
    plan_run = models.ForeignKey(PlanRun, null=True, on_delete=models.SET_NULL)
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "launches"


class RequestSample(models.Model):
    """The timeline of one request. Times are seconds since it was received; empty when a phase did not happen."""

    class Outcomes(models.TextChoices):
        OK = "ok", "Answered"
        CANCELLED = "cancelled", "Cancelled by the client"
        CUT = "cut", "Cut off"
        REFUSED = "refused", "Refused"
        FAILED = "failed", "Failed"

    class Handovers(models.TextChoices):
        NONE = "none", "No hand-over"
        HIT = "hit", "Handed over"
        FALLBACK = "fallback", "Fell back to a plain prompt"

    request_id = models.CharField(max_length=40, unique=True)
    deployment = models.ForeignKey(Deployment, null=True, on_delete=models.SET_NULL, related_name="requests")
    api_key = models.ForeignKey(ApiKey, null=True, on_delete=models.SET_NULL)
    from_playground = models.BooleanField(
        null=True, help_text="asked on our own pages; empty for a request from before this was kept"
    )
    received_at = models.DateTimeField(db_index=True)
    outcome = models.CharField(max_length=16, choices=Outcomes)
    status = models.PositiveSmallIntegerField(help_text="HTTP status of the answer")
    error = models.CharField(max_length=500, blank=True)
    is_stream = models.BooleanField(default=False)
    prefill_replica = models.ForeignKey(
        Replica, null=True, on_delete=models.SET_NULL, related_name="prefilled"
    )
    decode_replica = models.ForeignKey(Replica, null=True, on_delete=models.SET_NULL, related_name="decoded")
    handover = models.CharField(max_length=16, choices=Handovers, default=Handovers.NONE)
    handover_error = models.CharField(max_length=300, blank=True)
    handover_bytes = models.BigIntegerField(null=True)
    prompt_tokens = models.PositiveIntegerField(null=True)
    cached_tokens = models.PositiveIntegerField(null=True)
    output_tokens = models.PositiveIntegerField(null=True)
    queued_seconds = models.FloatField(null=True, help_text="until a slot was bound")
    prefilled_tokens = models.PositiveIntegerField(
        null=True, help_text="prompt tokens that were computed, not found in a cache"
    )
    prefill_seconds = models.FloatField(
        null=True, help_text="prompt processing, on the prefill replica or where the answer was made"
    )
    handover_seconds = models.FloatField(null=True, help_text="save, move and restore")
    save_seconds = models.FloatField(null=True, help_text="prefill replica writes its slot to a file")
    move_seconds = models.FloatField(null=True, help_text="file from host to host")
    restore_seconds = models.FloatField(null=True, help_text="decode replica reads the file")
    retry_reason = models.CharField(
        max_length=300, blank=True, help_text="why a first replica failed, when another one then answered"
    )
    first_token_seconds = models.FloatField(null=True, help_text="received to first token: TTFT")
    total_seconds = models.FloatField(help_text="received to last byte")

    class Meta:
        ordering = ["-received_at"]
        indexes = [
            models.Index(fields=["deployment", "received_at"], name="requests_of_a_deployment"),
            models.Index(fields=["outcome", "received_at"], name="requests_by_outcome"),
        ]

    @property
    def prefilled_by_id(self) -> int | None:
        """The replica that computed the prompt."""
        return self.decode_replica_id if self.prefill_replica_id is None else self.prefill_replica_id

    def prefill_rate(self) -> float | None:
        return tally.prompt_rate(self.prefilled_tokens, self.prefill_seconds)

    def decode_seconds(self) -> float | None:
        if self.first_token_seconds is None:
            return None
        return self.total_seconds - self.first_token_seconds

    def tokens_per_second(self) -> float | None:
        return tally.answer_rate(self.output_tokens, self.first_token_seconds, self.total_seconds)


class RequestText(models.Model):
    """What was asked and answered; kept only while an admin has switched that on."""

    sample = models.OneToOneField(
        RequestSample, on_delete=models.CASCADE, related_name="text", to_field="request_id"
    )
    prompt = EncryptedTextField(help_text="JSON of the messages, or the prompt")
    kept_at = models.DateTimeField(auto_now_add=True, db_index=True)


class Retention(models.Model):
    """How long the site keeps what it saw; one row. Nothing of what people wrote is kept unless it says so."""

    request_days = models.PositiveSmallIntegerField(default=90, help_text="timelines of single requests")
    traffic_days = models.PositiveSmallIntegerField(default=7, help_text="figures behind the charts")
    job_days = models.PositiveSmallIntegerField(default=90, help_text="jobs that have ended, with their logs")
    keeps_prompts = models.BooleanField(default=False, help_text="whether the gateway keeps what was asked")
    prompt_days = models.PositiveSmallIntegerField(default=1, help_text="what was asked")

    @classmethod
    def current(cls) -> Retention:
        return cls.objects.first() or cls()


class RequestRollUp(models.Model):
    """Requests of a step that took the same way, added up, so that a week is quick to draw."""

    at = models.DateTimeField(help_text="start of the step")
    step_seconds = models.PositiveIntegerField(default=300, help_text="length of the step")
    prefill_replica = models.ForeignKey(Replica, null=True, on_delete=models.SET_NULL, related_name="+")
    decode_replica = models.ForeignKey(Replica, null=True, on_delete=models.SET_NULL, related_name="+")
    tally = models.JSONField(help_text="Tally.to_dict")

    class Meta:
        indexes = [models.Index(fields=["step_seconds", "at"], name="roll_ups_of_a_step")]


class RollUpMark(models.Model):
    """How far requests were added up; one row."""

    rolled_up = models.BigIntegerField(default=0, help_text="requests up to this id are in the roll-ups")
    seen = models.BigIntegerField(default=0, help_text="highest id at the last look")


class GatewayLease(models.Model):
    """Which gateway serves; one row."""

    holder = models.CharField(
        max_length=40, blank=True, help_text="its name; empty when it gave the lease back"
    )
    address = models.CharField(max_length=200, help_text="where clients reach it")
    machine = models.CharField(max_length=120, help_text="name and boot")
    pid = models.PositiveIntegerField()
    fence = models.PositiveBigIntegerField(help_text="grows with every owner")
    beat = models.PositiveBigIntegerField(default=0, help_text="grows while the owner lives")


class TrafficSample(models.Model):
    """One look at the gateway: queue and slots, per replica and in all."""

    at = models.DateTimeField(db_index=True)
    gateway = models.CharField(max_length=40, help_text="which gateway process")
    waiting = models.PositiveIntegerField(help_text="requests in the queue")
    running = models.PositiveIntegerField()
    slots = models.PositiveIntegerField()
    output_tokens = models.PositiveIntegerField(help_text="tokens sent since the sample before")
    replicas = models.JSONField(default=list, help_text="[{replica, waiting, running, slots}]")

    class Meta:
        ordering = ["-at"]

    def to_dict(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "waiting": self.waiting,
            "running": self.running,
            "slots": self.slots,
            "output_tokens": self.output_tokens,
            "replicas": self.replicas,
        }


class Conversation(models.Model):
    """A chat of the playground, readable by its owner alone."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="conversations")
    title = models.CharField(max_length=80)
    messages = EncryptedTextField(
        help_text="JSON: [{role, content}], encrypted because people confide in a chat"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-updated_at"]

    def __str__(self) -> str:
        return self.title

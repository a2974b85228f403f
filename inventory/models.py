"""What the lab owns: machines, the links between them, models, and measured latencies."""

from datetime import timedelta
from functools import cached_property
from typing import Any, Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from accounts.vault import EncryptedTextField
from inventory.core.availability import Window
from inventory.core.gpus import is_unified
from inventory.core.hardware import main_gpu
from inventory.core.model_shape import ModelShape
from inventory.core.profile import DEEP, Timing, at_depth, measured_text, off_by, spread, tells_error
from inventory.core.quantities import counted, percent_text

NOISY_RESIDUAL = 0.5
LEAST_TOLD = 0.01  # below, what levelled tables are off is not worth a word
SEEN_RECENTLY = timedelta(seconds=90)
RUNNING_STATES = ("started", "ready")  # of processes; the app that runs them hangs them on a device
OUTDATED = ", outdated: an address changed since"
LONGEST_METHOD = 80


class SshIdentity(models.Model):
    """A key pair with which we log in; the private half never leaves the server in the clear."""

    name = models.CharField(max_length=80, unique=True)
    public_key = models.TextField(help_text="OpenSSH one-line format")
    private_key = EncryptedTextField(help_text="OpenSSH PEM")
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "SSH identities"

    def __str__(self) -> str:
        return self.name


class DeviceQuerySet(models.QuerySet["Device"]):
    def usable(self) -> Self:
        """Devices that a plan may use: probed, with llama.cpp, not in maintenance, within their hours."""
        limited = self.exclude(available_days="", available_from=None, available_until=None)
        closed = [device.pk for device in limited if device.closed_reason]
        found = self.filter(in_maintenance=False, probed_at__isnull=False).exclude(llama={})
        return found.exclude(pk__in=closed)

    def in_use(self) -> Self:
        """Devices on which something of ours runs now."""
        return self.filter(processes__state__in=RUNNING_STATES).distinct()


class Device(models.Model):
    class Connections(models.TextChoices):
        SSH = "ssh", "Over SSH"
        LOCAL = "local", "This machine"

    class States(models.TextChoices):
        NEW = "new", "Not probed yet"
        ONLINE = "online", "Online"
        SUSPECT = "suspect", "Not answering"
        LOST = "lost", "Lost"
        KEY_CHANGED = "key_changed", "Host key changed"

    name = models.CharField(max_length=80, unique=True)
    connection = models.CharField(max_length=8, choices=Connections, default=Connections.SSH)
    host = models.CharField(max_length=255, blank=True, help_text="name or address that SSH connects to")
    port = models.PositiveIntegerField(
        default=22, validators=[MinValueValidator(1), MaxValueValidator(65535)]
    )
    username = models.CharField(max_length=64, blank=True)
    identity = models.ForeignKey(SshIdentity, null=True, blank=True, on_delete=models.PROTECT)
    host_key = models.TextField(blank=True, help_text="the pinned key, OpenSSH one-line format")
    reached_through = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="reached_from",
        help_text="jump host",
    )
    address = models.GenericIPAddressField(
        protocol="IPv4",
        null=True,
        help_text="where other devices reach it; llama.cpp's RPC knows IPv4 only",
    )
    state = models.CharField(max_length=16, choices=States, default=States.NEW)
    state_reason = models.TextField(blank=True)
    in_maintenance = models.BooleanField(default=False)
    available_days = models.CharField(
        max_length=7, blank=True, help_text="digits of weekdays, 0 is Monday; empty: every day"
    )
    available_from = models.TimeField(null=True, help_text="UTC; empty: the whole day")
    available_to = models.TimeField(null=True, help_text="UTC; before available_from: on the next day")
    available_until = models.DateField(null=True, help_text="the last day, UTC")
    hardware = models.JSONField(default=dict, help_text="what the probe read, with sources")
    llama = models.JSONField(
        default=dict,
        help_text="llama.cpp on it: paths, version, protocol, flags, devices",
    )
    llama_folder = models.CharField(
        max_length=500,
        blank=True,
        help_text="absolute folder of llama.cpp's programs when they are not on PATH",
    )
    chosen_gpu = models.CharField(
        max_length=40, blank=True, help_text="as llama.cpp names it; empty: the first that it lists"
    )
    model_roots = models.JSONField(default=list, help_text="absolute folders in which to look for GGUF files")
    gpu_usable_bytes = models.BigIntegerField(
        null=True, help_text="main pool: GPU, unified memory, or RAM without GPU"
    )
    ram_usable_bytes = models.BigIntegerField(
        null=True, help_text="second pool beside a GPU; 0 when there is none"
    )
    memory_override_reason = models.TextField(
        blank=True, help_text="why an admin set the two numbers by hand"
    )
    probed_at = models.DateTimeField(null=True)
    last_seen_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = DeviceQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def subject(self) -> str:
        """How jobs name this device."""
        return f"device:{self.pk}"

    @property
    def window(self) -> Window:
        days = frozenset(map(int, self.available_days))
        return Window(days, self.available_from, self.available_to, self.available_until)

    @property
    def closed_reason(self) -> str:
        """Why its hours keep it out of plans now; empty while they do not."""
        return self.window.closed_reason(timezone.now())

    @property
    def boot_id(self) -> str:
        """Equal on devices that are the same machine; empty before the first probe."""
        return str(self.hardware.get("boot_id", ""))

    @property
    def gpu(self) -> dict[str, Any] | None:
        """The one GPU that plans, profiles and deployments use."""
        return main_gpu(self.hardware, self.chosen_gpu)

    @property
    def main_pool_device(self) -> str:
        """The name that llama.cpp gives the device's main memory pool, such as CUDA0; CPU without a GPU."""
        gpu = self.gpu
        return str(gpu["name"]) if gpu else "CPU"

    @property
    def main_pool(self) -> str:
        """What the main memory pool is: "gpu", "unified" or "cpu"."""
        gpu = self.gpu
        if gpu is None:
            return "cpu"
        return "unified" if is_unified(self.hardware, gpu) else "gpu"

    @property
    def ram_total_bytes(self) -> int:
        """0 before the first probe."""
        return int(self.hardware.get("memory_total_bytes") or 0)

    @property
    def main_total_bytes(self) -> int:
        """What the main memory pool has in all, used or not; 0 before the first probe."""
        gpu = self.gpu
        return int(gpu["total_bytes"] or 0) if gpu and self.main_pool == "gpu" else self.ram_total_bytes

    def was_seen_recently(self) -> bool:
        return self.last_seen_at is not None and timezone.now() - self.last_seen_at < SEEN_RECENTLY


class LinkQuerySet(models.QuerySet["Link"]):
    def outdated(self) -> Self:
        """Measured before the address of one of their devices was changed."""
        return self.filter(method__endswith=OUTDATED)


class Link(models.Model):
    """One direction between two devices, as last measured."""

    source = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="links_out")
    target = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="links_in")
    bytes_per_second = models.FloatField(help_text="median of the repeats")
    latency_seconds = models.FloatField(help_text="round-trip time, median of the repeats")
    spread = models.FloatField(default=0.0, help_text="(max - min) / median of the bandwidth repeats")
    method = models.CharField(max_length=LONGEST_METHOD, help_text="what measured it")
    measured_at = models.DateTimeField()

    objects = LinkQuerySet.as_manager()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["source", "target"], name="one_link_per_direction"),
            models.CheckConstraint(condition=~Q(source=models.F("target")), name="link_joins_two_devices"),
        ]

    def __str__(self) -> str:
        return f"{self.source} → {self.target}"

    def outdate(self) -> None:
        """Mark it as measured before an address changed; measuring again writes another method."""
        self.method = self.method[: LONGEST_METHOD - len(OUTDATED)] + OUTDATED
        self.save(update_fields=["method"])


class LanguageModelQuerySet(models.QuerySet["LanguageModel"]):
    def usable(self) -> Self:
        """Models of which a copy is left and whose header describes something that can run."""
        copies = ModelFile.objects.values("model")
        return self.filter(pk__in=copies, shape__weight_bytes__gt=0, shape__embedding_length__gt=0)


class LanguageModel(models.Model):
    """A GGUF model by its content: the same file on two devices is one model."""

    name = models.CharField(max_length=200)
    architecture = models.CharField(max_length=64)
    fingerprint = models.CharField(
        max_length=64,
        unique=True,
        help_text="SHA-256 of the header, the file size and sampled tensor bytes",
    )
    size_bytes = models.BigIntegerField()
    shape = models.JSONField(help_text="what the header says, per block kind (inventory.core.gguf)")
    created_at = models.DateTimeField(auto_now_add=True)

    objects = LanguageModelQuerySet.as_manager()

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class ModelFile(models.Model):
    """Where a copy of a model lies."""

    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="files")
    device = models.ForeignKey(
        Device,
        null=True,
        on_delete=models.CASCADE,
        related_name="model_files",
        help_text="empty: the server's library",
    )
    path = models.TextField(help_text="absolute; of the first shard when the model is split")
    size_bytes = models.BigIntegerField()
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["device", "path"], name="one_row_per_file", nulls_distinct=False)
        ]

    def __str__(self) -> str:
        return f"{self.device or 'library'}:{self.path}"


class ProfileQuerySet(models.QuerySet["Profile"]):
    def current(self) -> Self:
        return self.filter(superseded=False)


class Profile(models.Model):
    """Seconds per block and for the head of one model on one device; a new version never overwrites an old one."""

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="profiles")
    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="profiles")
    version = models.PositiveIntegerField(default=1)
    superseded = models.BooleanField(default=False)
    tables = models.JSONField(help_text='{"decode": {...}, "prefill": {...}} as in a cluster file\'s device')
    samples = models.JSONField(default=list, help_text="every timing the fit was made from")
    residual = models.FloatField(help_text="largest relative distance between a timing and the fit")
    made_under = models.JSONField(
        default=dict,
        help_text="build, driver, power state: when they change it is stale",
    )
    stale_reason = models.CharField(max_length=200, blank=True)
    measured_at = models.DateTimeField()

    objects = ProfileQuerySet.as_manager()

    class Meta:
        ordering = ["-measured_at"]
        constraints = [
            models.UniqueConstraint(fields=["device", "model", "version"], name="one_profile_per_version"),
            models.UniqueConstraint(
                fields=["device", "model"],
                condition=Q(superseded=False),
                name="one_current_profile",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model} on {self.device}, version {self.version}"

    @property
    def is_recalibrated(self) -> bool:
        """Whether its seconds come from requests that were answered and not from its timings."""
        return bool(self.made_under.get("recalibrated", {}).get("phases"))

    @cached_property
    def timings(self) -> list[Timing]:
        return [Timing(**sample) for sample in self.samples]

    @property
    def off_the_fit(self) -> float:
        """Largest relative distance between a timing and the tables, levelled ones among them."""
        return max(self.residual, off_by(self.tables, self.timings))

    @property
    def has_error(self) -> bool:
        """Whether more than two depths were timed: a line through two meets both."""
        return not self.samples or tells_error(self.timings)

    @property
    def spread(self) -> float:
        """How far the rounds of one cell lie apart at most, where the fit through two depths has no error to show."""
        return 0.0 if self.has_error else spread(self.timings)

    @property
    def error_text(self) -> str:
        """How far it may be off: by the fit, and through two depths by how far the rounds lie apart."""
        off = f"{percent_text(self.off_the_fit)} off the fit"
        if self.has_error:
            return off
        apart = f"rounds up to {percent_text(self.spread)} apart"
        return f"{off}, {apart}" if self.off_the_fit >= LEAST_TOLD else apart

    @property
    def head_text(self) -> str:
        return measured_text(self.tables["decode"]["head_seconds"][0])

    @property
    def noise_text(self) -> str:
        """How far the timings lie from the fit or from each other, when that is too far to plan with; else empty."""
        if max(self.residual, self.spread) <= NOISY_RESIDUAL or self.is_recalibrated:
            return ""
        return f"noisy: {self.error_text}; measure again when the machine is quiet"

    @property
    def doubt_text(self) -> str:
        """Why a plan should not rely on its seconds: far off the fit, or timed while the device did other things."""
        apart = 0 if self.is_recalibrated else len(self.made_under.get("noisy", ()))
        if self.noise_text or not apart:
            return self.noise_text
        return (
            f"noisy: rounds of {counted(apart, 'cell')} lie far apart, {self.error_text}; "
            "measure again when the machine is quiet"
        )

    @property
    def memory_overhead_bytes(self) -> int:
        """What a deployment was seen to take beyond the prediction; plans keep it free."""
        return int(self.made_under["memory"]["overhead_bytes"]) if "memory" in self.made_under else 0

    def tables_at(self, context_tokens: float) -> dict[str, Any]:
        """The two tables of a cluster file, with decode steps at caches of `context_tokens`."""
        shape = ModelShape.from_dict(self.model.shape)
        deep = shape.cache_read_bytes(self.tables[DEEP]["context_tokens"]) if DEEP in self.tables else 0.0
        share = shape.cache_read_bytes(context_tokens) / deep if deep else 0.0
        return at_depth(self.tables, share, len(shape.blocks))

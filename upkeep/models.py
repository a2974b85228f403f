"""What the site does for itself: alerts and who is told of them, and when it copies itself."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from accounts.vault import EncryptedTextField


class AlertRules(models.Model):
    """When something is worth an alert, and where it is sent; one row."""

    watches_replicas = models.BooleanField(default=True)
    watches_devices = models.BooleanField(default=True)
    queue_longer_than = models.PositiveIntegerField(null=True, default=20, help_text="requests")
    queue_seconds = models.PositiveIntegerField(
        default=60, help_text="how long the queue has to be that long"
    )
    wait_p95_seconds = models.FloatField(
        null=True, default=30.0, help_text="time in the queue, last 5 minutes"
    )
    disk_free_bytes = models.BigIntegerField(null=True, default=2 * 10**9, help_text="of the data folder")
    webhook_url = models.CharField(max_length=500, blank=True)
    webhook_secret = EncryptedTextField(blank=True, help_text="what the body is signed with")
    email_to = models.CharField(max_length=500, blank=True, help_text="addresses with commas between")

    @classmethod
    def current(cls) -> AlertRules:
        return cls.objects.first() or cls()

    @property
    def emails(self) -> list[str]:
        return [address.strip() for address in self.email_to.split(",") if address.strip()]


class Alert(models.Model):
    """One thing that is wrong, from when it was noticed until it was over."""

    class Kinds(models.TextChoices):
        REPLICA_DOWN = "replica_down", "Replica down"
        DEVICE_LOST = "device_lost", "Device lost"
        QUEUE_LONG = "queue_long", "Long queue"
        WAIT_LONG = "wait_long", "Long wait"
        DISK_LOW = "disk_low", "Disk nearly full"
        BACKUP_FAILED = "backup_failed", "Backup failed"

    kind = models.CharField(max_length=16, choices=Kinds)
    subject = models.CharField(max_length=80, help_text='what it is about, such as "device:3"')
    title = models.CharField(max_length=200)
    text = models.TextField(blank=True)
    path = models.CharField(max_length=200, help_text="the page that helps")
    began_at = models.DateTimeField(db_index=True)
    last_seen_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True)

    class Meta:
        ordering = [models.F("resolved_at").desc(nulls_first=True), "-began_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["kind", "subject"], condition=Q(resolved_at=None), name="one_open_alert_per_subject"
            )
        ]

    def __str__(self) -> str:
        return self.title


class Notice(models.Model):
    """One message about an alert on its way to somebody."""

    class Ways(models.TextChoices):
        WEBHOOK = "webhook", "Webhook"
        EMAIL = "email", "E-mail"

    class Events(models.TextChoices):
        OPENED = "opened", "Opened"
        RESOLVED = "resolved", "Resolved"

    alert = models.ForeignKey(Alert, on_delete=models.CASCADE, related_name="notices")
    way = models.CharField(max_length=8, choices=Ways)
    event = models.CharField(max_length=8, choices=Events)
    tries = models.PositiveSmallIntegerField(default=0)
    due_at = models.DateTimeField(null=True, help_text="next try; empty when sent or given up")
    sent_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["pk"]
        indexes = [
            models.Index(fields=["due_at"], condition=Q(due_at__isnull=False), name="notices_that_wait")
        ]

    def __str__(self) -> str:
        return f"{self.get_way_display()} about {self.alert}"


class BackupSchedule(models.Model):
    """How often the site copies itself into its data folder; one row."""

    every_hours = models.PositiveSmallIntegerField(default=24, help_text="0: never by itself")
    kept = models.PositiveSmallIntegerField(default=7, help_text="scheduled copies; older ones are deleted")
    with_history = models.BooleanField(default=False, help_text="requests and traffic, too")
    tried_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=500, blank=True, help_text="of the last try; empty when it worked")

    @classmethod
    def current(cls) -> BackupSchedule:
        return cls.objects.first() or cls()

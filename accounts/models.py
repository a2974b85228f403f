"""People, their keys, and what they changed."""

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone

from accounts.core.roles import Role, reaches


class User(AbstractUser):
    class Roles(models.TextChoices):
        VIEWER = Role.VIEWER, "Viewer: looks"
        OPERATOR = Role.OPERATOR, "Operator: may plan, deploy and stop"
        ADMIN = Role.ADMIN, "Admin: everything"

    role = models.CharField(max_length=16, choices=Roles, default=Roles.VIEWER)

    def may(self, needed: Role) -> bool:
        return self.is_active and reaches(self.role, needed)

    @property
    def is_admin(self) -> bool:
        return self.may(Role.ADMIN)

    @property
    def is_operator(self) -> bool:
        return self.may(Role.OPERATOR)


class LoginLink(models.Model):
    """A link that logs one user in once."""

    user = models.ForeignKey(User, on_delete=models.CASCADE)
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token, hex")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    def is_usable(self) -> bool:
        return self.used_at is None and self.expires_at > timezone.now()


class ApiKey(models.Model):
    """A key of the OpenAI-compatible endpoint; the key itself is shown once and never stored."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    prefix = models.CharField(
        max_length=16,
        unique=True,
        help_text="first characters, to recognise the key by",
    )
    digest = models.CharField(max_length=64, help_text="HMAC-SHA256 of the key, hex")
    pepper = models.CharField(max_length=8, help_text="which vault key the digest was made with")
    max_concurrent = models.PositiveIntegerField(default=0, help_text="requests at once; 0 means no limit")
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def is_usable(self) -> bool:
        unexpired = self.expires_at is None or self.expires_at > timezone.now()
        return self.revoked_at is None and unexpired and self.user.is_active


class AuditEntry(models.Model):
    """One change by one person; rows are only ever added."""

    at = models.DateTimeField(auto_now_add=True, db_index=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    username = models.CharField(max_length=150, help_text="kept when the user is deleted")
    address = models.CharField(max_length=45, blank=True)
    action = models.CharField(max_length=80, help_text='verb and noun, such as "device.added"')
    target = models.CharField(max_length=200, blank=True)
    detail = models.JSONField(default=dict, help_text="before and after, never a secret")

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "audit entries"

"""People, their keys, and what they changed."""

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models
from django.utils import timezone

from accounts.core.key_terms import EVERYTHING, KeyTerms, Scope
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


def every_scope() -> list[str]:
    return [scope.value for scope in EVERYTHING]


class ApiKey(models.Model):
    """A key of the OpenAI-compatible endpoint; the key itself is shown once and never stored."""

    class Scopes(models.TextChoices):
        GENERATE = Scope.GENERATE, "generate: ask models (chats, completions, messages)"
        EMBED = Scope.EMBED, "embed: make embeddings"
        TOKENIZE = Scope.TOKENIZE, "tokenize: count tokens"
        METRICS = Scope.METRICS, "metrics: read the figures for Prometheus"

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=80)
    prefix = models.CharField(
        max_length=16,
        unique=True,
        help_text="first characters, to recognise the key by",
    )
    digest = models.CharField(max_length=64, help_text="HMAC-SHA256 of the key, hex")
    pepper = models.CharField(max_length=8, help_text="which vault key the digest was made with")
    scopes = models.JSONField(default=every_scope, help_text="list of Scopes")
    model_names = models.JSONField(default=list, help_text="names of the models it may use; empty means all")
    max_concurrent = models.PositiveIntegerField(default=0, help_text="requests at once; 0 means no limit")
    tokens_per_minute = models.PositiveIntegerField(
        default=0, help_text="of prompts and answers; 0 means no limit"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    prompt_tokens = models.PositiveBigIntegerField(default=0, help_text="since it was made")
    output_tokens = models.PositiveBigIntegerField(default=0, help_text="since it was made")
    refusals = models.PositiveBigIntegerField(
        default=0, help_text="requests over its limits or outside its scopes, since it was made"
    )

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def is_usable(self) -> bool:
        unexpired = self.expires_at is None or self.expires_at > timezone.now()
        return self.revoked_at is None and unexpired and self.user.is_active

    @property
    def terms(self) -> KeyTerms:
        return KeyTerms(
            tuple(self.scopes), tuple(self.model_names), self.max_concurrent, self.tokens_per_minute
        )

    @property
    def limits_text(self) -> str:
        """What restricts the key, in a few words; empty when nothing does."""
        parts = [] if set(self.scopes) >= set(every_scope()) else ["only " + ", ".join(self.scopes)]
        parts += [", ".join(self.model_names)] if self.model_names else []
        parts += [f"{self.max_concurrent:,} at once"] if self.max_concurrent else []
        parts += [f"{self.tokens_per_minute:,} tokens/min"] if self.tokens_per_minute else []
        return "; ".join(parts)

    @property
    def scope_labels(self) -> list[str]:
        return [str(self.Scopes(scope).label) for scope in self.scopes]


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

"""Whose a process is: several dashboards may use the same hosts, each with processes of its own."""

from __future__ import annotations

from django.utils.crypto import salted_hmac

VARIABLE = "E2LLM_INSTALLATION"  # in the environment of every process, beside its marker


def installation_id() -> str:
    """Names this installation for as long as it keeps its secret key; says nothing about the key."""
    return salted_hmac("e2llm.installation", "id").hexdigest()[:12]

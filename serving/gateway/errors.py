"""Errors as OpenAI's clients expect them."""

from __future__ import annotations

import math
from typing import Any

from serving.core.body import BadRequest

SCHEMA_FAULT = "JSON schema conversion failed:"  # in the answers of llama-server


class ApiError(Exception):
    """An answer to the client that is not the one it asked for."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_seconds = retry_after_seconds

    @property
    def kind(self) -> str:
        kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
        if self.status == 429:
            return "rate_limit_error"
        if self.status >= 500:
            return "upstream_error" if self.status in (502, 504) else "server_error"
        return kinds.get(self.status, "invalid_request_error")

    @property
    def body(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.retry_after_seconds is None:
            return []
        return [(b"retry-after", str(math.ceil(self.retry_after_seconds)).encode())]


def schema_refused(said: str, body: dict[str, Any]) -> ApiError | None:
    """The refusal of a JSON schema that llama-server makes no grammar of; None when it said something else."""
    _, fault, reason = said.partition(SCHEMA_FAULT)
    if not fault:
        return None
    param = "response_format" if "response_format" in body else "tools"
    text = f"{param} holds a JSON schema that answers cannot be held to: {reason.strip()}"
    return ApiError(400, "invalid_json_schema", text, param=param)


def bad_request(error: BadRequest) -> ApiError:
    return ApiError(400, error.code or "invalid_request", str(error), param=error.param)

"""What the chat template of a model can say: one that knows no tools leaves them out without a word, so we say it."""

from __future__ import annotations

from typing import Any

from serving import upstream
from serving.core.openai import Generation
from serving.gateway.errors import ApiError
from serving.gateway.http import Client
from serving.gateway.routes import Endpoint, Route

NOTE_HEADER = b"x-e2llm-note"
NO_TOOLS = "the chat template of this model knows no tools; they were left out"
KNOWN_DEPLOYMENTS = 256


class Capabilities:
    """Asked of a replica once for each deployment."""

    def __init__(self) -> None:
        self._takes_tools: dict[int, bool] = {}

    async def takes_tools(self, route: Route, endpoint: Endpoint, timeout_seconds: float) -> bool:
        """True, too, where nobody says."""
        if route.deployment not in self._takes_tools:
            try:
                props = await upstream.call(endpoint.target, "GET", "/props", None, timeout_seconds)
            except upstream.UpstreamError:
                return True  # the request itself goes to a replica that answers, or fails with the cause
            told = props.get("chat_template_caps") or {}
            if len(self._takes_tools) >= KNOWN_DEPLOYMENTS:
                self._takes_tools.clear()
            self._takes_tools[route.deployment] = bool(told.get("supports_tools", True))
        return self._takes_tools[route.deployment]


async def check_tools(
    capabilities: Capabilities, client: Client, route: Route, request: Generation, timeout_seconds: float
) -> None:
    """Say in a header that tools were left out; 400 when the client insists on a call."""
    choice: Any = request.body.get("tool_choice", "auto")
    if not request.body.get("tools") or choice == "none":
        return
    if await capabilities.takes_tools(route, route.any_endpoint(), timeout_seconds):
        return
    if choice != "auto":
        raise ApiError(
            400,
            "tools_unsupported",
            f"{request.model} cannot be made to call a tool: its chat template knows none",
            param="tool_choice",
        )
    client.extra_headers.append((NOTE_HEADER, NO_TOOLS.encode()))

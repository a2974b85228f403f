"""Every websocket of the site, each for logged-in people of this origin only."""

from typing import Any

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import URLPattern

from jobs import consumers as jobs
from planner import consumers as planner
from serving import consumers as serving

NOT_LOGGED_IN = 4401
urlpatterns: list[URLPattern] = [
    *jobs.websocket_urlpatterns,
    *planner.websocket_urlpatterns,
    *serving.websocket_urlpatterns,
]


class LoggedInOnly:
    """Refuses the handshake of anybody who is not logged in, so that no consumer can forget to."""

    def __init__(self, inner: URLRouter) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["user"].is_authenticated:
            await self.inner(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.close", "code": NOT_LOGGED_IN, "reason": "log in first"})


application = AllowedHostsOriginValidator(AuthMiddlewareStack(LoggedInOnly(URLRouter(urlpatterns))))

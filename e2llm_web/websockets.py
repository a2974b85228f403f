"""Every websocket of the site, each for logged-in people of this origin only."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable
from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import URLPattern

NOT_LOGGED_IN = 4401
APPS = ("jobs", "inventory", "planner", "serving")


def urlpatterns() -> list[URLPattern]:
    consumers = [import_module(f"{app}.consumers") for app in APPS if find_spec(f"{app}.consumers")]
    return [pattern for module in consumers for pattern in module.websocket_urlpatterns]


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


application = AllowedHostsOriginValidator(AuthMiddlewareStack(LoggedInOnly(URLRouter(urlpatterns()))))

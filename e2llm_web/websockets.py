"""Every websocket of the site, each for logged-in people of this origin only."""

from importlib import import_module
from importlib.util import find_spec

from channels.auth import AuthMiddlewareStack
from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from django.urls import URLPattern

APPS = ("jobs", "inventory", "planner", "serving")


def urlpatterns() -> list[URLPattern]:
    consumers = [import_module(f"{app}.consumers") for app in APPS if find_spec(f"{app}.consumers")]
    return [pattern for module in consumers for pattern in module.websocket_urlpatterns]


application = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(urlpatterns())))

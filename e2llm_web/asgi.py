"""The web process: Django pages and websockets."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "e2llm_web.settings")
pages = get_asgi_application()  # before any import that needs the app registry

from e2llm_web import websockets  # noqa: E402

application = ProtocolTypeRouter({"http": pages, "websocket": websockets.application})

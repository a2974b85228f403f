"""Every page of the site; each app names its own paths."""

from importlib.util import find_spec

from django.urls import URLPattern, URLResolver, include, path

from e2llm_web import views

APPS = ("accounts", "jobs", "inventory", "planner", "serving", "demo")

urlpatterns: list[URLPattern | URLResolver] = [
    path("", views.home, name="home"),
    path("live/", views.home_live, name="home_live"),
    path("healthz", views.healthz, name="healthz"),
    *(
        path("", include(f"{app}.urls"))
        for app in APPS
        if find_spec(f"{app}.urls") and find_spec(f"{app}.views")
    ),
]

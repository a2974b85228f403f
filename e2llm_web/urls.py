"""Every page of the site; each app names its own paths."""

from django.urls import include, path

from e2llm_web import views

handler500 = views.server_error
urlpatterns = [
    path("", views.home, name="home"),
    path("live/", views.home_live, name="home_live"),
    path("healthz", views.healthz, name="healthz"),
    path("", include("accounts.urls")),
    path("", include("jobs.urls")),
    path("", include("inventory.urls")),
    path("", include("planner.urls")),
    path("", include("serving.urls")),
    path("", include("upkeep.urls")),
]

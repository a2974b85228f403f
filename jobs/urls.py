from django.urls import path

from jobs import views

app_name = "jobs"
urlpatterns = [
    path("jobs/", views.index, name="index"),
    path("jobs/<int:job_id>/", views.detail, name="detail"),
    path("jobs/<int:job_id>/cancel/", views.cancel, name="cancel"),
]

from django.urls import path

from planner import views

app_name = "planner"
urlpatterns = [
    path("plans/", views.index, name="index"),
    path("plans/new/", views.new, name="new"),
    path("plans/new/hint/", views.hint, name="hint"),
    path("plans/file/", views.from_file, name="file"),
    path("plans/file/measurements/", views.measurements, name="measurements"),
    path("plans/example/", views.example, name="example"),
    path("plans/compare/", views.compare, name="compare"),
    path("plans/<int:run_id>/", views.run, name="run"),
    path("plans/<int:run_id>/stages/", views.stages, name="stages"),
    path("plans/<int:run_id>/what-if/", views.what_if, name="what_if"),
    path("plans/<int:run_id>/worth/", views.worth, name="worth"),
    path("plans/<int:run_id>/again/", views.again, name="again"),
    path("plans/<int:run_id>/cluster.json", views.cluster_file, name="cluster_file"),
    path("plans/<int:run_id>/plan.json", views.plan_file, name="plan_file"),
    path("workload/", views.workload, name="workload"),
]

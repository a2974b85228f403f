from django.urls import path

from planner.views import files, form, history, plans, runs, what_if

app_name = "planner"
urlpatterns = [
    path("plans/", plans.index, name="index"),
    path("plans/new/", form.new, name="new"),
    path("plans/new/hint/", form.hint, name="hint"),
    path("plans/file/", files.from_file, name="file"),
    path("plans/file/measurements/", files.measurements, name="measurements"),
    path("plans/file/example.cluster.json", files.example_file, name="example_file"),
    path("plans/example/", plans.example, name="example"),
    path("plans/compare/", plans.compare, name="compare"),
    path("plans/<int:run_id>/", runs.run, name="run"),
    path("plans/<int:run_id>/stages/", runs.stages, name="stages"),
    path("plans/<int:run_id>/what-if/", what_if.what_if, name="what_if"),
    path("plans/<int:run_id>/worth/", what_if.worth, name="worth"),
    path("plans/<int:run_id>/again/", what_if.again, name="again"),
    path("plans/<int:run_id>/title/", history.entitle, name="title"),
    path("plans/<int:run_id>/remove/", history.remove, name="remove"),
    path("plans/<int:run_id>/change/", form.change, name="change"),
    path("plans/<int:run_id>/cluster.json", files.cluster_file, name="cluster_file"),
    path("plans/<int:run_id>/plan.json", files.plan_file, name="plan_file"),
    path("workload/", form.workload, name="workload"),
]

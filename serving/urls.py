from django.urls import path

from serving.views import deployments, launches, orphans, playground, recalibration, traffic

app_name = "serving"
urlpatterns = [
    path("deployments/", deployments.index, name="index"),
    path("deployments/deploy/", deployments.deploy, name="deploy"),
    path("deployments/left-over/", orphans.index, name="orphans"),
    path("deployments/left-over/adopt/", orphans.adopt, name="orphan_adopt"),
    path("deployments/left-over/stop/", orphans.stop, name="orphan_stop"),
    path("deployments/<int:deployment_id>/", deployments.detail, name="detail"),
    path("deployments/<int:deployment_id>/live/", deployments.live, name="live"),
    path("deployments/<int:deployment_id>/stop/", deployments.stop, name="stop"),
    path("deployments/<int:deployment_id>/again/", deployments.again, name="again"),
    path("deployments/<int:deployment_id>/roll-back/", deployments.roll_back, name="roll_back"),
    path("deployments/<int:deployment_id>/handover/", deployments.handover, name="handover"),
    path("deployments/<int:deployment_id>/recalibrate/", recalibration.index, name="recalibrate"),
    path("deployments/<int:deployment_id>/recalibrate/make/", recalibration.make, name="recalibrate_make"),
    path("replicas/<int:replica_id>/restart/", deployments.restart, name="restart"),
    path("replicas/<int:replica_id>/drain/", deployments.drain, name="drain"),
    path("processes/<int:process_id>/log/", deployments.log, name="log"),
    path("launches/new/", launches.new, name="launch_new"),
    path("launches/<int:launch_id>/", launches.detail, name="launch"),
    path("launches/<int:launch_id>/plan/", launches.plan, name="launch_plan"),
    path("launches/<int:launch_id>/confirm/", launches.confirm, name="launch_confirm"),
    path("launches/<int:launch_id>/drop/", launches.drop, name="launch_drop"),
    path("traffic/", traffic.index, name="traffic"),
    path("traffic/replicas/", traffic.replicas, name="replicas"),
    path("traffic/charts/", traffic.charts, name="traffic_charts"),
    path("traffic/requests/<str:request_id>/", traffic.inspect, name="request"),
    path("traffic/requests/<str:request_id>/text/", traffic.text, name="request_text"),
    path("traffic/workload/", traffic.workload, name="workload"),
    path("playground/", playground.index, name="playground"),
    path("playground/compare/", playground.compare, name="compare"),
    path("playground/ask/", playground.ask, name="ask"),
    path("playground/keep/", playground.keep, name="keep"),
    path("playground/<int:conversation_id>/forget/", playground.forget, name="forget"),
]

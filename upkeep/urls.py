from django.urls import path

from upkeep.views import alerts, backups, retention

app_name = "upkeep"
urlpatterns = [
    path("alerts/", alerts.index, name="alerts"),
    path("settings/alerts/", alerts.rules, name="rules"),
    path("settings/alerts/secret/", alerts.secret, name="secret"),
    path("settings/alerts/test/", alerts.test, name="test"),
    path("settings/retention/", retention.index, name="retention"),
    path("settings/backups/", backups.index, name="backups"),
    path("settings/backups/start/", backups.start, name="backup_start"),
    path("settings/backups/<str:name>/download/", backups.download, name="backup_download"),
    path("settings/backups/<str:name>/sealed/", backups.sealed, name="backup_sealed"),
    path("settings/backups/<str:name>/delete/", backups.delete, name="backup_delete"),
]

from django.urls import path

from inventory.views import adding, devices, identities, language_models, links, profiles, several

app_name = "inventory"
urlpatterns = [
    path("devices/", devices.index, name="devices"),
    path("devices/add/", adding.add, name="device_add"),
    path("devices/add/confirm/<str:word>/", adding.confirm, name="device_confirm"),
    path("devices/add/several/", several.add, name="devices_add"),
    path("devices/add/several/confirm/<str:word>/", several.confirm, name="devices_confirm"),
    path("devices/<int:device_id>/", devices.detail, name="device"),
    path("devices/<int:device_id>/probe/", devices.probe, name="device_probe"),
    path("devices/<int:device_id>/settings/", devices.settings, name="device_settings"),
    path("devices/<int:device_id>/memory/", devices.memory, name="device_memory"),
    path("devices/<int:device_id>/maintenance/", devices.maintenance, name="device_maintenance"),
    path("devices/<int:device_id>/way/", devices.way, name="device_way"),
    path("devices/<int:device_id>/host-key/", devices.host_key, name="device_host_key"),
    path("devices/<int:device_id>/remove/", devices.remove, name="device_remove"),
    path("links/", links.index, name="links"),
    path("links/measure/", links.measure, name="links_measure"),
    path("models/", language_models.index, name="models"),
    path("models/scan/", language_models.scan, name="models_scan"),
    path("models/<int:model_id>/", language_models.detail, name="model"),
    path("models/<int:model_id>/copy/", language_models.copy, name="model_copy"),
    path("models/<int:model_id>/remove/", language_models.remove, name="model_remove"),
    path("profiles/", profiles.index, name="profiles"),
    path("profiles/start/", profiles.start, name="profiles_start"),
    path("profiles/<int:profile_id>/", profiles.detail, name="profile"),
    path("profiles/<int:profile_id>/reuse/", profiles.reuse, name="profile_reuse"),
    path("settings/identities/", identities.index, name="identities"),
    path("settings/identities/<int:identity_id>/remove/", identities.remove, name="identity_remove"),
]

from django.contrib.auth import views as auth_views
from django.contrib.auth.decorators import login_not_required
from django.urls import path
from django.views.generic import RedirectView

from accounts import views

app_name = "accounts"
login = login_not_required(
    auth_views.LoginView.as_view(template_name="accounts/login.html", redirect_authenticated_user=True)
)
urlpatterns = [
    path("login/", login, name="login"),
    path("login/<str:token>/", views.login_link, name="login_link"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("settings/", RedirectView.as_view(pattern_name="accounts:me"), name="settings"),
    path("settings/me/", views.me, name="me"),
    path("settings/me/password/", views.password, name="password"),
    path("settings/keys/", views.keys, name="keys"),
    path("settings/keys/<int:key_id>/", views.key, name="key"),
    path("settings/keys/<int:key_id>/revoke/", views.revoke_key, name="revoke_key"),
    path("settings/users/", views.users, name="users"),
    path("settings/users/<int:user_id>/", views.edit_user, name="user"),
    path("settings/users/<int:user_id>/link/", views.new_link, name="new_link"),
    path("settings/audit/", views.audit_log, name="audit"),
    path("settings/about/", views.about, name="about"),
]

"""Settings: safe as they stand; everything a site changes comes from the environment (docs/operations.md)."""

import os
from pathlib import Path

import django_stubs_ext
from csp.constants import NONE, SELF, UNSAFE_INLINE

from e2llm_web import embedded_redis
from e2llm_web.database_url import database
from e2llm_web.logs import logging_settings
from e2llm_web.secret_key import secret_key

django_stubs_ext.monkeypatch()  # so that ModelForm[User] and its like exist while the program runs, too

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = (BASE_DIR / (os.environ.get("E2LLM_DATA") or "var")).resolve()

SECRET_KEY = os.environ.get("E2LLM_SECRET_KEY") or secret_key(DATA_DIR / "secret.key")
DEBUG = os.environ.get("E2LLM_DEBUG") == "1"
HTTPS = (
    os.environ.get("E2LLM_HTTPS") == "1"
)  # a proxy that ends TLS stands in front and sets X-Forwarded-Proto
HOSTS = [host for host in os.environ.get("E2LLM_HOSTS", "").split(",") if host]
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]", *HOSTS]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.forms",
    "axes",
    "csp",
    "servestatic",
    "channels",
    "django_htmx",
    "accounts",
    "jobs",
    "inventory",
    "planner",
    "serving",
    "upkeep",
    "demo",
    "e2llm_web",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.auth.middleware.LoginRequiredMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "axes.middleware.AxesMiddleware",
]
ROOT_URLCONF = "e2llm_web.urls"
ASGI_APPLICATION = "e2llm_web.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "e2llm_web.navigation.menu",
            ],
            "builtins": ["e2llm_web.templatetags.look"],
        },
    }
]

FORM_RENDERER = "django.forms.renderers.TemplatesSetting"  # so that templates/django/forms styles every field

DATABASES = {"default": database(os.environ.get("DATABASE_URL", ""), DATA_DIR)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
REDIS_URL = os.environ.get("REDIS_URL") or embedded_redis.url(DATA_DIR)
# The core layer of channels-redis loses every idle websocket after 5 s with redis-py 8; the pub/sub layer does not.
CHANNEL_LAYERS = {
    "default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [REDIS_URL]}}
}
GATEWAY_URL = os.environ.get("E2LLM_GATEWAY_URL", "http://127.0.0.1:8001")

CELERY_BROKER_URL = embedded_redis.celery_url(REDIS_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True  # the result of a job is its row
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True  # no task here acks late; unset, it warns
CELERY_TIMEZONE = "UTC"

AUTH_USER_MODEL = "accounts.User"
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
LOGIN_URL = "accounts:login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "accounts:login"
AXES_FAILURE_LIMIT = 8
AXES_COOLOFF_TIME = 0.25  # hours
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_TEMPLATE = "accounts/locked_out.html"

SESSION_COOKIE_AGE = 14 * 24 * 3600
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 365 * 24 * 3600 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if HTTPS else None
SECURE_REFERRER_POLICY = "same-origin"
CSRF_TRUSTED_ORIGINS = [f"https://{host}" for host in HOSTS] if HTTPS else []
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 2**20
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "script-src": [SELF],
        "style-src": [SELF, UNSAFE_INLINE],  # plotly writes style elements
        "img-src": [SELF, "data:", "blob:"],
        "connect-src": [SELF],
        "font-src": [SELF],
        "object-src": [NONE],
        "base-uri": [SELF],
        "form-action": [SELF],
        "frame-ancestors": [NONE],
    }
}

STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = (
    DATA_DIR / "static"
)  # filled with compressed copies by `up`; without them the sources are served
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "servestatic.storage.CompressedStaticFilesStorage"},
}
SERVESTATIC_USE_FINDERS = SERVESTATIC_AUTOREFRESH = DEBUG or not STATIC_ROOT.exists()
SERVESTATIC_ALLOW_ALL_ORIGINS = False
SERVESTATIC_USE_STATIC_ROOT = not SERVESTATIC_USE_FINDERS

EMAIL_HOST = os.environ.get("E2LLM_EMAIL_HOST", "")
EMAIL_PORT = int(os.environ.get("E2LLM_EMAIL_PORT") or 587)
EMAIL_HOST_USER = os.environ.get("E2LLM_EMAIL_USER", "")
EMAIL_HOST_PASSWORD = os.environ.get("E2LLM_EMAIL_PASSWORD", "")
EMAIL_USE_SSL, EMAIL_USE_TLS = EMAIL_PORT == 465, EMAIL_PORT == 587
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = os.environ.get("E2LLM_EMAIL_FROM") or EMAIL_HOST_USER or "e2llm@localhost"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
USE_THOUSAND_SEPARATOR = False
LOGGING = logging_settings(os.environ.get("E2LLM_LOG_LEVEL", "INFO"))

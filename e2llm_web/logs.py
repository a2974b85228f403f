"""One line a record, `key=value` after the message, and no secret in any of them."""

import logging
import re
from typing import Any

STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "request",
    "server_time",
    "data",  # Celery's: the traceback once more, quoted
}
OUR_APPS = frozenset({"accounts", "jobs", "inventory", "planner", "serving", "upkeep", "demo", "e2llm_web"})
SECRETS = re.compile(
    r"(?P<name>bearer\s+|authorization['\"]?\s*[:=]\s*['\"]?|(?:password|passphrase|secret|api[_-]?key|token)['\"]?\s*[:=]\s*['\"]?)"
    r"[^\s'\",&;]+"
    r"|e2[ki]-[\w.\-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=/login/)[\w\-]{16,}"
    r"|(?<=://)[^/\s:@]*:[^/\s@]+(?=@)",
    re.IGNORECASE | re.DOTALL,
)


def redact(text: str) -> str:
    return SECRETS.sub(lambda found: (found["name"] or "") + "[redacted]", text)


class LineFormatter(logging.Formatter):
    """`12:00:01 WARNING jobs.runner lease expired job_id=7`, with every secret masked."""

    def format(self, record: logging.LogRecord) -> str:
        extras = {key: value for key, value in vars(record).items() if key not in STANDARD_FIELDS}
        text = super().format(record)
        if extras:
            first, *rest = text.split("\n", 1)
            text = "\n".join([f"{first} {pairs(extras)}", *rest])
        return redact(text)


def pairs(fields: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(fields.items()))


def is_told(error: BaseException | None) -> bool:
    """An error in our own words: the job's runner has logged it in one line, and its traceback adds nothing."""
    return error is not None and type(error).__module__.partition(".")[0] in OUR_APPS


def refusal_in_one_line(record: logging.LogRecord) -> bool:
    """Django's line of a refused request goes without a traceback; what the server did wrong keeps its own."""
    if getattr(record, "status_code", 500) < 500:
        record.exc_info = record.exc_text = None
    return True


def untold(record: logging.LogRecord) -> bool:
    return not (record.exc_info and is_told(record.exc_info[1]))


def logging_settings(level: str) -> dict[str, Any]:
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "line": {
                "()": LineFormatter,
                "format": "%(asctime)s %(levelname)s %(name)s %(message)s",
                "datefmt": "%H:%M:%S",
            }
        },
        "filters": {
            "untold": {"()": lambda: untold},
            "refusal_in_one_line": {"()": lambda: refusal_in_one_line},
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "level": level, "propagate": True},
            "django.request": {"filters": ["refusal_in_one_line"], "propagate": True},
            "celery.app.trace": {"filters": ["untold"], "propagate": True},
            "django.server": {"handlers": [], "level": level, "propagate": True},
            # uvicorn brings handlers of its own, whose lines nobody would mask.
            "uvicorn": {"handlers": [], "level": "WARNING", "propagate": True},
            "asyncssh": {"level": "WARNING"},
            "httpx": {"level": "WARNING"},
            "axes": {"level": "WARNING"},
        },
    }

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.conf import settings

from e2llm_web.logs import OUR_APPS, LineFormatter, redact
from inventory.remote import HostUnreachable
from jobs.core.errors import JobFailed


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("Authorization: Bearer e2k-AbCdEf0123456789", "AbCdEf0123456789"),
        ("key e2i-5.1700000000.abcd.0123456789 refused", "0123456789"),
        ("password=hunter2222 for ada", "hunter2222"),
        ('{"api_key": "sk-live-1234"}', "sk-live-1234"),
        ("GET /login/3kV9xQpLr7sT2uWyZaBcDe/ 302", "3kV9xQpLr7sT2uWyZaBcDe"),
        ("postgresql://e2llm:swordfish@db/e2llm", "swordfish"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaA\n-----END OPENSSH PRIVATE KEY-----", "b3BlbnNzaA"),
    ],
)
def test_secret_never_reaches_the_log(line: str, secret: str) -> None:
    assert secret not in redact(line)


def test_ordinary_line_stays_as_it_is() -> None:
    assert redact("12 tokens in 3 s on device dev1") == "12 tokens in 3 s on device dev1"


def test_extra_fields_stand_after_the_message() -> None:
    record = logging.makeLogRecord(
        {"msg": "lease expired", "job_id": 7, "levelname": "WARNING", "name": "jobs"}
    )
    assert LineFormatter("%(message)s").format(record) == "lease expired job_id=7"


def celery_says(error: Exception) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "celery.app.trace", "exc_info": (type(error), error, None)})


def test_an_error_in_our_own_words_leaves_no_traceback_of_celery() -> None:
    trace = logging.getLogger("celery.app.trace")
    assert not trace.filter(celery_says(HostUnreachable("box-1 does not answer.")))
    assert not trace.filter(celery_says(JobFailed("8 devices hold 61 GB.")))


def test_an_error_that_nobody_foresaw_keeps_its_traceback() -> None:
    assert logging.getLogger("celery.app.trace").filter(celery_says(KeyError("missing")))


def test_every_app_of_ours_speaks_in_own_words() -> None:
    ours = {app.name for app in apps.get_app_configs() if Path(app.path).parent == settings.BASE_DIR}
    assert ours == OUR_APPS


FAULTS_OF_A_SERVER = """
import logging, os
import uvicorn
os.environ["DJANGO_SETTINGS_MODULE"] = "e2llm_web.settings"
uvicorn.Config("serving.gateway.app:app", log_level="warning")
import django
django.setup()
try:
    try:
        raise ValueError("Authorization: Bearer e2k-canary0123456789")
    except ValueError as inner:
        raise RuntimeError("password=canary for postgresql://e2llm:canary@db/e2llm") from inner
except RuntimeError as error:
    for name in ("uvicorn.error", "django.request", "celery.app.trace", "serving.gateway", "asyncio", "other"):
        logging.getLogger(name).error("argv %s", ["--api-key=e2k-canary0123456789"], exc_info=error)
"""


def test_no_part_of_a_process_writes_a_secret_not_even_in_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_A_SERVER],
        cwd=settings.BASE_DIR,
        env={**os.environ, "E2LLM_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    written = done.stdout + done.stderr
    assert done.returncode == 0, written
    assert written.count("RuntimeError: password=[redacted]") == 6
    assert "canary" not in written


def test_a_refused_request_is_one_line_and_a_fault_of_the_server_keeps_its_traceback() -> None:
    logger = logging.getLogger("django.request")
    refused, broken = (
        logging.makeLogRecord({"status_code": status, "exc_info": (KeyError, KeyError("x"), None)})
        for status in (403, 500)
    )
    assert logger.filter(refused) and logger.filter(broken)
    assert refused.exc_info is None
    assert broken.exc_info is not None

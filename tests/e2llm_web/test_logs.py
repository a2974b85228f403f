import logging

import pytest

from e2llm_web.logs import LineFormatter, redact


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

"""The settings of the tests: the product's own, over a data folder that only this run has."""

import os
import tempfile

os.environ["E2LLM_DATA"] = tempfile.mkdtemp(prefix="e2llm-test-")
for name in ("DATABASE_URL", "REDIS_URL", "E2LLM_HTTPS", "E2LLM_HOSTS", "E2LLM_DEBUG"):
    os.environ.pop(name, None)

from e2llm_web.settings import *  # noqa: E402

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # fast: a test's password guards nothing

"""A person at the pages of a running site, without a browser: opens pages, sends forms, waits for jobs."""

import html
import re
from typing import Any

import httpx

from demo.hosts import DemoHost
from tests.conftest import wait_until
from tests.running_site import Site

JOB_SECONDS = 240.0
FINISHED = ("succeeded", "failed", "cancelled", "interrupted")


class Visitor:
    """Logged in as the first admin by the link that the site printed."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{site.port}", follow_redirects=True, timeout=60.0
        )
        page = self.client.get(site.login_link)
        self.send(page.url.path, page=page)

    def open(self, path: str) -> httpx.Response:
        page = self.client.get(path)
        assert page.status_code == 200, f"{path}: {page.status_code} {words(page)[:500]}"
        return page

    def send(
        self,
        path: str,
        data: dict[str, Any] | None = None,
        *,
        page: httpx.Response | None = None,
        files: dict[str, tuple[str, str]] | None = None,
    ) -> httpx.Response:
        """Send a form; its token is taken from `page` or from the page at the same address."""
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', (page or self.client.get(path)).text)
        token = found[1] if found else self.client.cookies["csrftoken"]
        return self.client.post(
            path,
            data={"csrfmiddlewaretoken": token, **(data or {})},
            files=files,
            headers={"Referer": str(self.client.base_url)},
        )

    def send_json(self, path: str, document: dict[str, Any]) -> httpx.Response:
        """Send what a page's script would send."""
        return self.client.post(
            path, json=document, headers={"X-CSRFToken": self.client.cookies["csrftoken"]}
        )

    def add_device(self, machine: DemoHost, **changes: Any) -> httpx.Response:
        """Type a device in and confirm its fingerprint; the last page that is shown."""
        typed = {
            "connection": "ssh",
            "name": machine.name,
            "host": machine.address,
            "port": machine.port,
            "username": machine.username,
            "password": machine.password,
        }
        shown = self.send("/devices/add/", typed | changes)
        if not shown.url.path.startswith("/devices/add/confirm/"):
            return shown
        return self.send(shown.url.path, page=shown)

    def finished_job(self, kind: str) -> str:
        """Wait for the newest job of a kind; its error, empty when it succeeded."""
        query = "SELECT state, error FROM jobs_job WHERE kind = ? ORDER BY id DESC LIMIT 1"
        state, error = wait_until(
            lambda: next((row for row in self.site.rows(query, kind) if row[0] in FINISHED), None),
            f"the job {kind} ends",
            seconds=JOB_SECONDS,
        )
        return "" if state == "succeeded" else f"{state}: {error}"

    def api_key(self) -> str:
        shown = self.send(
            "/settings/keys/", {"name": "test", "scopes": ["generate", "tokenize"], "max_concurrent": 0}
        )
        found = re.search(r"e2k-[\w-]+", shown.text)
        assert found is not None, words(shown)
        return found[0]


def words(page: httpx.Response) -> str:
    """The text of a page as a person reads it."""
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page.text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())

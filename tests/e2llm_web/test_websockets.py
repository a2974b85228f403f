import pytest

from accounts.models import User
from jobs.models import Job
from tests.websocket import Socket

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


@pytest.fixture
def path(db: None) -> str:
    job = Job.objects.create(kind="jobs.nothing", label="Nothing")
    return f"/ws/jobs/{job.pk}/"


async def test_socket_is_refused_without_a_login(path: str) -> None:
    assert not await Socket(path).open()


async def test_socket_is_refused_to_another_origin(path: str, viewer: User) -> None:
    assert not await Socket(path, viewer, origin="http://evil.example").open()


async def test_logged_in_person_gets_a_snapshot(path: str, viewer: User) -> None:
    socket = Socket(path, viewer)
    assert await socket.open()
    assert (await socket.receive())["type"] == "snapshot"
    await socket.close()

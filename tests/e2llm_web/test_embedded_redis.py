import stat
from pathlib import Path

import redis
from django.conf import settings

from e2llm_web import embedded_redis


def test_socket_lies_in_the_data_folder(tmp_path: Path) -> None:
    assert embedded_redis.socket_path(Path("/srv/e2llm")) == Path("/srv/e2llm/redis/valkey.sock")


def test_long_data_folder_gets_a_short_socket_path() -> None:
    deep = Path("/srv") / ("laboratory/" * 12)
    assert len(str(embedded_redis.socket_path(deep))) <= embedded_redis.LONGEST_SOCKET_PATH


def test_two_long_data_folders_do_not_share_a_socket() -> None:
    deep = Path("/srv") / ("laboratory/" * 12)
    assert embedded_redis.socket_path(deep / "a") != embedded_redis.socket_path(deep / "b")


def test_celery_gets_its_own_spelling_of_a_socket() -> None:
    assert embedded_redis.celery_url("unix:///srv/v.sock?db=0") == "redis+socket:///srv/v.sock?virtual_host=0"
    assert embedded_redis.celery_url("redis://cache:6379/2") == "redis://cache:6379/2"


def test_embedded_server_listens_on_a_private_socket_only(valkey_url: str) -> None:
    client = redis.Redis.from_url(valkey_url)
    assert client.config_get("port") == {"port": "0"}
    socket = embedded_redis.socket_path(settings.DATA_DIR)
    assert stat.S_IMODE(socket.stat().st_mode) == 0o700

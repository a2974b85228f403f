"""The command that says what a header holds: only of files, and without letting them speak to the terminal."""

from __future__ import annotations

import os
from io import StringIO
from pathlib import Path

import gguf
import pytest
from django.core.management import call_command

from tests.inventory import tiny_models as tiny


def refusal(path: Path, *options: str) -> str:
    told = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("inspect_gguf", str(path), *options, stderr=told)
    assert ended.value.code == 2
    return told.getvalue()


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "a pipe or a device" in refusal(pipe)
    assert "a pipe or a device" in refusal(Path("/dev/zero"))
    assert "it is a directory" in refusal(tmp_path)
    assert "there is no such file" in refusal(tmp_path / "gone.gguf")


@pytest.mark.parametrize("context", ["0", "-5"])
def test_a_context_without_tokens_is_refused(tmp_path: Path, context: str) -> None:
    path = tiny.LLAMA.write(tmp_path / "a.gguf")
    assert "give --context 1 or more" in refusal(path, f"--context={context}")


def test_control_characters_of_a_file_do_not_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_name = gguf.GGUFWriter.add_name
    monkeypatch.setattr(gguf.GGUFWriter, "add_name", lambda self, _: add_name(self, "\x1b[2Jgone\u202e\x07"))
    path = tiny.LLAMA.write(tmp_path / "a.gguf")
    told = StringIO()
    call_command("inspect_gguf", str(path), stdout=told)
    text = told.getvalue()
    assert text.replace("\n", "").isprintable()
    assert "\\x1b[2Jgone\\u202e\\x07" in text
    assert "\\x1b" in refusal(tmp_path / "\x1b[31m.gguf")

"""Which pieces of a stream may pass as they are, and what is made of the others."""

from __future__ import annotations

import pytest

from serving.core.sse import EventSplitter, plain_events

TEXT = b'data: {"choices":[{"delta":{"content":"a\\n: b"}}]}\n\n'


@pytest.mark.parametrize(
    ("piece", "number"),
    [
        (TEXT, 1),
        (TEXT * 3, 3),
        (TEXT[:-1], 0),
        (TEXT + TEXT[:9], 0),
        (b":\n\n" + TEXT, 0),
        (TEXT + b": ping\n\n" + TEXT, 0),
        (TEXT + b"data: [DONE]\n\n", 0),
        (b"data: [DONE]\n\n", 0),
        (b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\n', 0),
        (b'data: {"error":{"code":500}}\n\n', 0),
        (b'error: {"code":500}\n\n', 0),
        (TEXT + b'error: {"code":500}\n\n', 0),
        (TEXT[:-1] + b": ping\n\n", 0),
    ],
)
def test_only_whole_events_of_text_are_plain(piece: bytes, number: int) -> None:
    assert plain_events(piece) == number


@pytest.mark.parametrize("cut", range(1, len(TEXT) * 2))
def test_events_are_the_same_wherever_a_stream_is_cut(cut: int) -> None:
    whole, splitter = TEXT + b":\n\n" + TEXT, EventSplitter()
    assert splitter.feed(whole[:cut]) + splitter.feed(whole[cut:]) == TEXT * 2

"""Say what a GGUF file's header holds: `manage.py inspect_gguf FILE [--context N] [--json]`."""

from __future__ import annotations

import json
import os
import stat
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand

from inventory.core.gguf import GgufError, read_header
from inventory.core.model_shape import ModelShape, shape_of
from inventory.core.quantities import bytes_text, visible
from inventory.library import SHARD

BAD_INPUT = 2
USUAL_CONTEXT = 8192


class Command(BaseCommand):
    help = "Read the header of a GGUF file (all shards of a split one) without loading the model."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument(
            "--context", type=int, default=USUAL_CONTEXT, help="tokens of context for the KV sizes"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")

    def handle(self, *args: Any, file: Path, context: int, **options: Any) -> None:
        try:
            if context < 1:
                raise GgufError(f"a context of {context} tokens holds nothing; give --context 1 or more")
            shape = shape_at(file)
        except GgufError as error:
            self.stderr.write(visible(f"{file}: {error}"))
            sys.exit(BAD_INPUT)
        document = described(shape, context)
        if options["json"]:
            self.stdout.write(json.dumps(document, indent=1))
            return
        for line in lines(shape, document):
            self.stdout.write(visible(line))


def shape_at(file: Path) -> ModelShape:
    """The shape of a model from its file, or from all shards when it is the first of them."""
    headers = []
    for path in shards(file):
        with opened(path) as stream:
            headers.append(read_header(stream, os.fstat(stream.fileno()).st_size))
    return shape_of(headers)


def opened(path: Path) -> BinaryIO:
    """The file to read; GgufError for what is none: a pipe or a device would be waited for without end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        raise GgufError("there is no such file; check the path") from None
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        raise GgufError(f"it cannot be opened: {reason}") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = (
            "a directory; name a .gguf file in it" if stat.S_ISDIR(mode) else "a pipe or a device, not a file"
        )
        raise GgufError(f"it is {what}")
    return os.fdopen(descriptor, "rb")


def shards(file: Path) -> list[Path]:
    match = SHARD.match(file.name)
    if match is None:
        return [file]
    return sorted(file.parent.glob(f"{match['stem']}-?????-of-{match['count']}.gguf"))


def described(shape: ModelShape, context_tokens: int) -> dict[str, Any]:
    """The shape with what follows from it for one slot of this context."""
    return shape.to_dict() | {
        "block_kinds": shape.block_kinds,
        "period_blocks": shape.period_blocks,
        "kv_bytes_per_token": shape.kv_bytes_per_token(),
        "context_tokens": context_tokens,
        "kv_slot_bytes": sum(block.kv_bytes(context_tokens, full_cache=False) for block in shape.blocks),
        "kv_slot_bytes_for_handover": sum(
            block.kv_bytes(context_tokens, full_cache=True) for block in shape.blocks
        ),
        "handover_bytes_per_token": shape.handover_bytes_per_token(),
        "handover_bytes_per_request": shape.handover_bytes_per_request(),
        "can_hand_over": shape.can_hand_over,
    }


def lines(shape: ModelShape, document: dict[str, Any]) -> list[str]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in shape.block_kinds.items())
    sizes = [block.size_bytes for block in shape.blocks]
    return [
        f"{shape.name}: {shape.architecture}, {shape.quantisation}, {bytes_text(shape.file_bytes)}",
        f"blocks      {len(shape.blocks)} ({kinds}), {bytes_text(min(sizes))} to {bytes_text(max(sizes))} each",
        f"head        {bytes_text(shape.output_bytes)}{' (shared with the embedding)' if shape.is_tied else ''}",
        f"embedding   {bytes_text(shape.embedding_bytes)}, length {shape.embedding_length}",
        f"vocabulary  {shape.vocabulary:,} tokens",
        f"KV cache    {document['kv_bytes_per_token']:,} bytes a token; one slot of {document['context_tokens']:,} "
        f"tokens {bytes_text(document['kv_slot_bytes'])}, "
        f"for a hand-over {bytes_text(document['kv_slot_bytes_for_handover'])}",
        f"template    {'yes' if shape.has_chat_template else 'no chat template in the file'}",
        *shape.notes,
    ]

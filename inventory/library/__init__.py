"""GGUF files on devices and in the server's library: found, recognised, copied."""

from inventory.library.copying import copy_model
from inventory.library.finding import (
    SHARD,
    FoundFile,
    Inspected,
    find,
    found_again,
    inspect,
    library_device,
    library_folder,
    remember,
    scan,
)

__all__ = [
    "SHARD",
    "FoundFile",
    "Inspected",
    "copy_model",
    "find",
    "found_again",
    "inspect",
    "library_device",
    "library_folder",
    "remember",
    "scan",
]

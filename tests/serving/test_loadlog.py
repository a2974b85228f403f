"""Reading back where a replica really put its blocks."""

from __future__ import annotations

from serving.core.commands import ExpectedBuffer
from serving.core.loadlog import Buffers, buffers, missing_devices

LOG = """\
0.00.310.616 I load_tensors: offloaded 19/31 layers to GPU
0.00.310.639 I load_tensors:   CPU_Mapped model buffer size =    92.00 MiB
0.00.310.640 I load_tensors:   CPU_REPACK model buffer size =     8.00 MiB
0.00.310.652 I load_tensors: RPC0[127.0.0.12:18012] model buffer size =    38.00 MiB
0.00.398.181 I llama_context:        CPU  output buffer size =     0.19 MiB
0.00.398.388 I llama_kv_cache:        CPU KV buffer size =    18.00 MiB
0.00.448.256 I llama_kv_cache: RPC0[127.0.0.12:18012] KV buffer size =    27.00 MiB
0.00.448.257 I llama_kv_cache: RPC0[127.0.0.12:18012] KV buffer size =     3.00 MiB
0.00.598.136 I sched_reserve: RPC0[127.0.0.12:18012] compute buffer size =    13.00 MiB
"""
WORKER = ExpectedBuffer("b", "RPC0[127.0.0.12:18012]", range(12, 30))


def test_buffers_of_a_device_are_added_up() -> None:
    found = buffers(LOG)
    assert found["CPU"] == Buffers(100 * 2**20, 18 * 2**20, round(0.19 * 2**20)), "the logits"
    assert found["RPC0[127.0.0.12:18012]"] == Buffers(38 * 2**20, 30 * 2**20, 13 * 2**20)


def test_mapped_and_pinned_buffers_are_counted_to_their_device() -> None:
    log = """\
load_tensors:  MTL0_Mapped model buffer size =   100.00 MiB
load_tensors:    CUDA_Host model buffer size =    50.00 MiB
load_tensors:          AMX model buffer size =    25.00 MiB
llama_kv_cache:       MTL0 KV buffer size =    10.00 MiB
"""
    found = buffers(log)
    assert found == {"MTL0": Buffers(100 * 2**20, 10 * 2**20), "CPU": Buffers(75 * 2**20)}
    assert missing_devices(log, [ExpectedBuffer("mac", "MTL0", range(4))]) == []


def test_a_complete_load_misses_nothing() -> None:
    assert missing_devices(LOG, [ExpectedBuffer("a", "CPU", range(12)), WORKER]) == []


def test_a_master_that_went_on_without_its_worker_is_noticed() -> None:
    without = "\n".join(line for line in LOG.splitlines() if "RPC0" not in line)
    assert missing_devices(without, [WORKER]) == ["RPC0[127.0.0.12:18012]"]

"""Plan -> command lines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.commands import ModelFacts, ReplicaCommands, replica_commands
from serving.core.placement import BadLaunch, Gpu, HostFacts

OPTIONS = """
    --model --alias --host --port --api-key-file --threads --offline --cors-origins --no-cors-credentials
    --metrics --log-verbosity --fit --rpc --device --n-gpu-layers --tensor-split --override-tensor
    --parallel --ctx-size --batch-size --flash-attn --cache-ram --ctx-checkpoints --kv-unified --no-ui
    --slot-save-path --swa-full --path --ubatch-size --embeddings --pooling
"""
FLAGS = frozenset(OPTIONS.split())

Case = tuple[dict[str, Any], list[HostFacts], ModelFacts]


def host(name: str, number: int, gpus: int = 0, flags: frozenset[str] = FLAGS) -> HostFacts:
    return HostFacts(
        device=name,
        address=f"10.0.0.{number}",
        port=50000 + number,
        gpus=tuple(Gpu(f"CUDA{index}", 8 * 10**9) for index in range(gpus)),
        threads=4,
        server_path="/opt/llama/llama-server",
        rpc_server_path="/opt/llama/ggml-rpc-server",
        model_path="/models/tiny.gguf",
        flags=flags,
        marker=f"e2llm-{number:012x}",
        run_folder=f"/home/lab/.cache/e2llm/e2llm-{number:012x}",
        slot_folder=f"/dev/shm/e2llm-{number:012x}",
    )


def stage(device: str, gpu_blocks: int, cpu_blocks: int = 0, master: bool = False) -> dict[str, Any]:
    return {"device": device, "master": master, "gpu_blocks": gpu_blocks, "cpu_blocks": cpu_blocks}


def one(role: str, *stages: dict[str, Any], slots: int = 2) -> dict[str, Any]:
    mode = "mixed" if role == "mixed" else "disaggregated"
    return {"mode": mode, "replicas": [{"role": role, "slots": slots, "stages": list(stages)}]}


def value(argv: tuple[str, ...], option: str) -> str:
    return argv[argv.index(option) + 1]


def build(plan: dict[str, Any], hosts: list[HostFacts], model: ModelFacts) -> ReplicaCommands:
    return replica_commands(plan, model, {one_host.device: one_host for one_host in hosts})[0]


def test_gpu_master_comes_last_and_carries_the_output_layer() -> None:
    hosts = [host("a", 1, gpus=1), host("b", 2, gpus=1), host("c", 3, gpus=1)]
    plan = one("mixed", stage("a", 4, 2, master=True), stage("b", 4, 2), stage("c", 6))
    argv = build(plan, hosts, ModelFacts(18, 2048)).master.argv
    assert value(argv, "--device") == "RPC0,RPC1,RPC2,CUDA0"
    assert value(argv, "--tensor-split") == "4,2,6,5"
    assert value(argv, "--n-gpu-layers") == "17"
    assert "--override-tensor" not in argv


def test_workers_expose_gpu_before_cpu_and_survive_sigpipe() -> None:
    hosts = [host("a", 1, gpus=1), host("b", 2, gpus=1), host("c", 3)]
    plan = one("mixed", stage("a", 8, master=True), stage("b", 4, 2), stage("c", 4))
    gpu_worker, cpu_worker = build(plan, hosts, ModelFacts(18, 2048)).workers
    assert gpu_worker.argv[:3] == ("/bin/sh", "-c", 'trap "" PIPE; exec "$@"')
    assert value(gpu_worker.argv, "-d") == "CUDA0,CPU"
    assert value(cpu_worker.argv, "-d") == "CPU"
    assert value(cpu_worker.argv, "-H") == "10.0.0.3"


def test_cpu_master_keeps_the_head_at_home() -> None:
    plan = one("mixed", stage("a", 12, master=True), stage("b", 18))
    replica = build(plan, [host("a", 1), host("b", 2)], ModelFacts(30, 2048))
    argv = replica.master.argv
    assert value(argv, "--override-tensor") == "^output=CPU,^token_embd=CPU"
    assert (value(argv, "--device"), value(argv, "--n-gpu-layers"), value(argv, "--tensor-split")) == (
        "RPC0",
        "19",
        "19",
    )
    assert [(buffer.log_name, buffer.blocks) for buffer in replica.expected] == [
        ("CPU", range(12)),
        ("RPC0[10.0.0.2:50002]", range(12, 30)),
    ]


def test_single_cpu_host_offloads_nothing() -> None:
    argv = build(one("mixed", stage("a", 30, master=True)), [host("a", 1)], ModelFacts(30, 2048)).master.argv
    assert value(argv, "--device") == "none"
    assert "--n-gpu-layers" not in argv and "--rpc" not in argv


def test_experts_of_cpu_blocks_go_to_the_ram_of_the_device_that_holds_the_block() -> None:
    hosts = [host("a", 1, gpus=1), host("b", 2, gpus=1)]
    plan = one("mixed", stage("a", 3, 2, master=True), stage("b", 4, 3))
    argv = build(plan, hosts, ModelFacts(12, 2048, offload="experts")).master.argv
    assert value(argv, "--device") == "RPC0,RPC1,CUDA0"
    assert value(argv, "--tensor-split") == "7,0,6"
    assert value(argv, "--override-tensor") == (
        r"blk\.(0|1|2)\.ffn_.*_exps=RPC1[10.0.0.2:50002],blk\.(7|8)\.ffn_.*_exps=CPU"
    )


def test_several_gpus_of_a_host_share_its_blocks_by_memory() -> None:
    argv = build(
        one("mixed", stage("a", 7, 1, master=True)), [host("a", 1, gpus=2)], ModelFacts(8, 2048)
    ).master.argv
    assert value(argv, "--device") == "CUDA0,CUDA1"
    assert value(argv, "--tensor-split") in ("4,4", "3,5")


def test_handover_options_are_equal_on_both_sides_and_only_prefill_serves_files() -> None:
    hosts = [host("a", 1), host("b", 2)]
    plan = {
        "mode": "disaggregated",
        "replicas": [
            {"role": "prefill", "slots": 1, "stages": [stage("a", 30, master=True)]},
            {"role": "decode", "slots": 4, "stages": [stage("b", 30, master=True)]},
        ],
    }
    facts = {one_host.device: one_host for one_host in hosts}
    prefill, decode = replica_commands(plan, ModelFacts(30, 2048, sliding_window=True), facts)
    for replica in (prefill, decode):
        assert {"--kv-unified", "--swa-full", "--slot-save-path"} <= set(replica.master.argv)
        assert value(replica.master.argv, "--cache-ram") == "0"
    assert value(prefill.master.argv, "--path") == value(prefill.master.argv, "--slot-save-path")
    assert "--no-ui" not in prefill.master.argv and "--no-ui" in decode.master.argv
    assert value(decode.master.argv, "--ctx-size") == str(4 * 2048)


def test_recurrent_models_get_no_handover() -> None:
    plan = one("prefill", stage("a", 30, master=True))
    replica = build(plan, [host("a", 1)], ModelFacts(30, 2048, recurrent=True))
    assert not replica.handover and "--slot-save-path" not in replica.master.argv


def test_options_a_build_does_not_know_are_left_out() -> None:
    old = host("a", 1, flags=FLAGS - {"--fit", "--cache-ram", "--offline", "--no-ui"} | {"--no-webui"})
    argv = build(one("mixed", stage("a", 30, master=True)), [old], ModelFacts(30, 2048)).master.argv
    assert "--fit" not in argv and "--no-webui" in argv
    assert {word for word in argv if word.startswith("--")} <= old.flags


def test_an_option_the_plan_cannot_do_without_is_named() -> None:
    old = host("a", 1, flags=FLAGS - {"--slot-save-path"})
    with pytest.raises(BadLaunch, match="--slot-save-path"):
        build(one("prefill", stage("a", 30, master=True)), [old], ModelFacts(30, 2048))


@pytest.mark.parametrize("address", ["host.lab", "::1", "0.0.0.0", "10.0.0.1:80"])
def test_only_a_plain_cluster_address_is_taken(address: str) -> None:
    with pytest.raises(BadLaunch):
        replace(host("a", 1), address=address)


def test_two_processes_on_one_port_are_refused() -> None:
    hosts = {"a": host("a", 1), "b": host("b", 1)}
    plan = one("mixed", stage("a", 12, master=True), stage("b", 18))
    with pytest.raises(BadLaunch, match="both listen"):
        replica_commands(plan, ModelFacts(30, 2048), hosts)


def test_secrets_stay_out_of_the_command_line() -> None:
    command = build(one("mixed", stage("a", 30, master=True)), [host("a", 1)], ModelFacts(30, 2048)).master
    assert command.key_path == f"{command.run_folder}/api-key"
    assert "--api-key" not in command.argv
    assert command.environment["E2LLM_MARKER"] == value(command.argv, "--alias")


@st.composite
def replicas(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 6))
    master = draw(st.integers(0, count - 1))
    hosts, stages = [], []
    for number in range(count):
        gpus = draw(st.integers(0, 3))
        gpu_blocks = draw(st.integers(0, 12))
        cpu_blocks = draw(st.integers(0, 12)) if gpus else 0
        hosts.append(host(f"d{number}", number + 1, gpus))
        stages.append(
            stage(
                f"d{number}", gpu_blocks + (not gpu_blocks and not cpu_blocks), cpu_blocks, number == master
            )
        )
    n_blocks = sum(one_stage["gpu_blocks"] + one_stage["cpu_blocks"] for one_stage in stages)
    model = ModelFacts(n_blocks, 1024, offload=draw(st.sampled_from(["whole", "experts"])))
    return one("mixed", *stages), hosts, model


def dealt_by_llama(n_blocks: int, offloaded: int, shares: list[int]) -> list[int]:
    """llama.cpp's own rule: a layer goes where its fraction falls in the running sum of the split."""
    counts = [0] * len(shares)
    for layer in range(offloaded):
        position = layer * sum(shares) / offloaded
        counts[next(i for i in range(len(shares)) if sum(shares[: i + 1]) > position)] += 1
    return counts


@given(replicas())
def test_every_plan_lands_exactly_where_it_says(
    case: Case,
) -> None:
    plan, hosts, model = case
    replica = build(plan, hosts, model)
    argv = replica.master.argv
    home = sum(piece.blocks for piece in replica.pieces if not piece.offloaded)
    if value(argv, "--device") == "none":
        assert home == model.n_blocks
        return
    devices = value(argv, "--device").split(",")
    shares = [int(share) for share in value(argv, "--tensor-split").split(",")]
    assert len(devices) == len(shares) == len(set(devices))
    assert sum(shares) == int(value(argv, "--n-gpu-layers")) == model.n_blocks + 1 - home
    assert dealt_by_llama(model.n_blocks, sum(shares), shares) == shares
    assert sum(share > 0 for share in shares) >= sum(
        bool(piece.blocks) for piece in replica.pieces if piece.offloaded
    )
    if "--rpc" in argv:
        assert argv.index("--rpc") < argv.index("--device")
        assert len(value(argv, "--rpc").split(",")) == len(replica.workers)


@given(replicas())
def test_block_ranges_cover_the_model_without_gaps(
    case: Case,
) -> None:
    plan, hosts, model = case
    replica = build(plan, hosts, model)
    numbers = [number for piece in replica.pieces for number in piece.block_range]
    assert numbers == list(range(model.n_blocks))
    per_device = {one_host.device: 0 for one_host in hosts}
    for piece in replica.pieces:
        per_device[piece.device] += piece.blocks
    for one_stage in plan["replicas"][0]["stages"]:
        assert per_device[one_stage["device"]] == one_stage["gpu_blocks"] + one_stage["cpu_blocks"]


def test_a_quoted_model_path_stays_one_argument() -> None:
    odd = replace(host("a", 1), model_path="/m o'd/$(x).gguf")
    argv = build(one("mixed", stage("a", 3, master=True)), [odd], ModelFacts(3, 64)).master.argv
    assert value(argv, "--model") == "/m o'd/$(x).gguf"

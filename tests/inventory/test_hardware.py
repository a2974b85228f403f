"""Recorded machines into hardware and usable memory."""

from __future__ import annotations

import pytest

from inventory.core.hardware import clock_skew, clock_text, hardware_of, spare_threads, usable_memory
from tests.inventory import recordings
from tests.inventory.recordings import Recording, sections

MIB, KIB = 2**20, 2**10


@pytest.mark.parametrize(
    "recording, cpu, cores, system, gpu",
    [
        (recordings.DEBIAN_VM, "AMD EPYC", 2, "Debian GNU/Linux 12 (bookworm)", "CPU"),
        (recordings.RTX_DESKTOP, "AMD Ryzen 7 9700X 8-Core Processor", 16, "Ubuntu 24.04.1 LTS", "CUDA0"),
        (recordings.ROCM, "AMD Ryzen 7 9700X 8-Core Processor", 16, "Ubuntu 24.04.1 LTS", "ROCm0"),
        (recordings.M2_MAX, "Apple M2 Max", 12, "macOS 14.6.1", "Metal"),
        (recordings.M1_MAX_WIRED, "Apple M1 Max", 10, "macOS 15.1", "MTL0"),
        (recordings.DGX_SPARK, "NVIDIA_DGX_Spark", 20, "Ubuntu 24.04.3 LTS", "CUDA0"),
        (recordings.RTX_LAPTOP, "AMD Ryzen 7 5800H with Radeon Graphics", 16, "Ubuntu 24.04.1 LTS", "CUDA0"),
        (recordings.JETSON, "ARMv8 Processor rev 1 (v8l)", 12, "Ubuntu 22.04.5 LTS", "CUDA0"),
        (
            recordings.RASPBERRY_PI,
            "Raspberry Pi 5 Model B Rev 1.0",
            4,
            "Debian GNU/Linux 12 (bookworm)",
            "CPU",
        ),
    ],
)
def test_each_machine_is_recognised(
    recording: Recording, cpu: str, cores: int, system: str, gpu: str
) -> None:
    found = hardware_of(sections(recording))
    assert (found["cpu_model"], found["cores"], found["os"]) == (cpu, cores, system)
    assert [card["name"] for card in found["gpus"]] == ([] if gpu == "CPU" else [gpu])
    assert found["boot_id"]
    assert spare_threads(found) == cores - 1


def test_a_machine_without_gpu_is_one_pool_of_ram() -> None:
    usable = usable_memory(hardware_of(sections(recordings.DEBIAN_VM)))
    reserve = int(0.10 * 24684092 * KIB)
    assert usable.ram_bytes == 0
    assert usable.gpu_bytes == 23399540 * KIB - reserve // 2


def test_a_gpu_has_ram_beside_it_and_the_smaller_total_counts() -> None:
    found = hardware_of(sections(recordings.RTX_DESKTOP))
    usable = usable_memory(found)
    assert usable.gpu_bytes == 11874 * MIB - int(0.05 * 11874 * MIB)
    assert 50e9 < usable.ram_bytes < 65743412 * KIB
    assert "llama-server" in usable.text


def test_memory_that_other_programs_hold_is_not_planned_with() -> None:
    found = hardware_of(sections(recordings.RTX_LAPTOP))
    assert usable_memory(found).gpu_bytes == 1754 * MIB
    assert any("battery" in warning for warning in found["warnings"])


def test_memory_that_our_own_processes_hold_is_planned_with() -> None:
    found = hardware_of(sections(recordings.RTX_LAPTOP | {"ours": "/proc/77/environ"}))
    assert usable_memory(found).gpu_bytes == 5937 * MIB - 512 * MIB


def test_usable_memory_is_never_more_than_what_was_available_and_what_ours_hold() -> None:
    small = {"meminfo": "MemTotal: 25000000 kB\nMemAvailable: 20000000 kB\n"}
    nothing = usable_memory(hardware_of(sections(recordings.DEBIAN_VM | small)))
    for listed in ("/proc/77/environ", "/proc/77/environ\nRssAnon:\t   0 kB\nRssShmem:\t 0 kB\n"):
        found = hardware_of(sections(recordings.DEBIAN_VM | small | {"ours": listed}))
        assert usable_memory(found) == nothing and nothing.gpu_bytes < 20_000_000 * KIB
    held = "/proc/77/environ\nRssAnon:\t 900000 kB\nRssShmem:\t 100000 kB\n/proc/78/environ\n"
    ours = usable_memory(hardware_of(sections(recordings.DEBIAN_VM | small | {"ours": held})))
    assert ours.gpu_bytes == nothing.gpu_bytes + 1_000_000 * KIB
    assert "1.0 GB that what we run there holds" in ours.text and "available at the probe" in ours.text
    mac = "  2048 /opt/bin/llama-server E2LLM_MARKER=e2llm-1 HOME=/Users/a\n"
    assert hardware_of(sections(recordings.M2_MAX | {"ours": mac}))["our_ram_bytes"] == 2048 * KIB


def test_unified_memory_is_one_pool_up_to_what_the_gpu_may_take() -> None:
    small = usable_memory(hardware_of(sections(recordings.M2_MAX)))
    wired = usable_memory(hardware_of(sections(recordings.M1_MAX_WIRED)))
    spark = usable_memory(hardware_of(sections(recordings.DGX_SPARK)))
    assert small.ram_bytes == wired.ram_bytes == spark.ram_bytes == 0
    assert small.gpu_bytes < int(2 / 3 * 34359738368)
    assert wired.gpu_bytes == 57344 * MIB
    assert 100e9 < spark.gpu_bytes < 125524012 * KIB


@pytest.mark.parametrize("recording", [recordings.JETSON, recordings.APU_LAPTOP])
def test_a_chip_that_shares_its_memory_with_the_cpu_is_one_pool(recording: Recording) -> None:
    found = hardware_of(sections(recording))
    usable = usable_memory(found)
    assert usable.ram_bytes == 0 and usable.text.startswith("unified memory")
    assert usable.gpu_bytes <= found["memory_available_bytes"] < found["memory_total_bytes"]


def test_a_limit_that_macos_and_llama_cpp_disagree_on_is_shown_and_the_smaller_used() -> None:
    assert hardware_of(sections(recordings.M2_MAX))["warnings"] == []
    old_build = {"llama_devices": "Available devices:\n  Metal: Apple M1 Max (49152 MiB, 49152 MiB free)"}
    found = hardware_of(sections(recordings.M1_MAX_WIRED | old_build))
    assert usable_memory(found).gpu_bytes == 49152 * MIB
    assert (
        "Metal: llama.cpp may take 51.5 GB, sysctl iogpu.wired_limit_mb says 60.1 GB" in found["warnings"][0]
    )


def test_a_mac_says_which_gpu_it_has() -> None:
    cards = hardware_of(sections(recordings.M2_MAX))["system_gpus"]
    assert [(card["description"], card["source"]) for card in cards] == [
        ("Apple M2 Max, 30 cores", "system_profiler")
    ]


def test_the_graphics_of_the_processor_are_not_taken_for_the_card() -> None:
    found = hardware_of(sections(recordings.ROCM_BESIDE_APU))
    assert found["warnings"] == []
    assert usable_memory(found).gpu_bytes > 20e9


@pytest.mark.parametrize(
    "name, description, is_unified",
    [
        ("ROCm0", "AMD Radeon 780M Graphics", True),
        ("ROCm0", "Radeon 8060S Graphics", True),
        ("Vulkan0", "Intel(R) Iris(R) Xe Graphics", True),
        ("Vulkan0", "AMD Radeon RX 6800M (RADV NAVI22)", False),
        ("CUDA0", "NVIDIA GeForce RTX 3060 Laptop GPU", False),
        ("SYCL0", "Intel(R) Arc(TM) A770 Graphics", False),
    ],
)
def test_names_tell_which_chips_share_memory(name: str, description: str, is_unified: bool) -> None:
    listed = {"llama_devices": f"Available devices:\n  {name}: {description} (8000 MiB, 7000 MiB free)"}
    assert hardware_of(sections(recordings.NO_DRIVER | listed))["is_unified"] is is_unified


def test_a_card_that_llama_cpp_does_not_use_is_pointed_out() -> None:
    found = hardware_of(sections(recordings.NO_DRIVER))
    assert found["gpus"] == []
    assert "does not use it" in found["warnings"][0]


def test_a_memory_limit_of_the_container_is_the_total() -> None:
    found = hardware_of(sections(recordings.DEBIAN_VM | {"cgroup": "max\n4294967296"}))
    assert found["memory_total_bytes"] == 4294967296
    assert found["sources"]["memory"] == "cgroup memory limit"


def test_a_probe_that_says_next_to_nothing_is_no_crash() -> None:
    found = hardware_of(sections({"uname": "FreeBSD 14.1 amd64"}))
    assert usable_memory(found).gpu_bytes == 0


@pytest.mark.parametrize(
    "stamp, asked, answered, skew",
    [
        (100, 100.9, 100.95, 0.0),  # cut to 100, it may be 100.95
        (100, 101.5, 101.6, -0.5),
        (110, 100.0, 104.0, 6.0),  # the answer took four seconds
        (100, 99.0, 103.0, 0.0),
    ],
)
def test_a_clock_is_off_only_beyond_its_resolution_and_the_way(
    stamp: int, asked: float, answered: float, skew: float
) -> None:
    assert clock_skew(stamp, asked, answered) == pytest.approx(skew)


def test_a_skew_is_said_in_words() -> None:
    assert clock_text(-0.5) == "in step with ours"
    assert clock_text(-70) == "1 min 10 s behind ours"
    assert clock_text(5) == "5 s ahead of ours"

"""Outputs of commands into numbers."""

from __future__ import annotations

from inventory.core import parsers

MARK = "e2llm-0123456789abcdef"


def test_only_what_stands_between_our_markers_counts() -> None:
    noise = "Welcome to box-1!\ne2llm-0000 begin meminfo\nMemTotal: 1 kB\ne2llm-0000 end meminfo 0\n"
    output = (
        f"{noise}{MARK} begin uname\nLinux 6\n{MARK} end uname 0\n"
        f"{MARK} begin broken\nx\n{MARK} end broken 3\n{MARK} begin cut\ny"
    )
    found = parsers.sections(output, MARK)
    assert set(found) == {"uname", "broken"}
    assert parsers.text_of(found, "uname") == "Linux 6"
    assert parsers.text_of(found, "broken") == ""
    assert parsers.text_of(found, "missing") == ""


def test_devices_as_llama_cpp_lists_them() -> None:
    text = (
        "ggml_cuda_init: found 1 CUDA devices\nAvailable devices:\n"
        "  CUDA0: NVIDIA GeForce RTX 3060 (12045 MiB, 11811 MiB free)\n"
        "  Vulkan0: AMD Radeon Graphics (RADV RENOIR) (8192 MiB, 8000 MiB free)\n"
        "  RPC0: 10.0.0.2:50052 (24105 MiB, 24105 MiB free)\n"
    )
    found = parsers.list_devices(text)
    assert [device.name for device in found] == ["CUDA0", "Vulkan0", "RPC0"]
    assert found[1].description == "AMD Radeon Graphics (RADV RENOIR)"
    assert found[0].total_bytes == 12045 * 2**20


def test_versions_of_old_and_new_builds() -> None:
    assert parsers.version("version: 4230 (0c39f44d)\nbuilt with cc") == "4230 (0c39f44d)"
    assert (
        parsers.version("x\nversion: 0.6.0-dev (build 0, commit unknown)")
        == "0.6.0-dev (build 0, commit unknown)"
    )
    assert parsers.version("Illegal instruction") == ""


def test_flags_are_read_with_all_their_names() -> None:
    text = (
        "----- common params -----\n\n-fa,   --flash-attn [on|off|auto]       set Flash Attention use\n"
        "                                        (default: --auto)\n--no-webui                   Disable\n"
        "-ctxcp, --ctx-checkpoints, --swa-checkpoints N\n--cpu-strict <0|1>           use strict\n"
    )
    assert parsers.help_flags(text) == [
        "--cpu-strict",
        "--ctx-checkpoints",
        "--flash-attn",
        "--no-webui",
        "--swa-checkpoints",
        "-ctxcp",
        "-fa",
    ]


def test_ports_that_listen() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
        "   1: 0100007F:1F41 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
        "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0\n"
    )
    assert parsers.listening_ports(text) == {8000, 22}
    mac = "tcp4       0      0  127.0.0.1.8080         *.*                    LISTEN\ntcp46  0  0  *.22  *.*  LISTEN\n"
    assert parsers.listening_ports(mac) == {8080, 22}


def test_vendor_tools_that_refuse_a_number_leave_it_open() -> None:
    card = parsers.nvidia_smi("NVIDIA GB10, [N/A], Not Supported")[0]
    assert (card.description, card.total_bytes, card.free_bytes) == ("NVIDIA GB10", None, None)


def test_disks_addresses_and_power() -> None:
    disks = parsers.free_disk(
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda 9 1 8 11% /mnt/a b\n"
    )
    assert disks == {"/mnt/a b": 8192}
    linux = "2: eth0    inet 10.0.0.7/24 brd 10.0.0.255 scope global eth0"
    assert parsers.addresses(linux) == ["10.0.0.7"]
    assert parsers.addresses("192.168.1.2 172.17.0.1 ") == ["192.168.1.2", "172.17.0.1"]
    assert parsers.on_battery("AC 0") is True
    assert parsers.on_battery("ADP1 1") is False
    assert parsers.on_battery("Now drawing from 'Battery Power'") is True
    assert parsers.on_battery("") is None


def test_sleep_settings_of_macos_and_systemd() -> None:
    assert parsers.sleep_setting(" sleep                10 (sleep prevented by sharingd)")[0] is True
    assert parsers.sleep_setting(" sleep                0")[0] is False
    masked = "sleep.target masked\nsuspend.target static"
    assert parsers.sleep_setting(masked)[0] is False
    assert parsers.sleep_setting("sleep.target static\nIdleAction=suspend") == (
        True,
        "does suspend when idle (logind)",
    )
    assert parsers.sleep_setting("sleep.target static\nIdleAction=ignore")[0] is None
    assert parsers.sleep_setting("") == (None, "")

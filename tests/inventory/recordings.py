"""What commands print on several machines.

Only DEBIAN_VM was recorded; the others are written from public knowledge.
"""

# ruff: noqa: E501 - lines as the commands print them

from __future__ import annotations

from inventory.core.parsers import Section

Recording = dict[str, str]

DEBIAN_VM: Recording = {  # recorded
    "uname": "Linux 6.18.44 x86_64",
    "os_release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian',
    "boot_id": "2c57637d-d2a3-48e9-be69-aea3fcb9a5c7",
    "meminfo": "MemTotal:       24684092 kB\nMemFree:        23412020 kB\nMemAvailable:   23399540 kB\nBuffers:  12000 kB",
    "cpuinfo": "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx avx2 avx512f avx512_bf16",
    "cores": "2",
    "cgroup": "9223372036854771712",
    "addresses": "2: eth0    inet 192.0.2.2/24 brd 192.0.2.255 scope global eth0\\       valid_lft forever preferred_lft forever",
    "disk": (
        "Filesystem     1024-blocks     Used Available Capacity Mounted on\n"
        "/dev/root         82508100  3994476  78513624       5% /\n"
        "tmpfs             24684092        0  24684092       0% /dev/shm"
    ),
    "power": "",
    "tools": "python3\nperl\ncurl\nbash",
    "llama_devices": "Available devices:\n  (none)",
    "home": "/root",
}

RTX_DESKTOP: Recording = {
    "uname": "Linux 6.8.0-49-generic x86_64",
    "os_release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu',
    "boot_id": "9c1f5f0e-6f8e-4f0a-9a54-0c7f2c1d3b11",
    "meminfo": "MemTotal:       65743412 kB\nMemAvailable:   58211004 kB",
    "cpuinfo": "model name\t: AMD Ryzen 7 9700X 8-Core Processor\nflags\t\t: avx avx2 avx512f avx512_bf16 avx_vnni",
    "cores": "16",
    "nvidia_smi": "NVIDIA GeForce RTX 5070, 12227, 11630",
    "driver": "570.86.16",
    "power": "",
    "llama_devices": "Available devices:\n  CUDA0: NVIDIA GeForce RTX 5070 (11874 MiB, 11418 MiB free)",
}

RTX_LAPTOP: Recording = RTX_DESKTOP | {
    "cpuinfo": "model name\t: AMD Ryzen 7 5800H with Radeon Graphics\nflags\t\t: avx avx2",
    "meminfo": "MemTotal:       15762924 kB\nMemAvailable:   11012340 kB",
    "nvidia_smi": "NVIDIA GeForce RTX 3060 Laptop GPU, 6144, 1890",
    "power": "ADP0 0",
    "llama_devices": "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3060 Laptop GPU (5937 MiB, 1754 MiB free)",
}

ROCM: Recording = RTX_DESKTOP | {
    "nvidia_smi": "",
    "driver": "",
    "amd_sysfs": "/sys/class/drm/card1/device 21458059264 312664064",
    "power": "AC 1",
    "llama_devices": "Available devices:\n  ROCm0: AMD Radeon RX 7900 XT (20464 MiB, 20166 MiB free)",
}

NO_DRIVER: Recording = RTX_DESKTOP | {"llama_devices": "Available devices:\n  (none)"}

M2_MAX: Recording = {
    "uname": "Darwin 23.6.0 arm64",
    "sw_vers": "ProductName:\t\tmacOS\nProductVersion:\t\t14.6.1\nBuildVersion:\t\t23G93",
    "sysctl": (
        "hw.memsize: 34359738368\nhw.ncpu: 12\nhw.physicalcpu: 12\nmachdep.cpu.brand_string: Apple M2 Max\n"
        "hw.model: Mac14,6\nkern.bootsessionuuid: 5B1C5F0A-0000-4C3B-8F2E-000000000001\niogpu.wired_limit_mb: 0"
    ),
    "vm_stat": (
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:                               120000.\n"
        "Pages active:                             700000.\nPages inactive:                           650000.\n"
        "Pages speculative:                          9000.\nPages wired down:                         250000.\n"
        "Pages purgeable:                           21000."
    ),
    "addresses": "\tinet 192.168.1.31 netmask 0xffffff00 broadcast 192.168.1.255",
    "power": "Now drawing from 'AC Power'",
    "displays": (
        "Graphics/Displays:\n\n    Apple M2 Max:\n\n      Chipset Model: Apple M2 Max\n      Type: GPU\n      Bus: Built-In\n"
        "      Total Number of Cores: 30\n      Vendor: Apple (0x106b)\n      Metal Support: Metal 3"
    ),
    "llama_devices": "Available devices:\n  Metal: Apple M2 Max (21845 MiB, 21845 MiB free)\n  BLAS: Accelerate (0 MiB, 0 MiB free)",
}

M1_MAX_WIRED: Recording = M2_MAX | {
    "uname": "Darwin 24.1.0 arm64",
    "sw_vers": "ProductName:\t\tmacOS\nProductVersion:\t\t15.1\nBuildVersion:\t\t24B83",
    "sysctl": (
        "hw.memsize: 68719476736\nhw.ncpu: 10\nhw.physicalcpu: 10\nmachdep.cpu.brand_string: Apple M1 Max\n"
        "hw.model: MacBookPro18,2\nkern.bootsessionuuid: 5B1C5F0A-0000-4C3B-8F2E-000000000002\niogpu.wired_limit_mb: 57344"
    ),
    "vm_stat": "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:  3900000.\nPages inactive: 10000.",
    "power": "Now drawing from 'Battery Power'",
    "sleep": " sleep                10 (sleep prevented by sharingd)",
    "llama_devices": "Available devices:\n  MTL0: Apple M1 Max (57344 MiB, 57343 MiB free)",
}

DGX_SPARK: Recording = {
    "uname": "Linux 6.11.0-1014-nvidia aarch64",
    "os_release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nID=ubuntu',
    "boot_id": "7b0bb2c2-4e53-4f8a-8b27-4a0f7f4e9d77",
    "meminfo": "MemTotal:       125524012 kB\nMemAvailable:   119233104 kB",
    "cpuinfo": "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd sve i8mm",
    "board": "NVIDIA_DGX_Spark",
    "cores": "20",
    "nvidia_smi": "NVIDIA GB10, Not Supported, Not Supported",
    "driver": "580.95.05",
    "power": "",
    "llama_devices": "Available devices:\n  CUDA0: NVIDIA GB10 (122570 MiB, 116438 MiB free)",
}

JETSON: Recording = {
    "uname": "Linux 5.15.148-tegra aarch64",
    "os_release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu',
    "boot_id": "3b0a5f63-0c2e-4c0e-9d59-5d1fd1f6a0aa",
    "meminfo": "MemTotal:       64349568 kB\nMemAvailable:   60123904 kB",
    "cpuinfo": "processor\t: 0\nmodel name\t: ARMv8 Processor rev 1 (v8l)\nBogoMIPS\t: 62.50\nFeatures\t: fp asimd",
    "board": "NVIDIA Jetson AGX Orin Developer Kit",
    "cores": "12",
    "nvidia_smi": "Orin (nvgpu), [N/A], [N/A]",
    "driver": "540.4.0",
    "power": "",
    "llama_devices": (
        "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: Orin, compute capability 8.7, VMM: yes\n"
        "Available devices:\n  CUDA0: Orin (62841 MiB, 58714 MiB free)"
    ),
}

APU_LAPTOP: Recording = RTX_LAPTOP | {
    "nvidia_smi": "",
    "driver": "",
    "amd_sysfs": "/sys/class/drm/card0/device 536870912 312664064",
    "power": "AC0 1",
    "llama_devices": (
        "ggml_vulkan: Found 1 Vulkan devices:\n"
        "ggml_vulkan: 0 = AMD Radeon Graphics (RADV RENOIR) (radv) | uma: 1 | fp16: 1 | warp size: 64\n"
        "Available devices:\n  Vulkan0: AMD Radeon Graphics (RADV RENOIR) (7900 MiB, 7432 MiB free)"
    ),
}

# A desktop processor's own graphics beside a card: the system lists them in another order than llama.cpp.
ROCM_BESIDE_APU: Recording = ROCM | {
    "amd_sysfs": (
        "/sys/class/drm/card0/device 536870912 20000000\n/sys/class/drm/card1/device 21458059264 312664064"
    ),
}

RASPBERRY_PI: Recording = {
    "uname": "Linux 6.6.51+rpt-rpi-2712 aarch64",
    "os_release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"',
    "boot_id": "0f9c8e0c-34bd-4ab1-b34c-0c2c6ddf2222",
    "meminfo": "MemTotal:        8256176 kB\nMemAvailable:    7412332 kB",
    "cpuinfo": "processor\t: 0\nFeatures\t: fp asimd evtstrm\nModel\t\t: Raspberry Pi 5 Model B Rev 1.0",
    "cores": "4",
    "power": "",
    "llama_devices": "Available devices:\n  (none)",
}


def sections(recording: Recording) -> dict[str, Section]:
    return {name: Section(text, 0) for name, text in recording.items()}

"""Figures and tables of the inventory's pages as plain data; colours are named as the theme's variables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inventory.core.link_matrix import outliers
from inventory.core.model_fit import Setting, fit_of
from inventory.core.model_shape import ModelShape
from inventory.core.profile import DECODE, DEEP, PREFILL, SAVES, Timing, cell_seconds, measured_text, predict
from inventory.core.quantities import bandwidth_text, bytes_text, counted, percent_text, seconds_text
from inventory.models import Device, LanguageModel, Link, Profile

Json = dict[str, Any]
AXES = {
    "decode": ("micro_batch", "Requests decoded together"),
    "prefill": ("tokens", "Prompt length (tokens)"),
}
TERMS = {
    "decode": "the head and a block for each",
    "prefill": "the head and a block for each, without what the last block saves",
}
WORDS = {"decode": "decode step", "prefill": "prompt"}


@dataclass(frozen=True)
class Cell:
    """One direction of the matrix; `heat` is 0 (slow) to 1 (fastest of the lab)."""

    link: Link | None
    is_self: bool
    heat: float
    bandwidth: str
    latency: str
    spread: str
    odd: str


def matrix(
    devices: Sequence[Device], links: Sequence[Link]
) -> tuple[list[tuple[Device, list[Cell]]], list[str]]:
    """Rows of the link matrix, from row to column, and a sentence for each link that stands out."""
    by_pair = {(link.source_id, link.target_id): link for link in links}
    names = {device.pk: device.name for device in devices}
    rates = {(names[link.source_id], names[link.target_id]): link.bytes_per_second for link in links}
    odd = outliers(rates)
    fastest = max(rates.values(), default=1.0)
    rows = []
    for source in devices:
        cells = [
            _cell(by_pair.get((source.pk, target.pk)), source, target, fastest, odd) for target in devices
        ]
        rows.append((source, cells))
    return rows, list(odd.values())


def ways(links: Sequence[Link]) -> str:
    """What measured how many of the links, in a sentence; empty before any was."""
    counts = Counter(_way(link.method) for link in links)
    found = [f"{counted(count, 'direction')} {way}" for way, count in counts.most_common()]
    return f"{', '.join(found)}." if found else ""


def _way(method: str) -> str:
    if method.startswith("iperf3"):
        return "by iperf3"
    return "estimated" if method.startswith("estimated") else "by our own program over TCP"


def _cell(
    link: Link | None, source: Device, target: Device, fastest: float, odd: dict[tuple[str, str], str]
) -> Cell:
    if link is None:
        return Cell(None, source.pk == target.pk, 0.0, "–", "", "", "")
    return Cell(
        link=link,
        is_self=False,
        heat=round(link.bytes_per_second / fastest, 3),
        bandwidth=bandwidth_text(link.bytes_per_second),
        latency=seconds_text(link.latency_seconds),
        spread=percent_text(link.spread) if link.spread else "",
        odd=odd.get((source.name, target.name), ""),
    )


def latency_figure(profile: Profile, phase: str) -> Json:
    """Milliseconds per block, and for the head, over the micro-batch or the prompt length."""
    table = profile.tables[phase]
    axis, title = AXES[phase]
    sizes = table[axis]
    data = [_trace(f"Block, {_pool_name(profile)}", sizes, table["gpu_block_seconds"], "var(--decode)")]
    if table["cpu_block_seconds"] is not None:
        data.append(_trace("Block, in RAM", sizes, table["cpu_block_seconds"], "var(--prefill)", dash="dash"))
    if phase == DECODE and DEEP in profile.tables:
        deep = profile.tables[DEEP]
        data.append(
            _trace(
                _deep_name(deep), deep["micro_batch"], deep["gpu_block_seconds"], "var(--mixed)", dash="dash"
            )
        )
    data.append(_trace("Head", sizes, table["head_seconds"], "var(--ink-3)", dash="dot"))
    return {"data": data, "layout": _axes(title, "Time (ms)")}


def _deep_name(deep: Json) -> str:
    return f"Block, with {deep['context_tokens']:,} tokens in the cache"


def latency_table(profile: Profile, phase: str) -> Json:
    table = profile.tables[phase]
    axis, title = AXES[phase]
    second = table["cpu_block_seconds"]
    deep = profile.tables.get(DEEP) if phase == DECODE else None
    columns = [title, f"Block, {_pool_name(profile)}", *(["Block, in RAM"] if second else [])]
    columns += [*([_deep_name(deep)] if deep else []), "Head"]
    saves = table.get(SAVES) if phase == PREFILL else None
    columns += ["Last block saves"] if saves else []
    at_depth = dict(zip(deep["micro_batch"], deep["gpu_block_seconds"], strict=True)) if deep else {}
    rows = []
    for index, size in enumerate(table[axis]):
        cells = [
            table["gpu_block_seconds"][index],
            *([second[index]] if second else []),
            *([at_depth.get(size)] if deep else []),
            table["head_seconds"][index],
            *([saves[index]] if saves else []),
        ]
        rows.append([size, *("–" if value is None else measured_text(value) for value in cells)])
    return {"columns": columns, "rows": rows}


def fit_figure(profile: Profile, phase: str) -> Json:
    """What was measured on slices of each depth, and the line that the tables draw through it."""
    table = profile.tables[phase]
    sizes = table[AXES[phase][0]]
    timings = _timings(profile, phase)
    data = []
    colours = ("decode", "prefill", "mixed")
    for number, depth in enumerate(sorted({timing.blocks for timing in timings})):
        colour = f"var(--{colours[number % len(colours)]})"
        cells = cell_seconds([timing for timing in timings if timing.blocks == depth])
        measured = [cells.get((size, depth)) for size in sizes]
        fitted = [predict(table, index, depth) for index in range(len(sizes))]
        data.append(
            _trace(f"{depth} blocks, from the tables", sizes, fitted, colour, dash="dot", mode="lines")
        )
        data.append(_trace(f"{depth} blocks, measured", sizes, measured, colour, mode="markers"))
    return {"data": data, "layout": _axes(AXES[phase][1], f"Time of a whole {WORDS[phase]} (ms)")}


def fit_table_of_profile(profile: Profile, phase: str) -> Json:
    table = profile.tables[phase]
    cells = cell_seconds(_timings(profile, phase))
    rows = []
    for (size, depth), measured in sorted(cells.items()):
        index = table[AXES[phase][0]].index(size)
        predicted = predict(table, index, depth)
        off = percent_text(abs(predicted - measured) / measured)
        rows.append([size, depth, seconds_text(measured), seconds_text(predicted), off])
    return {"columns": [AXES[phase][1], "Blocks", "Measured", "From the tables", "Off by"], "rows": rows}


def profile_charts(profile: Profile) -> list[Json]:
    """Everything that the profile page draws, in order."""
    charts = []
    for phase, caption in (("decode", "Decode: time per step"), ("prefill", "Prefill: time per prompt")):
        charts.append(
            {
                "id": f"{phase}-{profile.pk}",
                "caption": f"{caption}, for one block and for the head",
                "figure": latency_figure(profile, phase),
                "table": latency_table(profile, phase),
            }
        )
        if profile.is_recalibrated:  # its tables are not those of the timings
            continue
        charts.append(
            {
                "id": f"{phase}-fit-{profile.pk}",
                "caption": f"{caption}, measured on slices beside what the tables say: {TERMS[phase]}",
                "figure": fit_figure(profile, phase),
                "table": fit_table_of_profile(profile, phase),
            }
        )
    return charts


def model_fits(model: LanguageModel, devices: Sequence[Device], setting: Setting) -> list[Json]:
    """The fit table: what part of the model each device holds alone, for so many requests of this context."""
    shape = ModelShape.from_dict(model.shape)
    rows = []
    for device in devices:
        if device.gpu_usable_bytes is None:
            rows.append({"device": device, "text": "not probed yet", "percent": 0, "is_whole": False})
            continue
        memory = device.gpu_usable_bytes, device.ram_usable_bytes or 0
        fit = fit_of(shape, *memory, setting.context_tokens, setting.slots)
        where = f"on {device.main_pool_device}" if device.hardware.get("gpus") else "in RAM"
        text = f"{fit.main_blocks} of {fit.total_blocks} blocks {where}"
        if fit.second_blocks:
            text += f", {fit.second_blocks} more with {'experts' if shape.is_moe else 'weights'} in RAM"
        held = fit.main_blocks + fit.second_blocks
        percent = round(100 * held / max(fit.total_blocks, 1))
        rows.append({"device": device, "text": text, "percent": percent, "is_whole": fit.is_whole})
    return rows


def block_rows(shape: ModelShape, setting: Setting) -> list[Json]:
    """Kinds of blocks with their sizes, and what the caches of all blocks of a kind take."""
    rows = []
    for kind, count in shape.block_kinds.items():
        blocks = [block for block in shape.blocks if block.kind == kind]
        sizes = [block.size_bytes for block in blocks]
        rows.append(
            {
                "kind": kind,
                "count": count,
                "range": _range(sizes),
                "resident_bytes": blocks[0].resident_bytes or None,
                "kv_bytes_per_token": blocks[0].kv_bytes_per_token or None,
                "window_tokens": blocks[0].window_tokens,
                "state_bytes": blocks[0].state_bytes or None,
                "cache_bytes": sum(setting.cache_bytes(block) for block in blocks) or None,
            }
        )
    return rows


def _range(sizes: list[int]) -> str:
    if min(sizes) == max(sizes):
        return bytes_text(sizes[0])
    return f"{bytes_text(min(sizes))} to {bytes_text(max(sizes))}"


def _pool_name(profile: Profile) -> str:
    name = str(profile.made_under.get("main_device", "CPU"))
    return "in RAM" if name == "CPU" else f"on {name}"


def _timings(profile: Profile, phase: str) -> list[Timing]:
    return [
        Timing(**sample) for sample in profile.samples if sample["phase"] == phase and sample["pool"] == "gpu"
    ]


def _trace(
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    colour: str,
    *,
    dash: str = "solid",
    mode: str = "lines+markers",
) -> Json:
    values = [None if value is None else value * 1000 for value in y]
    line = {"color": colour, "dash": dash, "width": 2}
    return {"type": "scatter", "mode": mode, "name": name, "x": list(x), "y": values, "line": line}


def _axes(x_title: str, y_title: str) -> Json:
    return {
        "xaxis": {"title": {"text": x_title}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": y_title}, "rangemode": "tozero"},
    }

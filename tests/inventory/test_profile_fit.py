"""Timings into latency tables."""

from __future__ import annotations

from itertools import product
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import profiles as benchmark
from inventory.core.profile import DEEP, SAVES, ProfileError, Timing, at_depth, fit, predict


def timings(
    block: float = 0.004, head: float = 0.010, *, pool: str = "gpu", depths: tuple[int, ...] = (2, 6)
) -> list[Timing]:
    """Three quiet rounds in which a step grows with the square root of the batch, a prompt with its length."""
    found = []
    for depth, number in product(depths, range(3)):
        found += [
            Timing("decode", pool, depth, batch, (head + depth * block) * batch**0.5, number)
            for batch in (1, 2, 4)
        ]
        found += [Timing("prefill", pool, depth, n, depth * block * n / 10, number) for n in (64, 256)]
    return found


def test_block_and_head_are_told_apart() -> None:
    fitted = fit(timings(), head_blocks=3.0)
    decode = fitted.tables["decode"]
    assert decode["micro_batch"] == [1, 2, 4]
    assert decode["gpu_block_seconds"] == pytest.approx([0.004, 0.004 * 2**0.5, 0.008], rel=1e-3)
    assert decode["head_seconds"][0] == pytest.approx(0.010, rel=1e-3)
    assert fitted.tables["prefill"]["gpu_block_seconds"] == pytest.approx([0.0256, 0.1024], rel=1e-3)
    assert decode["cpu_block_seconds"] is None
    assert fitted.residual < 1e-3 and fitted.noisy == ()


def test_a_second_pool_has_its_own_blocks() -> None:
    fitted = fit([*timings(), *timings(block=0.02, pool="cpu")], head_blocks=3.0)
    assert fitted.tables["decode"]["cpu_block_seconds"][0] == pytest.approx(0.02, rel=1e-3)


def test_decode_steps_grow_with_what_they_read_of_the_cache() -> None:
    deep = [
        Timing(DEEP, "gpu", depth, 2, 0.010 + depth * (0.004 * 2**0.5 + 0.002), context_tokens=1000)
        for depth in (2, 6)
    ]
    tables = fit([*timings(), *deep], 1.0).tables
    assert tables[DEEP]["context_tokens"] == 1000
    empty, half = at_depth(tables, 0.0, 30), at_depth(tables, 0.5, 30)
    assert empty["decode"] == tables["decode"] and DEEP not in half
    added = [
        late - early
        for late, early in zip(
            half["decode"]["gpu_block_seconds"], empty["decode"]["gpu_block_seconds"], strict=True
        )
    ]
    assert added == pytest.approx([0.0005, 0.001, 0.002], rel=0.01), "1, 2 and 4 caches of half the depth"
    assert half["prefill"] == empty["prefill"]


def prompts(block: float, saved: float) -> list[Timing]:
    return [Timing("prefill", "gpu", depth, 128, depth * block - saved) for depth in (2, 4, 8)]


def test_what_the_last_block_of_a_prompt_saves_does_not_make_the_others_look_fast() -> None:
    decode = [timing for timing in timings() if timing.phase == "decode"]
    fitted = fit([*decode, *prompts(0.0158, 0.009)], 1.0)
    assert fitted.tables["prefill"]["gpu_block_seconds"] == pytest.approx([0.0158], rel=1e-3)
    assert fitted.residual < 1e-3
    assert predict(fitted.tables["prefill"], 0, 30) == pytest.approx(30 * 0.0158 - 0.009, rel=1e-3)
    plan = at_depth(fitted.tables, 0.0, 30)["prefill"]
    assert set(plan) == {"tokens", "gpu_block_seconds", "cpu_block_seconds", "head_seconds"}
    assert 30 * plan["gpu_block_seconds"][0] == pytest.approx(30 * 0.0158 - 0.009, rel=1e-3)


def test_the_benchmark_sets_slices_beside_the_whole_model() -> None:
    depths = (*benchmark.SLICES, 30)
    found = [*timings(depths=depths)]
    found += [Timing(DEEP, "gpu", depth, 1, 0.010 + depth * 0.005, context_tokens=1024) for depth in depths]
    text = benchmark.table(found, 30, 1.0)
    assert text.count("| +0.0% |") + text.count("| -0.0% |") == 6
    assert "| decode step, 1 together, each with 1,024 tokens in its cache | 160 ms | 160 ms |" in text


def test_more_than_a_block_is_never_saved() -> None:
    decode = [timing for timing in timings() if timing.phase == "decode"]
    table = fit([*decode, *prompts(0.010, 0.019)], 1.0).tables["prefill"]
    assert table[SAVES][0] == pytest.approx(0.5 * table["gpu_block_seconds"][0], rel=1e-3)


def test_one_slow_round_does_not_move_the_fit_but_is_named() -> None:
    quiet = timings()
    disturbed = [*quiet, Timing("decode", "gpu", 6, 4, 9.0, 3)]
    assert fit(disturbed, 3.0).tables["decode"]["gpu_block_seconds"][2] == pytest.approx(0.008, rel=0.01)
    assert "decode of 4 with 6 blocks" in fit(disturbed, 3.0).noisy[0]


def test_when_noise_hides_the_slope_the_bytes_decide() -> None:
    upside_down = [Timing("decode", "gpu", depth, 1, seconds) for depth, seconds in ((2, 0.012), (6, 0.011))]
    prefill = [timing for timing in timings() if timing.phase == "prefill"]
    table = fit([*upside_down, *prefill], head_blocks=4.0).tables["decode"]
    assert table["head_seconds"][0] == pytest.approx(4 * table["gpu_block_seconds"][0], rel=1e-3)
    assert table["head_seconds"][0] + 6 * table["gpu_block_seconds"][0] == pytest.approx(0.0115, rel=0.35)


def test_one_depth_is_not_enough() -> None:
    with pytest.raises(ProfileError, match="at one depth only"):
        fit(timings(depths=(2,)), 1.0)


@pytest.mark.parametrize("absurd", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_absurd_timings_are_refused(absurd: float) -> None:
    with pytest.raises(ProfileError, match="cannot be true"):
        fit([*timings(), Timing("decode", "gpu", 2, 1, absurd)], 1.0)


@given(st.lists(st.floats(1e-5, 10), min_size=10, max_size=10), st.floats(0, 50))
def test_tables_are_positive_and_never_fall(values: list[float], head_blocks: float) -> None:
    cells = [
        (phase, depth, size)
        for phase, sizes in (("decode", (1, 2, 4)), ("prefill", (64, 256)))
        for depth in (2, 6)
        for size in sizes
    ]
    noisy = [
        Timing(phase, "gpu", depth, size, seconds)
        for (phase, depth, size), seconds in zip(cells, values, strict=True)
    ]
    tables = fit(noisy, head_blocks).tables
    for table in tables.values():
        for column in ("gpu_block_seconds", "head_seconds", *([SAVES] if SAVES in table else [])):
            assert table[column] == sorted(table[column])
            assert all(value > 0 and isfinite(value) for value in table[column])

"""A run of the planner inside its job: what it saves, how it stops, and how it goes on after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from accounts.models import User
from jobs import services as jobs
from jobs.core.errors import Cancelled
from jobs.models import Job, State
from planner import events, runner, services
from planner.charts import convergence_table
from planner.core.errors import NoFeasiblePlan
from planner.core.plan import Plan
from planner.core.search import SearchStep
from planner.models import Generation, PlanRun

pytestmark = pytest.mark.django_db(transaction=True)


def new_run(cluster: dict[str, Any], method: str = "ga", seed: int = 1) -> PlanRun:
    job = Job.objects.create(kind=services.TASK, label="Plan")
    return services.record_run(job, cluster, method, seed)


def test_a_run_ends_with_a_plan_and_its_generations(small_cluster: dict[str, Any]) -> None:
    run = new_run(small_cluster)
    runner.execute(run.job_id)
    run.refresh_from_db()
    assert run.job.state == State.SUCCEEDED
    assert Plan.from_dict(run.plan).seed == 1
    assert run.checkpoint is None
    numbers = list(run.generations.values_list("number", flat=True))
    assert numbers == list(range(1, len(numbers) + 1))
    best = list(run.generations.values_list("best_seconds", flat=True))
    assert best == sorted(best, reverse=True)


def test_the_same_seed_gives_the_same_plan(small_cluster: dict[str, Any]) -> None:
    runs = [new_run(small_cluster), new_run(small_cluster)]
    for run in runs:
        runner.execute(run.job_id)
        run.refresh_from_db()
    assert runs[0].plan == runs[1].plan


def test_a_model_too_large_leaves_the_limit_and_the_remedy(small_cluster: dict[str, Any]) -> None:
    small_cluster["model"]["block_bytes"] = 60e9
    run = new_run(small_cluster)
    with pytest.raises(NoFeasiblePlan):
        runner.execute(run.job_id)
    run.refresh_from_db()
    assert run.job.state == State.FAILED
    assert run.plan is None
    assert (run.refusal or {}).keys() == {"limit", "text", "shortfall", "unit", "remedy"}


def test_a_cancelled_run_keeps_no_worker_busy(small_cluster: dict[str, Any], operator: User) -> None:
    run = new_run(small_cluster)
    jobs.cancel(run.job)
    runner.execute(run.job_id)
    run.refresh_from_db()
    assert run.job.state == State.CANCELLED
    assert not run.generations.exists()


def test_a_search_stops_in_the_middle_of_a_step_that_takes_long() -> None:
    begun, go_on = Event(), Event()

    def steps() -> Iterator[SearchStep]:
        yield SearchStep("columns", "quick", 0.1, 1)
        begun.set()
        go_on.wait()
        yield SearchStep("columns", "never asked for", 0.2, 2)

    def check() -> None:
        if begun.is_set():
            raise Cancelled

    search = runner.interruptible(steps(), check)
    assert next(search).message == "quick"
    with pytest.raises(Cancelled):
        next(search)
    go_on.set()


def test_what_a_search_raises_comes_out_beside_it() -> None:
    def steps() -> Iterator[SearchStep]:
        yield SearchStep("exact", "a step", 0.1, 1)
        raise NoFeasiblePlan("memory", "It does not fit.", 1.0, "bytes", "Add a device.")

    with pytest.raises(NoFeasiblePlan, match="does not fit"):
        list(runner.interruptible(steps(), lambda: None))


def steps_of(phase: str, first: float, last: float, seconds: list[float]) -> list[tuple[float, SearchStep]]:
    """Even steps of one part, each with the time at which it comes."""
    shares = [first + (last - first) * k / (len(seconds) - 1) for k in range(len(seconds))]
    return [(at, SearchStep(phase, "Working", share, 1)) for at, share in zip(seconds, shares, strict=True)]


def test_the_time_left_of_a_part_is_told_once_its_pace_is_known_and_only_runs_down() -> None:
    pace = runner.Pace()
    steps = steps_of("genetic", 0.2, 0.6, [1.0 * k for k in range(41)])
    left = [pace.left_seconds(step, at) for at, step in steps]
    assert left[:3] == [None] * 3
    told = [seconds for seconds in left if seconds is not None]
    assert told[0] == pytest.approx(40 - left.index(told[0]))
    assert told == sorted(told, reverse=True)


def test_work_that_slows_down_does_not_push_the_end_away_until_it_has_passed() -> None:
    pace = runner.Pace()
    steps = steps_of("genetic", 0.2, 0.6, [0, 1, 2, 3, 4, 5, 30, 60, 90, 120, 150])
    left = [pace.left_seconds(step, at) for at, step in steps]
    assert left[2:6] == pytest.approx([8.0, 7.0, 6.0, 5.0])
    assert left[6] == pytest.approx(20.0)  # the end that was told has passed
    assert left[7] is not None and left[7] <= 60


def test_no_time_left_is_told_of_parts_that_are_not_even() -> None:
    pace = runner.Pace()
    for at, step in steps_of("baselines", 0.7, 0.85, [0.0, 10.0, 20.0]):
        assert pace.told(step, at) == "Working"
    (*_, last) = steps_of("genetic", 0.2, 0.6, [30.0, 32.0, 34.0, 36.0])[:3]
    pace.told(steps_of("genetic", 0.2, 0.6, [30.0, 36.0])[0][1], 30.0)
    assert pace.told(last[1], last[0]) == "Working, about 2 s more for this part"


@pytest.mark.parametrize(
    ("best", "bound", "said"),
    [
        (8.0, 6.0, "25 %"),
        (8.0, None, "not known yet"),
        (0.0, None, "0 %: it is the best by the formula"),
        (8.0, 8.0, "0 %: it is the best by the formula"),
    ],
)
def test_the_distance_to_the_best_possible_is_said_in_words(
    best: float, bound: float | None, said: str
) -> None:
    point: events.Point = {
        "number": 1,
        "best_seconds": best,
        "mean_seconds": None,
        "bound_seconds": bound,
        "evaluations": 1,
    }
    assert events.gap_text(point) == said
    assert events.gap_text(None) == "–"


def test_a_search_tells_its_waits_in_one_unit_and_a_bound_where_nobody_waits() -> None:
    points = [
        events.point(Generation(number=1, best_seconds=best, bound_seconds=None, evaluations=1))
        for best in (97.0, 0.95, 0.0)
    ]
    assert [events.best_text(point) for point in points] == ["97.00 s", "0.95 s", "0.00 s"]
    assert [point["bound_seconds"] for point in points] == [None, None, 0.0]
    assert [row[1:4] for row in convergence_table(points)["rows"]] == [
        ["97.00 s", "–", "–"],
        ["0.95 s", "–", "–"],
        ["0.00 s", "–", "0.00 s"],
    ]

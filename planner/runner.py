"""Runs a search inside a job: saves the best so far, streams generations, stops when asked, resumes when killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from inventory.core.quantities import seconds_text
from jobs import runner as jobs
from jobs.progress import Progress
from planner import events
from planner.core.errors import NoFeasiblePlan
from planner.core.plan import Plan
from planner.core.problem import Problem
from planner.core.search import SearchSettings, SearchStep, search
from planner.models import Generation, PlanRun

GENERATION_FIELDS = ["best_seconds", "mean_seconds", "bound_seconds", "evaluations"]
# Parts of a search whose steps take about as long as each other, with the fraction at which each ends. How long the
# others take cannot be told, so that nobody knows the time left of the whole.
EVEN_PARTS = {"exact": 0.1, "genetic": 0.6, "local search": 0.7}
GUESS_AFTER_SECONDS, GUESS_AFTER_SHARE = 2.0, 0.1
COARSE_SECONDS = 5
CHECK_SECONDS = 0.2
SAVE_SECONDS = 0.25  # four messages a second at most


def execute(job_id: int) -> None:
    jobs.execute(job_id, lambda progress: plan_job(job_id, progress))


def plan_job(job_id: int, progress: Progress) -> None:
    run = PlanRun.objects.get(job_id=job_id)
    plan_inline(Problem.from_dict(run.cluster), progress, run)


def plan_inline(problem: Problem, progress: Progress, run: PlanRun) -> Plan:
    """Search inside the job behind `progress` and deliver into `run`; NoFeasiblePlan is kept there as well."""
    settings = SearchSettings(method=run.method)
    rng = np.random.default_rng(run.seed)
    record = Record(run, progress)
    progress.report("Working out what each group of devices can do", 0.0)
    try:
        for step in interruptible(search(problem, settings, rng, run.checkpoint), progress.check):
            record.take(step)
    except NoFeasiblePlan as error:
        record.refuse(error)
        raise
    return record.deliver()


class Pace:
    """How long the part of the search that is under way goes on, judged by its own steps."""

    def __init__(self) -> None:
        self._phase = ""
        self._began = (0.0, 0.0)  # time and fraction
        self._due: float | None = None

    def told(self, step: SearchStep, now: float) -> str:
        """The step's message, with the time that its part still takes once that can be estimated."""
        left = self.left_seconds(step, now)
        if left is None:
            return step.message
        coarse = (
            max(1, round(left))
            if left < 2 * COARSE_SECONDS
            else COARSE_SECONDS * round(left / COARSE_SECONDS)
        )
        return f"{step.message}, about {seconds_text(coarse)} more for this part"

    def left_seconds(self, step: SearchStep, now: float) -> float | None:
        """The end may come nearer, but moves away only once it has passed."""
        if step.phase != self._phase:
            self._phase, self._began, self._due = step.phase, (now, step.fraction), None
        spent, way = now - self._began[0], step.fraction - self._began[1]
        whole = EVEN_PARTS.get(step.phase, 0.0) - self._began[1]
        if spent < GUESS_AFTER_SECONDS or way < GUESS_AFTER_SHARE * whole or whole <= 0:
            return None
        due = now + spent * max(0.0, whole - way) / way
        self._due = due if self._due is None or self._due <= now else min(due, self._due)
        return self._due - now if self._due > now else None


def interruptible(steps: Iterator[SearchStep], check: Callable[[], None]) -> Iterator[SearchStep]:
    """The steps, each worked out beside this thread: `check` may end the search in the middle of a long one.

    One integer program can take seconds, and nothing stops HiGHS; its thread then ends by itself.
    """
    side = ThreadPoolExecutor(1, "search")
    try:
        while True:
            step = side.submit(next, steps, None)
            while not wait([step], CHECK_SECONDS).done:
                check()
            found = step.result()
            if found is None:
                return
            yield found
    finally:
        side.shutdown(wait=False)


class Record:
    """What a search has reached, between the search and the rows; it writes four times a second at most."""

    def __init__(self, run: PlanRun, progress: Progress) -> None:
        self.run = run
        self.progress = progress
        self.best: Plan | None = None
        self._unsaved: list[Generation] = []
        self._checkpoint: dict[str, Any] | None = run.checkpoint
        self._saved_plan: Plan | None = None
        self._pace = Pace()
        self._saved_at = -SAVE_SECONDS
        # A killed worker may have saved generations after its last checkpoint: they are made again.
        self._number = run.checkpoint["number"] if run.checkpoint else 0
        run.generations.filter(number__gt=self._number).delete()

    def take(self, step: SearchStep) -> None:
        """One step of the search; raises Cancelled when somebody wants it to stop."""
        self.progress.check()
        if step.best_plan is not None:
            self.best = step.best_plan
        if step.best_seconds is not None and not step.final:
            self._unsaved.append(self._generation(step, step.best_seconds))
        if step.checkpoint is not None:
            self._checkpoint = {**step.checkpoint, "number": self._number}
        self.progress.report(self._pace.told(step, time.monotonic()), step.fraction)
        if time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()

    def deliver(self) -> Plan:
        assert self.best is not None, "a search ends with a plan or raises"
        self._save()
        self.run.plan, self.run.checkpoint = self.best.to_dict(), None
        self.run.save(update_fields=["plan", "checkpoint"])
        return self.best

    def refuse(self, error: NoFeasiblePlan) -> None:
        document = error.to_dict()
        self.run.refusal = {key: document[key] for key in ("limit", "text", "shortfall", "unit", "remedy")}
        self.run.plan = self.run.checkpoint = None
        self.run.save(update_fields=["plan", "checkpoint", "refusal"])

    def _generation(self, step: SearchStep, best_seconds: float) -> Generation:
        self._number += 1
        return Generation(
            run=self.run,
            number=self._number,
            best_seconds=best_seconds,
            mean_seconds=step.mean_seconds,
            bound_seconds=step.bound_seconds,
            evaluations=step.evaluations,
        )

    def _differs_from_saved(self) -> bool:
        if self.best is None or self._saved_plan is None:
            return self.best is not self._saved_plan
        return self.best.replicas != self._saved_plan.replicas

    def _save(self) -> None:
        rows, self._unsaved = self._unsaved, []
        is_new_plan = self._differs_from_saved()
        # A worker that was taken for dead may have written the same numbers a moment ago.
        Generation.objects.bulk_create(
            rows, update_conflicts=True, unique_fields=["run", "number"], update_fields=GENERATION_FIELDS
        )
        self.run.checkpoint = self._checkpoint
        if self.best is not None:  # also when only its proof has moved on
            self.run.plan, self._saved_plan = self.best.to_dict(), self.best
        self.run.save(update_fields=["plan", "checkpoint"])
        if rows:
            self.progress.publish(events.generations_done(rows, is_new_plan=is_new_plan))
        self._saved_at = time.monotonic()

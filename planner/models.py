"""Runs of the planner: inputs frozen, best plan so far, generations."""

from enum import StrEnum
from typing import Any

from django.db import models

from inventory.models import LanguageModel
from jobs.models import Job, State

LONGEST_TITLE = 80


class Origin(StrEnum):
    """Where a plan comes from: a search that ended, one that was stopped on its way, or a file."""

    SEARCHED = "searched"
    STOPPED = "stopped"
    IMPORTED = "imported"


class PlanRun(models.Model):
    class Methods(models.TextChoices):
        AUTO = "auto", "Best of all methods, with proof"
        EXACT = "exact", "Exact optimum"
        GA = "ga", "Genetic algorithm"
        PAPER = "paper", "The paper's method, unchanged"

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="plan_run")
    name = models.CharField(max_length=200)
    title = models.CharField(max_length=LONGEST_TITLE, blank=True, help_text="what a person calls it")
    model = models.ForeignKey(LanguageModel, null=True, on_delete=models.SET_NULL, related_name="plan_runs")
    cluster = models.JSONField(help_text="the frozen input, format e2llm-cluster/1")
    device_ids = models.JSONField(default=dict, help_text="name in the cluster file -> inventory device id")
    method = models.CharField(max_length=16, choices=Methods, default=Methods.AUTO)
    seed = models.PositiveIntegerField(default=0)
    plan = models.JSONField(null=True, help_text="best so far, in the end the delivered plan: e2llm-plan/1")
    checkpoint = models.JSONField(null=True, help_text="state of the search, to resume after a lost worker")
    refusal = models.JSONField(
        null=True, help_text="why there is no plan: limit, text, shortfall, unit, remedy"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.title}: {self.name}" if self.title else self.name

    @property
    def shown_plan(self) -> dict[str, Any] | None:
        """Its plan, but not what a failed search left: working with that may be what failed."""
        return None if self.job.state == State.FAILED else self.plan

    @property
    def origin(self) -> Origin:
        """Whose the numbers of its plan are; no worker of ours has ever searched for that of a file."""
        if self.job.state != State.SUCCEEDED:
            return Origin.STOPPED
        return Origin.IMPORTED if self.job.attempts == 0 else Origin.SEARCHED

    @property
    def is_imported(self) -> bool:
        return self.origin == Origin.IMPORTED

    @property
    def undeployable_reason(self) -> str:
        """Why its plan cannot be deployed, or nothing."""
        if self.device_ids and self.model_id:
            return ""
        if self.device_ids:
            return "Its model is not registered here any more"
        if self.model_id:
            return "It counts with a device that does not exist"
        return (
            "It was made from a cluster file and its numbers are those of the file, not of the devices here"
        )

    @property
    def method_label(self) -> str:
        return "Imported" if self.is_imported else self.get_method_display()


class Generation(models.Model):
    """One generation of the genetic algorithm, for the convergence chart."""

    run = models.ForeignKey(PlanRun, on_delete=models.CASCADE, related_name="generations")
    number = models.PositiveIntegerField()
    best_seconds = models.FloatField(help_text="objective of the best plan so far")
    mean_seconds = models.FloatField(null=True, help_text="mean over the feasible plans of the population")
    bound_seconds = models.FloatField(null=True, help_text="no plan can be better, when proven")
    evaluations = models.PositiveIntegerField()

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["run", "number"], name="one_row_per_generation")]

    def __str__(self) -> str:
        return f"{self.run}, generation {self.number}"

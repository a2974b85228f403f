"""Which deployments answer to which model name, and where their replicas are; read from the database by push."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Literal

from django.db.models import Q
from django.utils import timezone

from serving.core.balancer import Balancer
from serving.core.commands import Role
from serving.gateway.dispatcher import Clock, Dispatcher
from serving.gateway.errors import ApiError
from serving.gateway.limits import Limits
from serving.models import Deployment, ManagedProcess, Replica
from serving.upstream import Target

ABSENT_SECONDS = 10.0  # a deployment takes longer to come back than a slot
FAILED_LATELY = timedelta(hours=1)
Phase = Literal["prefill", "decode"]


@dataclass(frozen=True)
class Endpoint:
    """One replica that is ready."""

    replica: int
    role: Role
    slots: int
    label: str
    target: Target
    device: int | None  # the device of its master, where the slot files lie
    slot_folder: str
    saves_slots: bool
    restarts: int


@dataclass(frozen=True)
class Wanted:
    """One deployment as the database has it."""

    deployment: int
    name: str
    created: int
    context_tokens: int
    handover: bool
    endpoints: tuple[Endpoint, ...]
    makes_embeddings: bool = False
    is_starting: bool = False
    down: dict[int, str] = field(default_factory=dict)  # replica -> why it is not in service


@dataclass
class Route:
    """One deployment as the gateway serves it."""

    deployment: int
    name: str
    created: int
    context_tokens: int
    balancer: Balancer
    dispatcher: Dispatcher
    endpoints: dict[int, Endpoint] = field(default_factory=dict)
    makes_embeddings: bool = False
    is_starting: bool = False
    down: dict[int, str] = field(default_factory=dict)  # kept until the replica is back

    @property
    def standing(self) -> int:
        """2 when a replica of it stays, be it out of service for a moment; 1 when it starts; 0 when it ends."""
        stays = any(not backend.draining for backend in self.balancer.backends.values())
        return 2 if stays else int(self.is_starting)

    @property
    def is_served(self) -> bool:
        now = self.dispatcher.clock()
        return any(backend.takes(now) for backend in self.balancer.backends.values())

    def why_down(self, replica: int, otherwise: str) -> str:
        """What those who watch the processes know of an end that the gateway only sees as a closed connection."""
        reason = self.down.get(replica, "")
        return f"the replica was taken out of service: {reason}" if reason else otherwise

    def any_endpoint(self) -> Endpoint:
        """A replica for questions that need no slot."""
        now = self.dispatcher.clock()
        for backend in self.balancer.backends.values():
            if backend.takes(now) and backend.replica in self.endpoints:
                return self.endpoints[backend.replica]
        raise no_replica(self.balancer)


class Routes:
    """All deployments that are served; `apply` changes them without touching requests under way."""

    def __init__(self, limits: Limits, rng: Random, clock: Clock = time.monotonic) -> None:
        self.limits = limits
        self.rng = rng
        self.clock = clock
        self.by_deployment: dict[int, Route] = {}
        self.absent: frozenset[str] = frozenset()  # names that were to be served lately

    def find(self, model: str) -> Route:
        """The newest deployment of that name with a replica that stays, else one that starts, else any."""
        named = sorted(
            (route for route in self.by_deployment.values() if route.name == model),
            key=lambda route: (route.standing, route.deployment),
        )
        if not named and model in self.absent:
            text = f"the model {model!r} is not being served at the moment"
            raise ApiError(503, "model_not_served", text, param="model", retry_after_seconds=ABSENT_SECONDS)
        if not named:
            raise ApiError(
                404, "model_not_found", f"no deployment serves a model called {model!r}", param="model"
            )
        return named[-1]

    def is_replaced(self, gone: Route) -> bool:
        """Whether another deployment of that name answers, or will when it has started."""
        others = (route for route in self.by_deployment.values() if route is not gone)
        return any(route.name == gone.name and route.standing > 0 for route in others)

    def of_replica(self, replica: int) -> Route:
        """The deployment whose replica this is, while it can answer whole requests."""
        for route in self.by_deployment.values():
            backend = route.balancer.backends.get(replica)
            if backend is not None and backend.takes(self.clock()):
                if backend.role == "prefill" and route.balancer.handover:
                    label = route.endpoints[replica].label
                    raise ApiError(
                        400, "replica_only_prefills", f"{label} computes prompts and gives no answers"
                    )
                return route
        raise ApiError(503, "no_replica_ready", "the chosen replica is not in service")

    def apply(self, wanted: list[Wanted]) -> None:
        for one in wanted:
            self._apply_one(one)
        for deployment in self.by_deployment.keys() - {one.deployment for one in wanted}:
            route = self.by_deployment[deployment]
            route.is_starting = False
            for replica in list(route.balancer.backends):
                route.balancer.drain_replica(replica)
            route.dispatcher.pump()
            if not route.balancer.open:
                del self.by_deployment[deployment]

    def _apply_one(self, wanted: Wanted) -> None:
        route = self.by_deployment.get(wanted.deployment) or self._new(wanted)
        route.name, route.context_tokens = wanted.name, wanted.context_tokens
        route.makes_embeddings, route.is_starting = wanted.makes_embeddings, wanted.is_starting
        saves = all(endpoint.saves_slots for endpoint in wanted.endpoints)
        route.balancer.handover = wanted.handover and saves
        ready = {endpoint.replica: endpoint for endpoint in wanted.endpoints}
        route.down = {key: why for key, why in (route.down | wanted.down).items() if key not in ready}
        for replica in list(route.balancer.backends):
            moved = replica in ready and ready[replica].target != route.endpoints[replica].target
            if replica not in ready or moved:
                route.balancer.drain_replica(replica)
        for replica, endpoint in ready.items():
            ramps_from = self.clock() if endpoint.restarts else float("-inf")
            route.balancer.set_replica(replica, endpoint.role, endpoint.slots, ramps_from)
        route.endpoints |= ready
        route.dispatcher.pump()

    def _new(self, wanted: Wanted) -> Route:
        balancer = Balancer(
            self.rng, self.limits.waiting, self.limits.total_seconds + self.limits.queue_seconds
        )
        dispatcher = Dispatcher(balancer, self.clock, self.limits.queue_seconds)
        route = Route(
            wanted.deployment, wanted.name, wanted.created, wanted.context_tokens, balancer, dispatcher
        )
        self.by_deployment[wanted.deployment] = route
        return route


def load_wanted() -> list[Wanted]:
    """Every deployment that people want running, with the replicas that are ready."""
    deployments = (
        Deployment.objects.filter(wanted=Deployment.Wanted.RUNNING)
        .exclude(state__in=[Deployment.States.STOPPED, Deployment.States.STOPPING])
        .select_related("model")
    )
    return [
        Wanted(
            deployment=deployment.pk,
            name=deployment.name,
            created=int(deployment.created_at.timestamp()),
            context_tokens=deployment.context_tokens,
            handover=deployment.handover_on and deployment.plan["mode"] == "disaggregated",
            endpoints=tuple(endpoint(replica) for replica in ready_replicas(deployment)),
            makes_embeddings=deployment.makes_embeddings,
            is_starting=deployment.state == Deployment.States.STARTING,
            down=reasons_down(deployment),
        )
        for deployment in deployments
    ]


def load_absent() -> frozenset[str]:
    """Names of what is being stopped or about to be, and of what failed within the last hour."""
    failed = Q(state=Deployment.States.FAILED, ended_at__gt=timezone.now() - FAILED_LATELY)
    is_over = Q(state__in=[Deployment.States.STOPPED, Deployment.States.FAILED])
    left = Deployment.objects.filter(failed | (Q(wanted=Deployment.Wanted.STOPPED) & ~is_over))
    return frozenset(left.values_list("name", flat=True))


def reasons_down(deployment: Deployment) -> dict[int, str]:
    out = deployment.replicas.exclude(state=Replica.States.READY).exclude(state_reason="")
    return dict(out.values_list("pk", "state_reason"))


def ready_replicas(deployment: Deployment) -> list[Replica]:
    """Those that can be reached; a row that is not whole must not stop the other deployments."""
    ready = deployment.replicas.filter(state=Replica.States.READY, host__isnull=False, port__isnull=False)
    return list(ready.filter(processes__kind=ManagedProcess.Kinds.MASTER).distinct())


def endpoint(replica: Replica) -> Endpoint:
    master = replica.processes.filter(kind=ManagedProcess.Kinds.MASTER).latest("pk")
    assert replica.host and replica.port, "a ready replica has an address"
    role: Role = replica.role  # type: ignore[assignment]  # the column's choices are the roles
    return Endpoint(
        replica=replica.pk,
        role=role,
        slots=replica.slots,
        label=replica.label,
        target=Target(replica.host, replica.port, replica.api_key),
        device=master.device_id,
        slot_folder=master.slot_folder,
        saves_slots="--slot-save-path" in master.argv,
        restarts=replica.restarts,
    )


def no_replica(balancer: Balancer) -> ApiError:
    return ApiError(
        503,
        "no_replica_ready",
        "no replica of this deployment is in service",
        retry_after_seconds=balancer.retry_after_seconds(),
    )

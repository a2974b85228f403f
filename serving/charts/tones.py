"""How each state looks: a tone of the design, beside its words."""

from serving.models import Deployment, ManagedProcess, Replica, RequestSample

DEPLOYMENT = {
    Deployment.States.RUNNING: "ok",
    Deployment.States.STARTING: "busy",
    Deployment.States.STOPPING: "busy",
    Deployment.States.DEGRADED: "warn",
    Deployment.States.FAILED: "danger",
    Deployment.States.STOPPED: "calm",
}
REPLICA = {
    Replica.States.READY: "ok",
    Replica.States.WAITING: "calm",
    Replica.States.STARTING: "busy",
    Replica.States.LOADING: "busy",
    Replica.States.DRAINING: "warn",
    Replica.States.STOPPING: "busy",
    Replica.States.FAILED: "danger",
    Replica.States.STOPPED: "calm",
}
PROCESS = {
    ManagedProcess.States.WANTED: "calm",
    ManagedProcess.States.STARTED: "busy",
    ManagedProcess.States.READY: "ok",
    ManagedProcess.States.EXITED: "danger",
    ManagedProcess.States.STOPPED: "calm",
    ManagedProcess.States.UNKNOWN: "warn",
}
OUTCOME = {
    RequestSample.Outcomes.OK: "ok",
    RequestSample.Outcomes.CANCELLED: "calm",
    RequestSample.Outcomes.CUT: "danger",
    RequestSample.Outcomes.REFUSED: "warn",
    RequestSample.Outcomes.FAILED: "danger",
}
HANDOVER = {
    RequestSample.Handovers.NONE: "calm",
    RequestSample.Handovers.HIT: "ok",
    RequestSample.Handovers.FALLBACK: "warn",
}

"""How a job ends before its work is done."""


class JobFailed(Exception):
    """The work cannot be done; the text names the cause, the number and the remedy."""


class Cancelled(Exception):
    """Somebody asked for the job to stop."""


class LeaseLost(Exception):
    """Another worker has taken the job over, so this one must stop touching anything."""

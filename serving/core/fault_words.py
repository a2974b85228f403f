"""What a person is told of an answer that the gateway could not give or finish: the cause, and what to do."""

from __future__ import annotations

CUT = {
    "replica_failed": "The replica that was answering failed.",
    "replica_timeout": "The replica that was answering fell silent; it is looked after and restarted if it hangs.",
    "draining": "The gateway was stopped in the middle of this answer; it is started again within seconds.",
}
CUT_OTHERWISE = "The answer was cut off."
AFTER_A_CUT = (
    "What came until then is kept: ask for the rest, or ask again. The timeline says what was found."
)
GATEWAY_LOST = (
    f"The gateway ended in the middle of this answer; it is started again within seconds. {AFTER_A_CUT}"
)

# Refusals in whose words a person finds neither a cause nor a remedy.
REFUSED = {
    "replica_failed": "The replica failed before its first token, and no other one could take the question. Ask "
    "again; if it fails once more, the page of the deployment says what is wrong.",
    "replica_timeout": "The replica was silent for too long before its first token. It is looked after and "
    "restarted if it hangs: ask again in a minute.",
    "request_crashes_replicas": "Replicas crashed each time this question was asked, so it is refused for five "
    "minutes. Ask it in other words, and look at the page of the deployment for the cause.",
    "draining": "The gateway is being stopped; it is started again within seconds. Ask again then.",
}
REMEDIES = {
    "overloaded": "Ask again in a moment.",
    "queue_timeout": "Ask again when fewer requests wait; the traffic page shows how many do.",
    "no_replica_ready": "Ask again in a moment; the page of the deployment says how its replicas are.",
    "key_busy": "Wait until one of them has ended, or stop it.",
    "context_length_exceeded": "Begin a new chat, shorten the message, or ask for fewer tokens.",
}

# Of a replica that somebody chose: the others are not asked instead of it.
UNMET_CHOICE = ("no_replica_ready", "replica_failed", "replica_timeout")
CHOSEN = {
    "ready": "gave no answer. It is looked after and restarted if it hangs",
    "failed": "failed and is started again by itself",
    "given_up": "failed and is not started again by itself: restart it on its deployment's page",
    "starting": "is being started and does not answer yet",
    "ending": "is being stopped, or was stopped",
}


def chosen_words(replica: str, how_it_is: str) -> str:
    return f"{replica} {CHOSEN[how_it_is]}. Only it was asked: choose another replica, or wait."


def cut_words(cause: str) -> str:
    return f"{CUT.get(cause, CUT_OTHERWISE)} {AFTER_A_CUT}"


def refusal_words(code: str, said: str) -> str:
    """The gateway's refusal, with what it means instead of it or what to do behind it."""
    if code in REFUSED:
        return REFUSED[code]
    remedy = REMEDIES.get(code)
    return f"{said[:1].upper()}{said[1:].rstrip('.')}. {remedy}" if remedy else said

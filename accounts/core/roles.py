"""Who may do what: an admin everything, an operator run and stop, a viewer look."""

from enum import StrEnum


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


RANK = {Role.VIEWER: 0, Role.OPERATOR: 1, Role.ADMIN: 2}


def reaches(role: str, needed: Role) -> bool:
    """True when `role` includes the rights of `needed`; an unknown role reaches nothing."""
    return role in RANK and RANK[Role(role)] >= RANK[needed]

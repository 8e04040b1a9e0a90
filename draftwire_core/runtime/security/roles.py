"""The table of roles that may call each method."""

from enum import StrEnum


class Role(StrEnum):
    """A permission of a token. `ADMIN` permits everything."""

    GENERATE = "generate"
    """Generate text, and see the model and the pool."""
    GATEWAY = "gateway"
    """Generate text for clients of its own, and name the client that a call is for, under whose name it then counts."""
    DRAFT = "draft"
    """Draft for a verifier: the role of the services for one another."""
    ADMIN = "admin"
    """Change the pool and models, and see other callers' texts."""


_ANY = frozenset(Role)
_GENERATE = frozenset({Role.GENERATE, Role.GATEWAY, Role.ADMIN})
_DRAFT = frozenset({Role.DRAFT, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})

_VERIFIER = "/draftwire.v1.VerifierService/"
_POOL = "/draftwire.v1.DrafterPoolService/"
_DRAFTER = "/draftwire.v1.DrafterService/"

ROLES_BY_METHOD: dict[str, frozenset[Role]] = {
    _VERIFIER + "Generate": _GENERATE,
    _VERIFIER + "Verify": _GENERATE,
    _VERIFIER + "Tokenize": _GENERATE,
    _VERIFIER + "Detokenize": _GENERATE,
    _VERIFIER + "GetModelInfo": _GENERATE,
    _VERIFIER + "Score": _ADMIN,
    _VERIFIER + "FollowTraffic": _ADMIN,
    _POOL + "ListDrafters": _GENERATE,
    _POOL + "WatchDrafters": _GENERATE,
    _POOL + "ListRollouts": _GENERATE,
    _POOL + "RegisterDrafter": _DRAFT,
    _POOL + "AttachDrafter": _ADMIN,
    _POOL + "DetachDrafter": _ADMIN,
    _POOL + "SwapDrafter": _ADMIN,
    _POOL + "StartRollout": _ADMIN,
    _POOL + "FinishRollout": _ADMIN,
    _POOL + "ReportLearning": _ADMIN,
    _DRAFTER + "Draft": _DRAFT,
    _DRAFTER + "GetFeatureWeights": _DRAFT,
    _DRAFTER + "GetModelInfo": _ANY,
    _DRAFTER + "LoadModel": _ADMIN,
}
"""Roles by method; a token needs one of them."""

_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection."


def roles_of(method: str) -> frozenset[Role]:
    """Returns the roles of which a call needs one; empty for methods open to everybody. Methods missing from the table
    need the administrator's role."""
    if method.startswith(_HEALTH):
        return frozenset()
    if method.startswith(_REFLECTION):
        return _ANY
    return ROLES_BY_METHOD.get(method, _ADMIN)

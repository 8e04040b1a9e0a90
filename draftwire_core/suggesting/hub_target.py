"""A target that is on the hub and not here: its configuration, card and sizes are read without its weights."""

from __future__ import annotations

from pathlib import Path

from draftwire_core.engine.checkpoint.checkpoint import CONFIG, check_source
from draftwire_core.engine.checkpoint.hub_id import HubId
from draftwire_core.engine.checkpoint.plain_files import json_object
from draftwire_core.engine.errors import ModelLoadError
from draftwire_core.suggesting.model_names import card_names, config_names
from draftwire_core.suggesting.preparing import offline
from draftwire_core.suggesting.target_facts import TargetFacts, config_facts, facts_of


def peeked(source: str) -> TargetFacts:
    """Reads what is known of a target; one of the hub is not downloaded for that.

    Raises ModelLoadError if there is no such model, or if its configuration cannot be read.
    """
    check_source(source)
    hub_id = HubId.of(source)
    if hub_id is None or offline() or Path(source).expanduser().exists():
        return facts_of(source)
    from draftwire_core.engine.checkpoint.hub import HubError, peek  # slow to import

    try:
        place, total = peek(hub_id)
        fields = json_object(place / CONFIG) if place is not None and (place / CONFIG).is_file() else {}
    except (HubError, OSError, ValueError) as error:
        raise ModelLoadError(f"model {source}: {error}") from error
    names = [hub_id.repository, *config_names(fields), *(card_names(place) if place is not None else ())]
    return config_facts(source, fields, names, total=total)

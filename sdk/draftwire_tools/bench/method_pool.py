"""The methods of a comparison, attached while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire_tools.bench.method import PLAIN, PLAIN_NAME, PREDICTION, Method, MethodName, parse_method
from draftwire_tools.interruption import attaching

_PREDICTIONS = "speculation.prediction"
"""The field of a request's prediction, as `Capabilities.refused` names it."""


@asynccontextmanager
async def methods(
    client: AsyncClient, names: Sequence[str], predicted: bool, refused: Collection[str] = ()
) -> AsyncIterator[list[Method]]:
    """Yields plain decoding and the methods with these names; without names, a method per attached drafter, and
    predictions if there are any that the verifier takes.

    A part that is an address is attached now and detached at the end, unless it was attached before.

    Args:
        client: client of the verifier.
        names: names of the methods.
        predicted: whether there are prompts with an expected output.
        refused: the capabilities that the verifier refuses.

    Raises:
        ValueError: a name is unknown to this verifier.
        Failure: a drafter could not be attached.
        DraftwireError: a call failed.
    """
    pool = {drafter.name: drafter for drafter in await client.drafters.list()}
    if not names:
        names = [*pool, PREDICTION] if predicted and _PREDICTIONS not in refused else list(pool)
    wanted = [parse_method(name, pool) for name in dict.fromkeys(names)]
    if not wanted:
        raise ValueError(f"--method: no drafter is attached at {client.address}; name one, such as local:ngram")
    for method in wanted:
        _check(method, pool, client.address, predicted)
    async with attaching(client) as attach:
        for method in wanted:
            for part in method.parts:
                if part != PREDICTION and part not in pool:
                    pool[part] = await attach(part, f"--method {method.text}")
        yield [PLAIN, *(_method(method, pool) for method in wanted)]


def _check(method: MethodName, pool: dict[str, Drafter], address: str, predicted: bool) -> None:
    for part in method.parts:
        if part == PLAIN_NAME and part not in pool:
            raise ValueError(f"--method {method.text}: plain decoding is always measured")
        if part == PREDICTION and not predicted:
            raise ValueError(f'--method {method.text}: no task has a "prediction" in all of its prompts')
        if part != PREDICTION and part not in pool and ":" not in part:
            raise ValueError(
                f"--method {method.text}: no drafter {part} is attached at {address}, only "
                f"{', '.join(pool) or 'none'}; an address, such as local:suffix, is attached for the comparison"
            )


def _method(method: MethodName, pool: dict[str, Drafter]) -> Method:
    drafters = tuple(pool[part] for part in method.parts if part != PREDICTION)
    return Method(method.text, drafters, PREDICTION in method.parts, method.acceptance)

"""Long conversations and prompts are encoded beside the event loop of the asyncio client."""

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from draftwire import AsyncClient, InvalidFieldError
from tests.harness.stand_ins.fake_verifier import FakeVerifier
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK

MANY = 4096


class Turn(dict[str, str]):
    """A message that records the threads that read it."""

    threads: set[int]

    def get(self, *key: Any) -> Any:
        self.threads.add(threading.get_ident())
        return super().get(*key)


class Ids(Sequence[int]):
    """Token ids that record the threads that read them."""

    def __init__(self, count: int) -> None:
        self.threads: set[int] = set()
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        self.threads.add(threading.get_ident())
        return iter([1] * self._count)


def turns(count: int, threads: set[int]) -> list[Turn]:
    made = [Turn(role="user", content="a") for _ in range(count)]
    for each in made:
        each.threads = threads
    return made


@pytest.fixture
async def client(verifier: FakeVerifier) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as made:
        yield made


@pytest.mark.parametrize("given", [list, iter], ids=["list", "iterator"])
async def test_a_long_conversation(client: AsyncClient, given: Callable[[Iterable[Turn]], Any]) -> None:
    threads: set[int] = set()
    here = threading.get_ident()
    await client.chat(given(turns(MANY, threads)), max_tokens=1)
    assert threads and here not in threads
    threads.clear()
    await client.tokenize(messages=given(turns(MANY, threads)))
    assert threads and here not in threads
    threads.clear()
    await client.chat(given(turns(2, threads)), max_tokens=1)
    assert threads == {here}


async def test_many_token_ids(client: AsyncClient) -> None:
    ids = Ids(100_000)
    await client.generate(ids, max_tokens=1)
    assert ids.threads and threading.get_ident() not in ids.threads


async def test_what_is_wrong_with_a_long_conversation_is_told_as_ever(client: AsyncClient) -> None:
    with pytest.raises(InvalidFieldError, match=r"messages\[4096\]: expected the keys role and content"):
        await client.chat([*turns(MANY, set()), {"role": "user"}])
    with pytest.raises(TypeError, match=r"messages: expected a list of mappings"):
        await client.chat("a" * MANY)  # type: ignore[arg-type]

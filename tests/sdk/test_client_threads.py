"""The sync client is used by several threads."""

import threading

from draftwire import Client, RequestCancelledError
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, expected_ids, text_of
from tests.harness.waiting import PATIENCE, sometimes


def test_closing_from_another_thread_ends_a_waiting_read(client: Client, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2

    def ended_while_waiting() -> bool:
        stream = client.stream(PROMPT, max_tokens=20)
        next(stream)
        threading.Timer(0.1, stream.close).start()
        try:
            return next(stream, None) is not None
        except RequestCancelledError:
            return True

    sometimes(ended_while_waiting, "it was closed after it had begun to wait")
    assert verifier.cancelled.wait(PATIENCE)


def test_threads_share_a_client(client: Client) -> None:
    texts: dict[int, str] = {}

    def run(seed: int) -> None:
        texts[seed] = client.generate(PROMPT, max_tokens=9, seed=seed).text

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {seed: text_of(expected_ids(seed, 9)) for seed in range(8)}

"""Log-probabilities of tokens that are parts of characters."""

from draftwire import TokenLogProb, TokenLogProbs
from gateway_service.openai.logprobs import chat_logprobs, completion_logprobs

PARTS = [TokenLogProb(195, -0.5, "\ufffd", b"\xc3"), TokenLogProb(196, -1.5, "\ufffd", b"\xc4")]
WHOLE = TokenLogProb(7, -2.5, "\ufffd", "\ufffd".encode())


def test_parts_of_characters_are_told_apart() -> None:
    told = [TokenLogProbs(token=PARTS[0], rank=1, top=[*PARTS, WHOLE])]
    completion = completion_logprobs(told, [0], 0)
    assert completion.tokens == [r"bytes:\xc3"]
    assert completion.top_logprobs == [{r"bytes:\xc3": -0.5, r"bytes:\xc4": -1.5, "\ufffd": -2.5}]
    (token,) = chat_logprobs(told).content
    assert [each.token for each in token.top_logprobs] == [r"bytes:\xc3", r"bytes:\xc4", "\ufffd"]
    assert token.bytes == [0xC3]

"""The asyncio client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self, Unpack, overload

import grpc

from draftwire._async.drafters import AsyncDrafters
from draftwire._async.generations import AsyncGenerations, AsyncGenerationStream
from draftwire._auth.bearer_token import TokenSource
from draftwire._auth.security import ClientName, Security
from draftwire._auth.tls import Tls
from draftwire._calls.async_transport import AsyncStream, AsyncTransport
from draftwire._calls.batch import Batch
from draftwire._calls.failover import RetryPolicy
from draftwire._calls.spreading import SpreadPolicy
from draftwire._messages.conversation import ChatOptions, Messages, variables_text
from draftwire._messages.health import CHECK, Health, check_request, read_health
from draftwire._messages.methods import DETOKENIZE, FOLLOW_TRAFFIC, GET_MODEL_INFO, TOKENIZE
from draftwire._messages.off_loop import is_large, kept, off_loop
from draftwire._messages.option_types import many, whole
from draftwire._messages.reading import Subscription
from draftwire._messages.requests import Prompt, Request
from draftwire._messages.scoring import Prediction, ScoreReader
from draftwire._messages.tokenization import Tokenization, TokenizeOptions, detokenize_request, tokenize_request
from draftwire._messages.traffic import Traffic, read_traffic
from draftwire._types.from_message import read
from draftwire._types.generation import Generation
from draftwire._types.model import VerifierInfo, read_verifier_info
from draftwire._types.options import BatchOptions, GenerateOptions
from draftwire._types.verifier import Verifier, Verifiers, VerifierStatus, parse_verifiers
from draftwire.errors import DraftwireError
from draftwire.v1 import verifier_service_pb2 as pb


class AsyncClient:
    """A client of one verifier, or of several that serve the same target model. To be used on one event loop.

    With a list of addresses, or a DNS name that resolves to several, requests are spread by load; prompts with a common
    beginning go to the same verifier (``SpreadPolicy``). An interrupted request is resumed at another verifier, without
    a token lost, doubled or changed. All other calls go to the verifier in use (``address``) until it is lost.

        async with AsyncClient("localhost:50051") as client:
            async for chunk in client.stream("def fib(n):", max_tokens=64):
                print(chunk.text, end="")

    The generating methods take the keyword parameters of ``GenerateOptions``.
    """

    def __init__(
        self,
        address: Verifiers = "localhost:50051",
        *,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        spread: SpreadPolicy | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        tls: Tls | None = None,
        token: TokenSource | None = None,
        insecure: bool = False,
        on_behalf_of: ClientName | None = None,
    ) -> None:
        """Creates a client. It connects on the first call.

        Args:
            address: host:port of a verifier, or several with the same target model; see ``Verifier`` for weights. A DNS
                name stands for all its addresses: looked up first, if one is lost, and every 30 seconds while in use.
            timeout: total seconds a call may take, unless the call sets its own; None waits without limit.
            retry: what to do about verifiers that cannot be reached; default ``RetryPolicy()``.
            spread: how requests are spread over several verifiers; default ``SpreadPolicy()``.
            credentials: your own gRPC channel credentials, instead of ``tls``.
            tls: encryption and the certificates to trust; None connects unencrypted, to this machine only.
            token: the token to present to the service, or a function that returns the current one (``TokenFile``).
            insecure: True allows unencrypted connections to other machines, token included.
            on_behalf_of: returns the client that a call counts under, for tokens with the role ``gateway``, or None.

        Raises:
            ValueError: an invalid address or weight, unusable files in ``tls``, or another machine without TLS.
        """
        verifiers = parse_verifiers(address)
        security = Security(tls=tls, token=token, insecure=insecure, credentials=credentials, on_behalf_of=on_behalf_of)
        for each in verifiers:
            security.check(each.address)
        self._transport = self._make_transport(
            verifiers, timeout=timeout, retry=retry or RetryPolicy(), spread=spread or SpreadPolicy(), security=security
        )
        self._generations = AsyncGenerations(self._transport)
        self.drafters = AsyncDrafters(self._transport)
        """The drafters of the verifier in use."""

    @property
    def address(self) -> str:
        """Address of the verifier in use, which serves every call except generation."""
        return self._transport.address

    @property
    def verifiers(self) -> list[VerifierStatus]:
        """The client's view of each verifier; those behind a DNS name appear once it was looked up."""
        return self._transport.statuses()

    async def generate(self, prompt: Prompt, *, n: int = 1, **options: Unpack[GenerateOptions]) -> Generation:
        """Continues a prompt and returns the result.

        Args:
            prompt: text, or token ids.
            n: number of results to generate concurrently, from 1 to 128; ``Generation.choices`` holds all of them. The
                i-th, counted from 0, equals the result of a single call with the seed plus i.
            options: see ``GenerateOptions``.

        Raises:
            InvalidArgumentError: the request cannot be served: ``InvalidFieldError`` with the fields' names,
                ``EmptyPromptError``, ``ContextExceededError`` or ``TokenOutOfRangeError``.
            DrafterNotFoundError: ``speculation.drafter`` is not attached.
            AtCapacityError: all reachable verifiers are full.
            DeadlineExceededError: the timeout has passed; ``partial`` has the text so far.
            UnavailableError: no verifier could be reached.
            ModelMismatchError: the verifiers serve different target models.
            NumericsMismatchError: the request was interrupted, and no verifier with the same numerics is left.
            TypeError: an option has the wrong type or does not exist.
            DraftwireError: the call failed otherwise.
        """
        return await self._generations.choices(Request.of(prompt, **options), n)

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGenerationStream:
        """Continues a prompt and iterates over its chunks as they are committed.

        The request starts immediately. Ending the iteration early cancels it; see ``AsyncStream``.
        The call itself needs no ``await``, but a running event loop.

        Args:
            prompt: text, or token ids.
            options: see ``GenerateOptions``.

        Raises:
            InvalidFieldError: a value cannot be encoded. All other errors of ``generate`` are raised while iterating,
                and so is this one for a large request: of 16384 token ids, a million characters or 256 messages.
        """
        return self._generations.stream(Request.of(prompt, **options))

    async def chat(self, messages: Messages, *, n: int = 1, **options: Unpack[ChatOptions]) -> Generation:
        """Answers a conversation and returns the result. The target's chat template renders the messages.

        Args:
            messages: mappings with ``role`` (system, user, assistant, tool, ...) and ``content``, oldest first, and
                where they apply ``tool_calls``, ``tool_call_id``, ``name`` and ``reasoning_content``, as OpenAI does. A
                content is a text or a list of text parts; with ``tool_calls`` it may be None.
            n: see ``generate``.
            options: see ``GenerateOptions``, and ``ConversationOptions``: ``tools``, ``chat_template_kwargs``,
                ``add_generation_prompt`` and ``continue_final_message``.

        Raises:
            DraftwireError: as ``generate``.
        """
        return await self._generations.choices(Request.of_chat(messages, **options), n)

    def stream_chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> AsyncGenerationStream:
        """Answers a conversation and iterates over the chunks: ``stream`` with the messages of ``chat``."""
        return self._generations.stream(Request.of_chat(messages, **options))

    @overload
    async def generate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        seed: int | Sequence[int] | None = None,
        max_concurrency: int = 32,
        return_exceptions: Literal[False] = False,
        **options: Unpack[BatchOptions],
    ) -> list[Generation]: ...

    @overload
    async def generate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        seed: int | Sequence[int] | None = None,
        max_concurrency: int = 32,
        return_exceptions: bool,
        **options: Unpack[BatchOptions],
    ) -> list[Generation | DraftwireError]: ...

    async def generate_batch(
        self,
        prompts: Iterable[Prompt],
        *,
        seed: int | Sequence[int] | None = None,
        max_concurrency: int = 32,
        return_exceptions: bool = False,
        **options: Unpack[BatchOptions],
    ) -> list[Generation] | list[Generation | DraftwireError]:
        """Continues several prompts concurrently and returns their results in order.

        Args:
            prompts: texts, or lists of token ids.
            seed: one seed for every prompt (each result equals that of a single call with it), or one seed per prompt.
            max_concurrency: most requests in flight at a time.
            return_exceptions: put the error of a failed request in its place in the list and let the others continue.
            options: see ``BatchOptions``.

        Raises:
            ValueError: the number of seeds is not the number of prompts.
            TypeError: an option or a prompt has the wrong type.
            DraftwireError: the first request that failed, unless ``return_exceptions``. Its message and ``fields`` name
                the prompt, for example ``prompts[1]``, and ``results`` has each prompt's outcome. The other requests
                are cancelled. If the prompt itself is at fault (``EmptyPromptError``, ``ContextExceededError``,
                ``TokenOutOfRangeError``), they run to completion first.
        """
        prompts = many(lambda _, each: kept(each), "a list of texts or of lists of token ids", "prompts", prompts)
        make = partial(Batch.of, prompts, seed, options, keeps_errors=return_exceptions)
        batch = await off_loop(make, large=is_large(prompts, options))
        await self._generations.run(batch, whole("max_concurrency", max_concurrency))
        return batch.outcomes()

    async def tokenize(self, text: str | None = None, **options: Unpack[TokenizeOptions]) -> list[int]:
        """Returns the token ids of a text or a conversation, by the target's tokenizer.

        Args:
            text: the text.
            options: see ``TokenizeOptions``; ``messages`` are a conversation instead of a text.

        Raises:
            InvalidFieldError: the conversation cannot be rendered, not exactly one of text and messages was given, or
                what applies to messages was given without them.
            DraftwireError: the call failed.
        """
        return (await self.tokenization(text, **options)).token_ids

    async def tokenization(self, text: str | None = None, **options: Unpack[TokenizeOptions]) -> Tokenization:
        """Tokenizes as ``tokenize`` does, and returns the offset and text of each token as well."""
        options["messages"] = kept(options.get("messages"))
        request = partial(tokenize_request, text, options)
        response = await self._transport.call(TOKENIZE, request, options.get("timeout"))
        return await off_loop(partial(read, Tokenization, response), large=is_large(response.token_ids))

    async def detokenize(
        self, ids: Iterable[int], *, skip_special_tokens: bool = False, timeout: float | None = None
    ) -> str:
        """Returns the text of token ids, by the target's tokenizer.

        Args:
            ids: the token ids.
            skip_special_tokens: omit special tokens from the text.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            TokenOutOfRangeError: an id is not in the vocabulary.
            DraftwireError: the call failed otherwise.
        """
        request = partial(detokenize_request, kept(ids), skip_special_tokens)
        response = await self._transport.call(DETOKENIZE, request, timeout)
        return response.text

    async def score(
        self, token_ids: Iterable[int], *, top: int = 16, first_position: int = 1, timeout: float | None = None
    ) -> list[Prediction]:
        """Returns the target's likeliest tokens along a text, as training data for a draft model.

        The verifier must have been started with ``--allow-scoring``. Scoring uses the capacity that requests leave.

        Args:
            token_ids: the text, prompt and continuation.
            top: number of tokens to return for each position.
            first_position: first position to score, from 1.
            timeout: seconds the call may take; default: the client's timeout.

        Raises:
            DraftwireError: the call failed; ``NotEnabledError`` if the verifier does not allow scoring,
                ``InvalidArgumentError`` if a field is out of its range or the text too long.
        """
        async with self._transport.stream(ScoreReader(token_ids, top, first_position), timeout) as stream:
            return [prediction async for part in stream for prediction in part]

    def follow_traffic(self, *, likeliest: bool = False) -> AsyncStream[Traffic]:
        """Iterates over the requests of all clients that the verifier finishes from now on.

        The verifier must have been started with ``--share-traffic``. The first item is empty and arrives immediately.
        The stream never ends; close it, or leave its ``async with`` block. It reconnects after a lost connection. With
        ``likeliest``, outputs that begin from now on have the target's likeliest tokens at each position.

        Raises:
            DraftwireError: the call failed, raised while iterating; ``NotEnabledError`` if the traffic is not shared.
        """
        return self._transport.stream(Subscription(FOLLOW_TRAFFIC, read_traffic, likeliest=likeliest), float("inf"))

    async def model_info(
        self,
        *,
        address: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> VerifierInfo:
        """Returns a verifier's model, limits and load.

        Args:
            address: the one of the ``verifiers`` to ask; default: the one in use.
            chat_template_kwargs: variables for the chat template, with which ``VerifierInfo.chat_format`` is found.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            DraftwireError: the call failed.
        """
        request = pb.GetModelInfoRequest(chat_template_kwargs=variables_text(chat_template_kwargs))
        return read_verifier_info(await self._transport.call(GET_MODEL_INFO, request, timeout, address=address))

    async def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """Returns the verifier's health by ``grpc.health.v1``. Also works with a drafter service.

        Args:
            service: full name of one of the server's services; empty for the server as a whole.
            timeout: seconds to wait; default: the client's timeout.

        Raises:
            NotFoundError: the server has no such service.
            DraftwireError: the call failed.
        """
        return read_health(await self._transport.call(CHECK, check_request(service), timeout))

    async def close(self) -> None:
        """Cancels running calls and closes the connections."""
        await self._transport.close()

    def __repr__(self) -> str:
        """Returns the client's verifiers, without secrets."""
        return f"{type(self).__name__}([{', '.join(repr(each.address) for each in self.verifiers)}])"

    async def __aenter__(self) -> Self:
        """Returns the client itself."""
        return self

    async def __aexit__(self, *ended: object) -> None:
        """Closes the client."""
        await self.close()

    def _make_transport(self, verifiers: tuple[Verifier, ...], **options: Any) -> AsyncTransport:
        return AsyncTransport(verifiers, **options)

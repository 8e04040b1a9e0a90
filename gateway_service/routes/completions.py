"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from draftwire import GenerateOptions, Prompt
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.choices.generation_run import Order
from gateway_service.choices.responder import Writer
from gateway_service.http.field_names import FieldNames
from gateway_service.http.json_body import BodyRoute, beside_the_loop
from gateway_service.models.served_model import ServedModel
from gateway_service.openai.chat_request import ChatRequest
from gateway_service.openai.chat_response import ChatResponse, ChatWriter
from gateway_service.openai.completion_request import CompletionRequest
from gateway_service.openai.completion_response import CompletionResponse, CompletionWriter
from gateway_service.openai.generation_request import GenerationRequest, limits
from gateway_service.routes.state import GatewayState, State, errors, head_of

_ERRORS = errors(400, 401, 403, 404, 408, 413, 429, 500, 503, 504)
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

router = APIRouter(route_class=BodyRoute)


@router.post("/v1/completions", response_model=CompletionResponse, responses=_ERRORS | _STREAM)
async def complete(asked: CompletionRequest, request: Request, state: GatewayState) -> Response:
    """Continues prompts."""
    asked.check()
    prompts: Sequence[Prompt] = asked.prompts
    state.responder.check_count(
        "prompt" if asked.choices_each == 1 or not prompts else "n", len(prompts) * asked.choices_each
    )
    model = await state.model(request, asked.model)
    target = model.next_target()
    head = await head_of("cmpl-", request, target)
    most, sent = asked.most_tokens, asked.max_tokens is not None
    options = asked.options(most, state.settings.request_seconds) | limits(most, state.settings.max_tokens, sent=sent)
    options |= {"logprobs": asked.logprobs, "echo": bool(asked.echo), "suffix": asked.suffix or None} | asked.form()
    options |= {"adapter": model.adapter}
    if asked.echo and asked.logprobs is not None and "prompt_logprobs" not in asked.given:
        options |= {"prompt_logprobs": asked.logprobs}
    orders = [
        Order(
            GenerateOptions(**options, seed=seed),
            prompt,
            names=asked.names_of(index),
            prompt_alone=asked.prompt_alone,
            same_prompt=number > 0,
        )
        for (index, prompt), (number, seed) in product(enumerate(prompts), enumerate(asked.seeds()))
    ]
    return await _respond(state, target, request, asked, orders, CompletionWriter(asked, head), asked.left_out)


@router.post("/v1/chat/completions", response_model=ChatResponse, responses=_ERRORS | _STREAM)
async def chat(asked: ChatRequest, request: Request, state: GatewayState) -> Response:
    """Answers a conversation."""
    asked.check()
    state.responder.check_count("n", asked.choices_each)
    model = await state.model(request, asked.model)
    target = model.next_target()
    head = await head_of("chatcmpl-", request, target)
    most = asked.most_tokens
    options = asked.options(most, state.settings.request_seconds) | limits(most, state.settings.max_tokens, sent=True)
    usual = (await target.info()).chat_format
    template = asked.template(usual)
    plan = asked.plan(template.format_of(await target.chat_format(template.deciding(usual))))
    options |= {"logprobs": asked.alternatives, "adapter": model.adapter} | await beside_the_loop(request, plan.options)
    tools = [tool.to_sdk() for tool in plan.use.offered]
    names = FieldNames(asked.field_names())
    messages = await beside_the_loop(request, lambda: asked.conversation)
    orders = [
        Order(
            GenerateOptions(**options, seed=seed),
            messages=messages,
            tools=tools,
            template=template.to_sdk(),
            names=names,
            same_prompt=number > 0,
        )
        for number, seed in enumerate(asked.seeds())
    ]
    left_out = [*asked.left_out, *template.left_out]
    return await _respond(state, target, request, asked, orders, ChatWriter(asked, head, plan), left_out, plan)


async def _respond(
    state: State,
    target: ServedModel,
    request: Request,
    asked: GenerationRequest,
    orders: Sequence[Order],
    writer: Writer,
    left_out: Sequence[str],
    plan: AnswerPlan | None = None,
) -> Response:
    if asked.stream:
        return state.responder.stream(target.client, request, orders, writer, asked.include_usage, left_out, plan)
    return await state.responder.respond(target.client, request, orders, writer, left_out, plan)

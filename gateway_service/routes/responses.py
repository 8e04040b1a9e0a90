"""``/v1/responses``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from draftwire import GenerateOptions
from gateway_service.choices.generation_run import Order
from gateway_service.http.field_names import FieldNames
from gateway_service.http.json_body import BodyRoute, beside_the_loop
from gateway_service.openai.fields.whole_numbers import limit_of
from gateway_service.openai.generation_request import limits
from gateway_service.responses.request import ResponsesRequest
from gateway_service.responses.writer import ResponseObject, ResponsesWriter
from gateway_service.routes.state import GatewayState, errors, head_of

_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

router = APIRouter(route_class=BodyRoute)


@router.post(
    "/v1/responses",
    response_model=ResponseObject,
    responses=errors(400, 401, 403, 404, 408, 413, 429, 500, 503, 504) | _STREAM,
)
async def respond(asked: ResponsesRequest, request: Request, state: GatewayState) -> Response:
    """Answers a conversation with output items."""
    asked.check()
    messages = await beside_the_loop(request, asked.conversation)
    model = await state.model(request, asked.model)
    target = model.next_target()
    head = await head_of("resp_", request, target)
    usual = (await target.info()).chat_format
    template = asked.template(usual)
    plan = asked.plan(template.format_of(await target.chat_format(template.deciding(usual))))
    most = limit_of(asked.max_output_tokens)
    options = asked.options(most, state.settings.request_seconds) | limits(most, state.settings.max_tokens, sent=True)
    options |= {"adapter": model.adapter} | await beside_the_loop(request, plan.options)
    order = Order(
        GenerateOptions(**options, seed=asked.seeds()[0]),
        messages=messages,
        tools=[tool.to_sdk() for tool in plan.use.offered],
        template=template.to_sdk(),
        names=FieldNames(asked.field_names()),
    )
    writer = ResponsesWriter(asked, head, plan)
    left_out = [*asked.left_out, *template.left_out]
    if asked.stream:
        return state.responder.stream(
            target.client, request, [order], writer, usage=False, left_out=left_out, plan=plan
        )
    return await state.responder.respond(target.client, request, [order], writer, left_out, plan)

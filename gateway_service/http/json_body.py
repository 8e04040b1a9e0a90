"""Request bodies in JSON, parsed and validated without stopping the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response

from gateway_service.http.body_elements import TooManyElements, check_elements
from gateway_service.http.errors import GatewayError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHORT = 32 * 1024
"""Longest body, in bytes, that is read on the event loop, where it takes a few milliseconds at most."""

ModelT = TypeVar("ModelT", bound=BaseModel)
T = TypeVar("T")


class BodyReader:
    """Reads bodies; a thread of its own reads the long ones, one after the other.

    pydantic holds the interpreter while it works, and several such threads would keep the event loop waiting for each.
    """

    def __init__(self, most_elements: int) -> None:
        """most_elements: most values of a body's arrays and objects together."""
        self._most = most_elements
        self._thread = ThreadPoolExecutor(1, "gateway-bodies")

    async def read(self, body: bytes, model: type[ModelT]) -> ModelT:
        """Returns a body as an instance of `model`.

        Raises:
            GatewayError: the body is no valid JSON, or has too many values.
            ValidationError: it is not what the model describes.
        """
        return await self.run(len(body), lambda: self._read(body, model))

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """Returns the outcome of work that is linear in a body, done in the thread if the body is long. size: that of
        the body in bytes."""
        if size <= _SHORT:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        """Ends the thread; bodies that wait are not read."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _read(self, body: bytes, model: type[ModelT]) -> ModelT:
        if len(body) > _SHORT:
            try:
                check_elements(body, self._most)
            except TooManyElements as error:
                raise GatewayError(f"the body {error} (--max-body-elements)", code="invalid_value") from error
        try:
            value = from_json(body.removeprefix(_BYTE_ORDER_MARK))
        except ValueError as error:
            raise GatewayError(f"the body is not valid JSON: {error}", code="invalid_json") from error
        return model.model_validate(value)


class BodyRoute(APIRoute):
    """A route whose body the application's `BodyReader` (`app.state.bodies`) reads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Returns the handler, which gives FastAPI the instance of the body's model: it takes such a one as it is."""
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        model = self.body_field.field_info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)

        async def read(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            coding = request.headers.get("content-encoding", "identity")
            if coding.lower() != "identity":
                raise GatewayError(f"Content-Encoding: {coding!r} is not supported; send the body as it is", status=415)
            body = await request.body()
            if not body or not (kind == "application/json" or kind.endswith("+json")):
                raise GatewayError("the body must be a JSON object, sent as application/json", code="invalid_type")
            bodies: BodyReader = request.app.state.bodies
            request.state.body_bytes = len(body)
            try:
                value = await bodies.read(body, model)
            except ValidationError as error:
                first = error.errors(include_url=False, include_input=False)[0]
                raise RequestValidationError([first | {"loc": ("body", *first["loc"])}]) from error
            return await handler(_ReadRequest(request, value))

        return read


async def beside_the_loop(request: Request, work: Callable[[], T]) -> T:
    """Returns the outcome of work that is linear in a request's body, done next to the event loop if that is long."""
    bodies: BodyReader = request.app.state.bodies
    return await bodies.run(request.state.body_bytes, work)


class _ReadRequest(Request):
    """A request whose body has been read and is not kept next to what was read of it."""

    def __init__(self, request: Request, value: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._value = value

    async def body(self) -> bytes:
        """Returns a text that stands for the body: FastAPI asks whether there is one."""
        return b"{}"

    async def json(self) -> Any:
        """Returns the instance of the body's model."""
        return self._value

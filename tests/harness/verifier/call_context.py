"""A call's context, from which the service reads the peer."""


class From:
    """The context of a call from a peer."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    async def send_initial_metadata(self, metadata: object) -> None:
        """Does nothing: nobody reads the metadata."""


ONE, ONE_AGAIN, OTHER = From("ipv4:10.0.0.7:51234"), From("ipv4:10.0.0.7:51235"), From("ipv6:%5B::1%5D:51234")

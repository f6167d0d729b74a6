"""Read what a server sends back, no further than is believed."""

from typing import Any

import openai

from bandpo.errors import UserError, without_password

_OF_BODY = (
    "content-encoding",
    "content-length",
    "transfer-encoding",
)  # headers of bytes that are decoded here


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Read at most `limit` bytes of a reply, and follow no redirect. They are counted as they are decoded.

    Raises:
        UserError: a longer reply, or a redirect. The openai client does not try these again.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(follow_redirects=False)
        self.limit = limit

    async def send(self, request: Any, **options: Any) -> Any:
        """Send a request. Returns the reply with its whole content."""
        response = await super().send(request, **{**options, "stream": True})
        content = bytearray()
        try:
            if response.has_redirect_location:
                to = without_password(response.headers["location"])
                raise UserError(f"{response.status_code} a redirect to {to}, which is not followed")
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > self.limit:
                    raise UserError(f"a reply of more than {self.limit:,} bytes; the rest was not read")
        finally:
            await response.aclose()
        headers = {name: value for name, value in response.headers.items() if name not in _OF_BODY}
        return type(response)(
            response.status_code, headers=headers, content=bytes(content), request=request
        )

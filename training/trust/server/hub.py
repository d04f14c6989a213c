"""Asks the Hugging Face Hub for an account and its organizations.

The token goes to the configured endpoint and nowhere else: redirects are not followed. It is neither kept nor logged.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

from training.trust.refusals import Refusal

HUB_SECONDS = 10.0
"""Longest silence of the Hub."""
MOST_WAITING = 8
"""Most requests that wait for the Hub at once; further requests are refused."""
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,512}")
_REFUSED = (400, 401, 403)
"""Status codes by which the Hub refuses a token; by others it has a fault, or asks us to wait."""


class Hub:
    """Client of the Hugging Face Hub, which finds the account of a token.

    Args:
        endpoint: Address of the Hub; a company or a test may have its own.
        organizations: Names of organizations; a member of any of them may take part.
    """

    def __init__(self, endpoint: str, organizations: Sequence[str]):
        self._endpoint = endpoint.rstrip("/")
        self._organizations = frozenset(name.lower() for name in organizations)
        self._turn = threading.Lock()
        self._places = threading.BoundedSemaphore(MOST_WAITING)

    def member(self, token: str) -> tuple[str, str]:
        """Returns the name of a token's user, which they can change, and the fixed id that the Hub has given them.

        Raises:
            Refusal: If the Hub does not know the token or does not answer, or the user is in none of the organizations.
        """
        if not _TOKEN.fullmatch(token):  # of an empty one, the library might take this server's own in its place
            raise Refusal("token-refused")
        # Whoever waits holds a thread of the server, which answers other requests with them.
        if not self._places.acquire(blocking=False):
            raise Refusal("hub-away", seconds=HUB_SECONDS)
        try:
            with self._turn:  # the library has one session for all
                told = self._whoami(token)
        finally:
            self._places.release()
        try:
            names = {str(one["name"]).lower() for one in told["orgs"]} if told["type"] == "user" else set()
            name, hub_id = str(told["name"]), str(told["id"])
        except (KeyError, TypeError):
            raise Refusal("hub-away") from None
        if not names & self._organizations:
            raise Refusal("not-in-organization")
        return name, hub_id

    def _whoami(self, token: str) -> dict:
        from huggingface_hub import HfApi, get_session
        from huggingface_hub.errors import HfHubHTTPError

        session = get_session()
        session.follow_redirects, session.timeout = False, HUB_SECONDS
        try:
            return HfApi(endpoint=self._endpoint).whoami(token=token)
        except HfHubHTTPError as error:
            refused = error.response is not None and error.response.status_code in _REFUSED
            raise Refusal("token-refused" if refused else "hub-away") from None
        except Exception:  # of the library's HTTP client, and what is no JSON; its text might quote the request
            raise Refusal("hub-away") from None
        finally:
            session.cookies.clear()  # the next question is another user's

"""The membership server's page for maintainers, as they see it: small and large, light and dark, without a script."""

from __future__ import annotations

import pytest

from tests.site.pages.test_every_page import violations
from tests.support.serving import serving
from tests.training.trust.tickets import OTHER_PEER, PEER
from training.trust.keys import MembershipKey
from training.trust.server.app import create_app
from training.trust.server.desk import Desk
from training.trust.server.ledger import REGISTER_FILE
from training.trust.server.moderation import Moderation
from training.trust.server.policy import Policy
from training.trust.server.register import Entrant

pytestmark = pytest.mark.browser
TOKEN = "the password of the page, which is long"


@pytest.fixture
def address(tmp_path):
    """A server with members, bans, an invitation and refusals."""
    register = Moderation(tmp_path / REGISTER_FILE, run_id="demo")
    ends = register.now + 25_000
    long = Entrant(account="hf:a-name-that-is-rather-long-and-has-no-end", standing="vouched")
    anybody = Entrant(account=f"open:{OTHER_PEER}", standing="open")
    for admission, peer in ((long, PEER), (anybody, OTHER_PEER)):
        register.admit(admission, peer, ticket_ends=ends, most_peers=8)
    register.invite("lab", uses=5, seconds=3600, who="mo")
    register.ban(OTHER_PEER, reason="<img src=x onerror=alert(1)> " + "w" * 150, who="mo")
    desk = Desk(register, MembershipKey.begin(), Policy())
    desk.refused["code-unknown"] = 3
    with serving(create_app(desk, page_token=TOKEN)) as url:
        yield f"{url}/page"


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_everywhere(chromium, address, width, dark):
    context = chromium.new_context(
        viewport={"width": width, "height": 800},
        color_scheme="dark" if dark else "light",
        http_credentials={"username": "", "password": TOKEN},
    )
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("img, script").count() == 0
    assert page.get_by_role("region", name="Members", exact=True).get_by_text("hf:a-name").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
        "rgb(20, 24, 29)" if dark else "rgb(252, 251, 248)"
    )
    assert violations(page) == []
    assert complaints == []
    context.close()

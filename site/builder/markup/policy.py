"""The pages' content security policy: browsers run the scripts of this build, and nothing that a text brings along.

Pages show what a run's monitor sends, and a monitor may be anybody's. The scripts show it as text only; should one fail
to, the policy keeps markup in it from running code.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable

_INLINE = re.compile(r"<script(?![^>]*\bsrc=)(?![^>]*\btype=\"?application/json)[^>]*>(.*?)</script>", re.DOTALL)
_CHARSET = re.compile(r"<meta charset=\"?utf-8\"?\s*/?>")


def inline_scripts(html: str) -> set[str]:
    """The texts of all scripts in a page that are not files."""
    return {text for text in _INLINE.findall(html) if text.strip()}


def policy_of(scripts: Iterable[str]) -> str:
    """The policy of a site whose pages have these inline scripts.

    It is the same for all pages, because the theme puts one page in the place of another without reloading. The run's
    documents and pictures may come from any monitor. Python compiles WebAssembly.
    """
    hashes = sorted(base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{one}'" for one in hashes)
    return "; ".join(
        [
            "default-src 'self'",
            f"script-src 'self' 'wasm-unsafe-eval' {allowed}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob: http: https:",
            "connect-src 'self' http: https:",
            "font-src 'self' data:",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ]
    )


def with_policy(html: str, policy: str) -> str:
    """A page with the policy, which counts for all that follows it.

    Raises:
        ValueError: If the page has no place for it.
    """
    page, count = _CHARSET.subn(
        lambda found: f'{found[0]}<meta http-equiv="Content-Security-Policy" content="{policy}">', html, count=1
    )
    if not count:
        raise ValueError("A page without <meta charset> cannot get the content security policy.")
    return page

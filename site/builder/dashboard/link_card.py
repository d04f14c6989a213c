"""Draws site/images/card.png, which other sites show beside a link to this site.

`python site/builder/dashboard/link_card.py` draws the recorded run's loss and its last pictures. It needs Chromium and
Playwright, which the tests install and the build does not; therefore the file is kept in the repository.
"""

from __future__ import annotations

import base64
import os
import re
import sys
from pathlib import Path

SITE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SITE.parent), str(SITE)]

from builder.dashboard.recorded_run import load_recorded  # noqa: E402  (the paths above come first)
from training.publish.live.picture import HEIGHT, WIDTH  # noqa: E402

STYLE = """
  body { background: #fcfbf8; box-sizing: border-box; color: #1f2430; font: 28px system-ui; height: 630px; margin: 0;
         padding: 64px 72px; width: 1200px; }
  h1 { font: 600 68px Palatino, Georgia, serif; line-height: 1.1; margin: 0 0 22px; }
  header { align-items: center; display: flex; gap: 18px; margin-bottom: 34px; }
  p { color: #565d6b; margin: 0; max-width: 1000px; }
  .row { align-items: end; display: flex; gap: 24px; margin-top: 44px; }
  .row > svg { height: 150px; width: 520px; }
  polyline { fill: none; stroke: #14777c; stroke-width: 3; }
  .people { display: none; }
  .row img { border: 1px solid #e2ddd2; height: 118px; image-rendering: pixelated; width: 118px; }
"""


def card_html() -> str:
    """The card as an HTML page.

    Raises:
        ValueError: If no run is recorded.
    """
    recorded = load_recorded(SITE)
    if recorded is None:
        raise ValueError(
            "The card shows a recorded run, but site/live has none; write one there with "
            "training.publish.live.live.export."
        )
    headline = re.search("<h1>(.+?)</h1>", (SITE / "includes" / "home.html").read_text(encoding="utf-8"))[1]
    drawn = [SITE / one["file"].lstrip("/") for one in recorded["pictures"][0]["pictures"]]
    pictures = "".join(f'<img src="{_data(path)}">' for path in drawn)
    logo = f'<img src="{_data(SITE / "images" / "logo.svg", "svg+xml")}" height="56">'
    return (
        f"<style>{STYLE}</style><header>{logo}<span>Training Transformers Together</span></header>"
        f"<h1>{headline}</h1>"
        "<p>Volunteers put together the computers they have and train one model that draws pictures from captions.</p>"
        f'<div class="row">{recorded["spark_svg"]}{pictures}</div>'
    )


def main() -> None:
    """Takes a screenshot of the card and writes the picture."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM") or None, chromium_sandbox=False)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(card_html())
        page.screenshot(path=SITE / "images" / "card.png")
        browser.close()


def _data(path: Path, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


if __name__ == "__main__":
    main()

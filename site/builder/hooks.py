"""MkDocs' door: hands over what the other modules of this folder make, and does nothing of its own."""

from __future__ import annotations

import sys
from pathlib import Path

# MkDocs restores sys.path after it has loaded a hook, so everything is imported here.
sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from mkdocs.structure.files import File  # noqa: E402

from builder import pages  # noqa: E402


def on_config(config):
    """Numbers and addresses for the templates."""
    config.extra["made"] = pages.data_for_templates()
    return config


def on_files(files, config):
    """Adds the files that were made, so that `--strict` knows them."""
    for address, file in pages.made_files():
        files.append(File.generated(config, address, abs_src_path=str(file)))
    for address, content in pages.made_texts(config.site_url).items():
        files.append(File.generated(config, address, content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fills the numbers into the text."""
    return pages.fill(markdown, config.extra["made"])


def on_post_page(output, page, config):
    """Terms that open, code that wraps, and names for what the theme leaves nameless."""
    return pages.finish(output, page.url)


def on_post_template(output_content, template_name, config):
    """The same for the page that lost readers see."""
    return pages.finish(output_content)

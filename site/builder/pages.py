"""What the pages get of the code: numbers, tables, the recorded run and the calculator's default answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path

import jinja2
from mkdocs.utils import get_relative_url

from builder import (
    accuracy,
    calculator,
    claims,
    commands,
    communication,
    failures,
    figures,
    glossary,
    joining,
    listings,
    news,
    performance,
    recipes,
    recorded,
    results,
    simulated,
    tutorial,
    upstream,
)
from builder.assets import asset_files, load_assets
from calculator.page.words import show_count

DOCS = Path(__file__).resolve().parents[1]


def data_for_templates() -> dict:
    """All that templates and texts use, under one name."""
    return {
        "assets": asdict(load_assets()),
        "recorded": recorded.load_recorded(DOCS),
        "calculator": calculator.page_data(),
        "joining": joining.page_data(),
        "tutorial": tutorial.page_data(repository()),
    }


def made_files() -> Iterator[tuple[str, Path]]:
    """(address, file) of what was fetched, compiled or recorded."""
    yield from asset_files()
    yield from recorded.still_pictures(DOCS)


def made_texts(site_url: str) -> dict[str, str]:
    """Address -> content of small files that only the build knows.

    Args:
        site_url: Address that the site will have.
    """
    live = {} if recorded.is_recorded(DOCS) else recorded.EMPTY
    return {
        **live,
        "notebooks/join.ipynb": joining.notebook(repository()),
        "notebooks/tutorial.ipynb": tutorial_notebook(),
        "feed.xml": news.feed(site_url, DOCS / "live"),
    }


def tutorial_notebook() -> str:
    """The tutorial's text, filled, as a notebook."""
    made = {"tutorial": tutorial.page_data(repository())}
    return tutorial.notebook(fill(tutorial.SOURCE.read_text(encoding="utf-8"), made))


def fill(markdown: str, made: dict) -> str:
    """Fills `{{ ... }}` of a page's text.

    Raises:
        jinja2.UndefinedError: If a page names what does not exist.
    """
    return _environment().from_string(markdown).render(made=made, tutorial=made.get("tutorial"))


def finish(html: str, address: str = "") -> str:
    """What is done to a finished page: terms that open, code that wraps, and a name for the theme's search dialog.

    Args:
        html: The page.
        address: Its own, relative to the site's root.
    """
    html = glossary.linked(html, get_relative_url("glossary/", address))
    return listings.wrapping(html).replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def repository() -> str:
    """What `git clone` takes; where nobody has said it, a gap."""
    return os.environ.get("REPO_URL") or "ADDRESS-OF-THE-REPOSITORY"


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters["thousands"] = show_count
    environment.globals.update(
        recipe=recipes.recipe,
        glossary=glossary.glossary,
        changelog=news.changelog,
        performance_sections=performance.performance_sections,
        performance_summary=performance.performance_summary,
        claims_table=claims.claims_table,
        upstream_lists=upstream.upstream_lists,
        hivemind_version=upstream.hivemind_version,
        gallery=results.gallery,
        gallery_caption=results.gallery_caption,
        quality_table=results.quality_table,
        model_card=results.model_card,
        codec_loss=results.codec_loss,
        paper_prompts=results.paper_prompts,
        recipe_tables=recipes.recipe_tables,
        communication_table=communication.communication_table,
        stored_parameters=communication.stored_parameters,
        figure=figures.figure_html,
        samples_a_second=figures.samples_a_second,
        most_peers=simulated.most_peers,
        simulation_error=simulated.simulation_error,
        simulation_error_beside_computing=simulated.simulation_error_beside_computing,
        simulation_cases=simulated.simulation_cases,
        simulation_sweep=simulated.simulation_sweep,
        accuracy_table=accuracy.accuracy_table,
        accuracy_counts=accuracy.accuracy_counts,
        worst_cases=accuracy.worst_cases,
        failure_table=failures.failure_table,
        failure_sections=failures.failure_sections,
        failure_count=failures.failure_count,
        exit_codes=failures.exit_codes,
        command_reference=commands.command_reference,
        calculator_reference=commands.calculator_reference,
        dalle=recipes.recipe("dalle-2021").model,
        clone_command=f"git clone {repository()} training-transformers-together",
    )
    return environment

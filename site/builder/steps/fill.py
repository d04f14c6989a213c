"""Replaces each call in a page's text, `{{ ... }}`, by its result: a number, a table or a figure from code and records.

A page may include HTML from site/includes, whose calls are replaced in the same way.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import cache
from html import escape

import jinja2

from builder.assets.browser_files import load_assets
from builder.calculator import form
from builder.dashboard.recorded_run import load_recorded
from builder.exercises import listed
from builder.folders import PAGES
from builder.home import past, timeline
from builder.join import choices
from builder.learn import (
    accuracy,
    communication,
    figures,
    glossary,
    hostile,
    recipes,
    replay,
    results,
    simulations,
    streaming,
    together,
    tutorial,
)
from builder.markup import paths
from builder.markup.links import site_link
from builder.reference import changes, claims, commands, docstrings, hivemind_faults, messages, performance
from calculator.units import show_count
from training.data.config import SHUFFLED_SAMPLES
from training.data.store.cache import CACHE_GB
from training.publish import notebook
from training.trust.server.policy import BANS_EVERY_SECONDS, Policy


def fill(markdown: str) -> str:
    """A page's text with each call replaced by its result.

    Raises:
        jinja2.UndefinedError: If the page uses a name that `_calls` does not define.
    """
    return _environment().from_string(markdown).render(made=_made())


def repository() -> str:
    """The address for `git clone`: REPO_URL, or else the one in the package's metadata."""
    return os.environ.get("REPO_URL") or notebook.repository()


def unset_addresses(site_url: str) -> str:
    """Says in one sentence which addresses the pages name although nobody has given them; empty if all are given."""
    named = {"SITE_URL": f"{site_url} as their own address", "REPO_URL": f"{repository()} for git clone"}
    missing = {variable: address for variable, address in named.items() if not os.environ.get(variable)}
    if not missing:
        return ""
    names, addresses = " and ".join(missing), " and ".join(missing.values())
    return f"Before you publish this site, set {names}: its pages name {addresses}."


def tutorial_notebook() -> str:
    """The tutorial as a notebook, its calls replaced."""
    return tutorial.notebook(fill(tutorial.SOURCE.read_text(encoding="utf-8")))


@cache
def _made() -> dict:
    """The data of site/includes, by the name under which each file there uses it: `made.calculator` and so on."""
    return {
        "assets": asdict(load_assets()),
        "recorded": load_recorded(PAGES),
        "calculator": form.page_data(),
        "joining": choices.page_data(),
    }


def _runtime() -> str:
    """Addresses by which scripts load the browser's Python, as JSON for an HTML attribute."""
    assets = load_assets()
    return escape(json.dumps({"folder": site_link(assets.runtime), "lock": assets.lock, "snapshot": assets.snapshot}))


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGES / "includes"),
        undefined=jinja2.StrictUndefined,  # otherwise a misspelt name would show as nothing
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(thousands=show_count, url=site_link)
    environment.globals.update(_calls(), runtime=_runtime)
    return environment


def _calls() -> dict:
    """The functions and values that pages may use, by name."""
    return {
        "accuracy_counts": accuracy.accuracy_counts,
        "reports_table": accuracy.reports_table,
        "large_logits": accuracy.large_logits,
        "linear_states": accuracy.linear_states,
        "family_table": accuracy.family_table,
        "adapter_table": accuracy.adapter_table,
        "sharded_table": accuracy.sharded_table,
        "galore_8b": accuracy.galore_8b,
        "low_rank_table": accuracy.low_rank_table,
        "accuracy_table": accuracy.accuracy_table,
        "bans_every_seconds": f"{BANS_EVERY_SECONDS:g}",
        "cache_gb": f"{CACHE_GB:g}",
        "adapter_facts": recipes.adapter_facts,
        "calculator_reference": commands.calculator_reference,
        "changelog": changes.changelog,
        "changeable_fields": recipes.changeable_fields,
        "claims_table": claims.claims_table,
        "clone_command": f"git clone {repository()} training-transformers-together",
        "codec_loss": results.codec_loss,
        "command_reference": commands.command_reference,
        "communication_table": communication.communication_table,
        "dalle": recipes.recipe("dalle-2021").model,
        "docstring": docstrings.docstring,
        "exercises": listed,
        "exit_codes": messages.exit_codes,
        "fault_count": messages.fault_count,
        "fault_table": messages.fault_table,
        "figure": figures.figure_html,
        "figure_rows": figures.default_rows,
        "gallery": results.gallery,
        "gallery_caption": results.gallery_caption,
        "glossary": glossary.glossary,
        "hostile": hostile,
        "hivemind_version": hivemind_faults.hivemind_version,
        "model_card": results.model_card,
        "membership_policy": Policy(),
        "local_exchanges": simulations.local_exchanges,
        "local_losses": simulations.local_losses,
        "local_stories": simulations.local_stories,
        "most_peers": simulations.most_peers,
        "paper_prompts": results.paper_prompts,
        "past": past,
        "path": paths.path,
        "performance_sections": performance.performance_sections,
        "performance_summary": performance.performance_summary,
        "quality_table": results.quality_table,
        "recipe": recipes.recipe,
        "recipe_tables": recipes.recipe_tables,
        "repository": repository(),
        "replay": replay,
        "samples_a_second": figures.samples_a_second,
        "screen_table": messages.screen_table,
        "shuffled_samples": SHUFFLED_SAMPLES,
        "simulation_cases": simulations.simulation_cases,
        "symptom_table": messages.symptom_table,
        "simulation_error": simulations.simulation_error,
        "simulation_error_beside_computing": simulations.simulation_error_beside_computing,
        "simulation_sweep": simulations.simulation_sweep,
        "stored_parameters": communication.stored_parameters,
        "run_replay": timeline.replay,
        "streaming": streaming,
        "together": together,
        "tutorial": tutorial.page_data(repository()),
        "upstream_lists": hivemind_faults.upstream_lists,
    }

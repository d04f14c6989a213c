"""Address of a run as a volunteer gives it, from which the run's recipe and its site follow."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit, urlunsplit

from training.errors import BadInput
from training.publish.invitation import RECIPE, site_of
from training.recipe import NoRecipe, RunConfig, parse_recipe, read_recipe

SHARDS = "/shards"
"""Path at which a monitor serves the shards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRun:
    """A run to which an address leads."""

    recipe_toml: str
    run: RunConfig
    given_site: str | None
    """Address of the run's site, if the given address leads to it."""

    @property
    def site(self) -> str | None:
        """Address of the run's site, which names its servers: the given one, or the one that has the shards; None if
        neither the address nor the recipe tells it."""
        shards = self.run.data.shards
        return self.given_site or (shards.removesuffix(SHARDS) if _is_url(shards) and shards.endswith(SHARDS) else None)


def find_run(address: str) -> FoundRun:
    """Reads the recipe to which an address leads.

    Args:
        address: Address of the run's site, of a page of it, or of the recipe; or a recipe's file or name.

    Raises:
        BadInput: If no recipe is found, or it does not describe a run.
        TrainingError: If the run's monitor is just starting.
    """
    for source in recipes_at(address):
        try:
            text = read_recipe(source)
        except NoRecipe:
            continue
        return FoundRun(recipe_toml=text, run=parse_recipe(text, source=source), given_site=site_of(source))
    raise BadInput(
        f"No run is served at {address}: there is no recipe.",
        cure="Give the address of the run's site, such as https://run.example, or that of its recipe.",
    )


def recipes_at(address: str) -> list[str]:
    """Places where the recipe may be, in the order in which to try them.

    >>> recipes_at("https://pages.example/run/join/")[:2]
    ['https://pages.example/run/join/recipe.toml', 'https://pages.example/run/recipe.toml']
    >>> recipes_at("https://pages.example/join/?run=https://run.example")
    ['https://run.example/recipe.toml']
    >>> recipes_at("https://run.example/a.toml"), recipes_at("demo")
    (['https://run.example/a.toml'], ['demo'])
    """
    parts = urlsplit(address)
    if not _is_url(address) or parts.path.endswith(".toml"):
        return [address]
    for chosen in filter(_is_url, parse_qs(parts.query).get("run", [])):
        return recipes_at(chosen)
    folder, folders = parts.path.rstrip("/"), []
    while folder:
        folders.append(folder)
        folder = folder.rpartition("/")[0]
    return [urlunsplit((parts.scheme, parts.netloc, f"{one}{RECIPE}", "", "")) for one in [*folders, ""]]


def _is_url(address: str) -> bool:
    return address.startswith(("http://", "https://"))

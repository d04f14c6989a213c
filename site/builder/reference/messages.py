"""What the trainer tells its user, from its code: exit codes, the screen's figures, faults by name, and symptoms."""

from __future__ import annotations

import re
from functools import cache

import yaml

from builder.folders import PAGES, ROOT
from builder.markup.tables import code, stacked
from builder.reference.claims import test_link
from training import errors
from training.doctor.catalogue import all_faults
from training.volunteer.terminal.screen import FIGURES


def exit_codes() -> str:
    """HTML table of the exit codes, from the docstrings of the exceptions."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and "Exit code" in (kind.__doc__ or "")]
    rows = [
        (str(kind.exit_code), code(kind.__doc__.split(" Exit code")[0]), code(kind.usual_cure))
        for kind in sorted(kinds, key=lambda kind: kind.exit_code)
    ]
    return stacked("Exit codes", ("Exit code", "Meaning", "What to do"), rows)


def fault_count() -> int:
    """Number of faults."""
    return len(all_faults())


def fault_table() -> str:
    """HTML table of all faults; words that the program fills in stand in capitals."""
    rows = [
        (
            f"<code>{fault.name}</code>",
            f'<span class="whole">{fault.level}</span>',  # its column is so narrow that browsers would break the word
            code(fault.why),
            code(re.sub(r"{(\w+)}", lambda word: word[1].upper(), fault.remedy)),
        )
        for fault in all_faults()
    ]
    return stacked("Faults that doctor finds", ("Name", "Level", "Why it matters", "What to do"), rows)


def screen_table() -> str:
    """HTML table of the rows of `join`'s screen, and what each means."""
    return stacked(
        "Rows of the screen", ("Row", "Meaning"), [(code(f"`{row}`"), code(FIGURES[row])) for row in FIGURES]
    )


@cache
def symptoms() -> list[dict[str, str]]:
    """Reads the symptoms; site/reference/symptoms.yml says what each has."""
    return yaml.safe_load((PAGES / "reference" / "symptoms.yml").read_text(encoding="utf-8"))


def symptom_table() -> str:
    """HTML table of what volunteers see when something is wrong.

    Raises:
        ValueError: If a test, or the place that tells the volunteer, does not exist.
    """
    for symptom in symptoms():
        test_link(symptom["test"])
        file, _, name = symptom["says"].partition("::")
        path = ROOT / file
        if not path.is_file() or not re.search(rf"\b{re.escape(name)}\b", path.read_text(encoding="utf-8")):
            raise ValueError(f"A symptom names {symptom['says']}, which does not exist.")
    rows = [tuple(code(symptom[cell]) for cell in ("seen", "means", "do")) for symptom in symptoms()]
    return stacked("When something is wrong", ("You see", "It means", "What to do"), rows)

"""The exit codes of the commands, and the faults that `doctor` knows by name, from the trainer's code."""

from __future__ import annotations

import re

from builder.markup.tables import code, stacked
from training import errors
from training.doctor.catalogue import all_faults


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

"""Every fault that `doctor` knows by name, from its code: why it matters and what to do."""

from __future__ import annotations

import re

from builder.markup.tables import code, stacked
from training.doctor.catalogue import all_faults


def fault_count() -> int:
    """How many faults there are."""
    return len(all_faults())


def fault_table() -> str:
    """HTML table of all faults; what the program fills in stands in capitals."""
    rows = [
        (
            f"<code>{fault.name}</code>",
            "fault" if fault.level == "fault" else "warning",
            code(fault.why),
            code(re.sub(r"{(\w+)}", lambda word: word[1].upper(), fault.remedy)),
        )
        for fault in all_faults()
    ]
    return stacked("Faults that doctor finds", ("Name", "Level", "Why it matters", "What to do"), rows)

"""An estimate as the calculator's page shows it: texts by the name of their place, lengths of bars, and choices."""

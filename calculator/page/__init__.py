"""An estimate in the page's words: texts by the name of their place, lengths of bars, choices of one click."""

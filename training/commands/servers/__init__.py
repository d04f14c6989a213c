"""Commands for maintainers, who run a collaboration's servers."""

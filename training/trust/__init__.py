"""Who may take part: tickets that the maintainer's server signs, and what each peer checks of them by itself."""

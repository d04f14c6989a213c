"""A reader's question in own words: what it means, what it sets, and its answer."""

"""A question in a reader's own words: its meaning, the fields that it sets, and its answer."""

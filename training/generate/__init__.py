"""From prompts to pictures: drawing, judging, measuring."""

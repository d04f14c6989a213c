"""Options for runs of strangers: clipping, signed parts, audits. Averages by the mean run none of it."""

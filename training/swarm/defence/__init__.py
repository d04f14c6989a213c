"""Options for runs of strangers: clipping, signed parts, audits. A run that averages by the mean uses none of them."""

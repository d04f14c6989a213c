"""hivemind as this project uses it: limits on what strangers send, streams, codecs. It knows nothing of runs."""

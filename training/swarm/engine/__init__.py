"""hivemind as we use it: limits on what strangers send, streams, codecs. It knows no run."""

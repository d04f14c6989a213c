"""Models of the run: the text-to-image transformer and its sampling, language models, and the image codecs."""

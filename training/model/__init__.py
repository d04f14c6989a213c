"""The model of the run: the text-to-image transformer, its sampling, and the image codecs."""

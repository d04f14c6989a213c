"""The calculator's only exception."""


class BadSetup(ValueError):
    """The setup, model or file cannot be estimated; the message is one sentence that says what is accepted."""

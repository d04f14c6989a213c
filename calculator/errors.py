"""The one exception of the calculator."""


class BadSetup(ValueError):
    """A setup, model or file that cannot be estimated; its message is one sentence that says what is accepted."""

"""Errors that end a program with one clear sentence and a documented exit code.

A message says what came, what is accepted and what to do next. The command line prints it without a traceback.
"""


class TrainingError(Exception):
    """Something failed that is no fault of the input. Exit code 1."""

    exit_code = 1
    usual_cure = "Nothing that you typed is wrong. Try again; if it comes again, tell the run's maintainer."
    """What to do where neither the message nor `cure` says it."""

    def __init__(self, message: str = "", *, cure: str = ""):
        """`cure` says what to do, where the message does not."""
        super().__init__(message)
        self.cure = cure

    @property
    def told(self) -> str:
        """What a program prints that ends with it: the message, and what to do."""
        return f"{self} {self.cure}".rstrip()


class BadInput(TrainingError):
    """A flag, file or recipe that cannot be used as it is. Exit code 2."""

    exit_code = 2
    usual_cure = "Change the flag, file or recipe that the message names; `--help` lists the flags."


class RefusedByRun(TrainingError):
    """The run does not accept this peer, which is on another recipe or other tokens. Exit code 3."""

    exit_code = 3
    usual_cure = "Take recipe and addresses anew from the run's join page."


def reason_of(error: Exception) -> str:
    """What an error says, without number and file name: the sentence around it names the file.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.toml"))
    'no such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)

"""Errors that end a program with one clear sentence and a documented exit code.

A message says what was given, what is accepted and what to do next. The command line prints it without a traceback.
"""


class TrainingError(Exception):
    """Something failed although the input is right. Exit code 1."""

    exit_code = 1
    usual_cure = (
        "Nothing that you typed is wrong. Try again; if it happens again, `python -m training doctor` says whether "
        "this machine has a fault. If it has none, tell the run's maintainer."
    )
    """What to do, if neither the message nor `cure` says it."""

    def __init__(self, message: str = "", *, cure: str = ""):
        """`cure` says what to do, if the message does not."""
        super().__init__(message)
        self.cure = cure

    @property
    def sentence(self) -> str:
        """What the program prints before it exits: the message, and what to do."""
        return f"{self} {self.cure}".rstrip()


class BeginsAnew(TrainingError):
    """What has stopped the program will pass, so the program can begin anew."""


class ProcessEnded(BeginsAnew):
    """A process that the program needs has ended."""


class DiskFilled(BeginsAnew):
    """The disk has filled up while the program began; at its next beginning it waits for room."""


class BadInput(TrainingError):
    """A flag, file or recipe that cannot be used as it is. Exit code 2."""

    exit_code = 2
    usual_cure = "Change the flag, file or recipe that the message names; `--help` lists the flags."


class RefusedByRun(TrainingError):
    """The run does not accept this peer, which has another recipe or other tokens. Exit code 3."""

    exit_code = 3
    usual_cure = "Copy the recipe and the addresses from the run's join page again."


def reason_of(error: Exception) -> str:
    """An error's text without its number and file name: the sentence around it names the file.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.toml"))
    'no such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def first_line(error: BaseException) -> str:
    r"""What an error of another library says, as the end of a sentence: its first two lines.

    >>> first_line(RuntimeError("Error in Model:\n\tsize mismatch.\n\tsize mismatch."))
    'Error in Model: size mismatch.'
    """
    lines = [line.strip().rstrip(":") for line in str(error).splitlines() if line.strip()]
    return ": ".join([*lines[:2]]) if lines else type(error).__name__

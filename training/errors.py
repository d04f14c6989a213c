"""Errors that end a program with one clear sentence and a documented exit code.

A message says what was given, what is accepted and what to do next. The command line prints it without a traceback.
"""


class TrainingError(Exception):
    """Error that is no fault of the input. Exit code 1."""

    exit_code = 1
    usual_cure = (
        "Nothing that you typed is wrong. Try again; if it happens again, `python -m training doctor` says whether "
        "this machine has a fault. If it has none, tell the run's maintainer."
    )
    """Advice to show if neither the message nor `cure` has any."""

    def __init__(self, message: str = "", *, cure: str = ""):
        """Makes the error; `cure` is advice that the message lacks."""
        super().__init__(message)
        self.cure = cure

    @property
    def sentence(self) -> str:
        """Text that the program prints before it exits: the message, and advice."""
        return f"{self} {self.cure}".rstrip()


class BeginsAnew(TrainingError):
    """Error of a temporary cause, after which the program can begin anew."""


class ProcessEnded(BeginsAnew):
    """Error for the end of a process that the program needs."""


class DiskFilled(BeginsAnew):
    """Error for a full disk while the program began; at its next beginning the program waits for room."""


class BadInput(TrainingError):
    """Error for a flag, file or recipe that cannot be used as it is. Exit code 2."""

    exit_code = 2
    usual_cure = "Change the flag, file or recipe that the message names; `--help` lists the flags."


class RefusedByRun(TrainingError):
    """The run does not accept this peer, which has another recipe or other tokens. Exit code 3."""

    exit_code = 3
    usual_cure = "Copy the command from the run's join page again."


def reason_of(error: Exception) -> str:
    """Text of an error without its number and file name, for a sentence that names the file.

    >>> reason_of(FileNotFoundError(2, "No such file or directory", "a.toml"))
    'no such file or directory'
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error)


def first_line(error: BaseException) -> str:
    r"""First two lines of another library's error, as the end of a sentence.

    >>> first_line(RuntimeError("Error in Model:\n\tsize mismatch.\n\tsize mismatch."))
    'Error in Model: size mismatch.'
    """
    lines = [line.strip().rstrip(":") for line in str(error).splitlines() if line.strip()]
    return ": ".join([*lines[:2]]) if lines else type(error).__name__

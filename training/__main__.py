"""`python -m training ROLE`: the collaboration's command line."""

import sys


def main() -> None:
    """Runs the command line; reports a missing package in one sentence."""
    try:
        from training.cli import main as run

        run()
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] in ("training", "calculator"):
            raise
        print(
            f"Error: the package {error.name} is not installed. Start the program with `.venv/bin/nox -s training --`, "
            "which installs what it needs, or run "
            "`pip install --no-deps -r constraints/training.txt && pip install -r constraints/torch.txt`.",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()

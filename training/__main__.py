"""`python -m training ROLE`: the collaboration's command line."""

from training.cli import main

if __name__ == "__main__":
    main()

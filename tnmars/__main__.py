"""`python -m tnmars`: the command line."""

from tnmars.cli import main

if __name__ == "__main__":
    main()

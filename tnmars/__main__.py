"""`python -m tnmars`: the command line."""

import sys

if __name__ == "__main__":
    try:
        from tnmars.cli import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()

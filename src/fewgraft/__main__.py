"""`python -m fewgraft` is the `fewgraft` command."""

import sys

if __name__ == "__main__":
    try:
        from fewgraft.cli import main

        main()
    except KeyboardInterrupt:  # while the command itself was being imported
        sys.exit(130)

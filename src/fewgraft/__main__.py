"""`python -m fewgraft` is the `fewgraft` command."""

from fewgraft.cli import main

if __name__ == "__main__":
    main()

"""The tool: add classes to a classifier from folders of photos."""

"""The report of a lesson."""

from fewgraft.app.teaching import Outcome


def report_page(outcome: Outcome) -> str:
    """One HTML file that needs nothing else."""
    return f"<p>{outcome.taught}</p>"

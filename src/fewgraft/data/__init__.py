"""Pictures: where they come from, how they are stored, which part each belongs to."""

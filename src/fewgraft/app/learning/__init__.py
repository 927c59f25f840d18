"""From examples and unlabelled photos to a classifier: base, lesson, judgement, what is kept."""

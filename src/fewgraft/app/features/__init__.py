"""From photo files to features, computed once per content."""

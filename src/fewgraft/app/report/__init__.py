"""What a lesson did, as a page to look at."""

"""A classifier on a page of its own: recognise, teach, keep or discard, roll back."""

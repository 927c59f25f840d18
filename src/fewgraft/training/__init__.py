"""Training: pre-training with a cosine classifier, then meta-training by Algorithm 1 or 2."""

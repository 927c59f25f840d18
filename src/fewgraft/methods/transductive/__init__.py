"""Transductive and semi-supervised methods on fixed features, one file per paper."""

"""The paper's inductive rivals: base and novel classes in one answer, without U."""

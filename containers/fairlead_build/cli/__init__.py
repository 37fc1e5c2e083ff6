"""The builder's verbs, a module each: the only modules here that print."""

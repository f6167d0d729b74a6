"""Estimate what runs did: a model, two compared, a rule's number, a collapse."""

"""One module per trainer; each imports exactly one framework."""

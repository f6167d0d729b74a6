"""Read prompts and answers, and check, compare and write them for a trainer. They are public data sets and files."""

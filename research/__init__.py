"""Rules and studies outside the wheel: what lost, and what no trainer runs."""

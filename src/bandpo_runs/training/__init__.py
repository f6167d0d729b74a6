"""Make a run of a recipe on TRL. Several run side by side."""

"""Make a run of a recipe: on TRL here, on verl as a command. Several run side by side; a doctor checks a setup."""

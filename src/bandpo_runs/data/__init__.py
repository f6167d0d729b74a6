"""Sources of prompts and answers: public data sets and files, checked, compared and written down for a trainer."""

from ..faces import lazily

__getattr__ = lazily(__name__, {"evaluation_set": "question_sets", "prepare": "preparation", "rows_and_reward": "rows"})

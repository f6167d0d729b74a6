"""Read prompts and answers, and check, compare and write them for a trainer. They are public data sets and files."""

from ..faces import lazily

__getattr__ = lazily(
    __name__, {"evaluation_set": "question_sets", "prepare": "preparation", "rows_and_reward": "rows"}
)

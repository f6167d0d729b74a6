"""Generate samples from a model. `generate(requests, sampling, keep)` calls `keep(request, completion)` for each.

`dtype` and `tokenizer` are the model's, None of a server. With transformers and vLLM the random numbers of a sample
depend on its seed alone, but for rounding (research/pages/evaluation_measured.md). A server may heed the seed.
"""

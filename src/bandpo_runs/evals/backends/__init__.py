"""Back ends that draw samples.

`draw(requests, sampling)` yields (request, drawn) in any order, and leaving it stops the work. `dtype` and `tokenizer`
are the model's, None of a server.

With transformers and vLLM the random numbers of a sample depend on its seed alone, not on who shares its batch; what is
left is rounding (research/pages/evaluation_measured.md). A server is sent the seed, and may heed it.
"""
